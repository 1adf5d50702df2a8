"""Amazon SQS as a broker."""
