"""What a result depends on, and whether it is current: digests of code, parameters and data."""
