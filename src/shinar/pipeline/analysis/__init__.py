"""Questions about traffic, each a DataFrame -> DataFrame function over the tables of a lake."""
