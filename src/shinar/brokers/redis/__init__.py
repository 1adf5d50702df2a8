"""Redis as a broker."""
