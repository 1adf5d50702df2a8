"""`shinar broker`."""
