"""A table of an ordinary database as a queue."""
