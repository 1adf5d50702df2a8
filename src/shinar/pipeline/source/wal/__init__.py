"""A write-ahead log that lets Spark replay queues which cannot be replayed."""
