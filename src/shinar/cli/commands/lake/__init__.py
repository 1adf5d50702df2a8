"""Commands over a lake."""
