"""Built once above the broker contract: leases, capacity, throttling."""
