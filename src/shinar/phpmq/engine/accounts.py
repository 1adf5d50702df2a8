"""One client as far as limits are concerned: everybody with the same token, or one address without a token.

Counters only, so that a limit cannot be evaded with more connections, pipelined requests or detached leases.
Must not know a connection.
"""

from __future__ import annotations

from weakref import WeakValueDictionary


class Account:
    __slots__ = ("__weakref__", "handed_bytes", "handed_messages", "inbound_bytes", "name", "reserved",
                 "rests_until_s", "turn", "unsent_bytes")  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        #: Messages under leases of this client, of every kind.
        self.reserved = 0
        #: Bytes of unfinished requests, and of replies the client has not read.
        self.inbound_bytes = 0
        self.unsent_bytes = 0
        #: Monotonic time until which others go first, because its last slice was too long.
        self.rests_until_s = 0.0
        #: The dispatch turn the two numbers below belong to, and what the client was handed in it.
        self.turn = 0
        self.handed_messages = 0
        self.handed_bytes = 0


class Accounts:
    """Accounts by name; one that no connection and no lease refers to is forgotten."""

    def __init__(self) -> None:
        self._by_name: WeakValueDictionary[str, Account] = WeakValueDictionary()

    def get(self, name: str) -> Account:
        account = self._by_name.get(name)
        if account is None:
            account = self._by_name[name] = Account(name)
        return account
