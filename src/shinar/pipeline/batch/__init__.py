"""One micro-batch in order: stage, dedupe, write tables, journal, commit."""
