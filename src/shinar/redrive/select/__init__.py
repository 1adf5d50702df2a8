"""Which dead letters are meant: SQL conditions, fingerprints, ids, time."""
