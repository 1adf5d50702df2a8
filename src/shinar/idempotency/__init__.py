"""Run a handler once per `meta.id`: the guard, and stores that remember what was done."""

from shinar.idempotency.guard import Store, guard, usable_id
from shinar.idempotency.memory import MemoryStore
from shinar.idempotency.open import open_store
from shinar.idempotency.sql import Once, SqlStore, claim

__all__ = ["MemoryStore", "Once", "SqlStore", "Store", "claim", "guard", "open_store", "usable_id"]
