"""Messages written in the caller's own transaction, published afterwards by a relay."""

from shinar.outbox.relay import Backlog, Pass, Relay
from shinar.outbox.table import schema_sql
from shinar.outbox.write import Outbox

__all__ = ["Backlog", "Outbox", "Pass", "Relay", "schema_sql"]
