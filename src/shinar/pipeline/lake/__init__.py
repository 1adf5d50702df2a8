"""The tables: where they are, how they are committed, how they are maintained."""
