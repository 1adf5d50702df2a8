"""Bodies as validated rows: the schema, and how deliveries become columns of it."""
