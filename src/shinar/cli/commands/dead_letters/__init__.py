"""`shinar dlq` and `shinar redrive`."""
