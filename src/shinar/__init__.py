"""Shinar: polyglot queues in Python, and on Spark."""

__version__ = "0.1.0"
