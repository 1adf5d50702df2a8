"""SQL connections and dialects, for everything that is kept in a table."""
