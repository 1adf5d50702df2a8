"""One module per command; none imports another."""
