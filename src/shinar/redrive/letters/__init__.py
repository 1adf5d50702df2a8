"""Dead letters as values: read, grouped, counted."""
