"""Queues, logs and archives as Spark rows: `format("shinar")`."""
