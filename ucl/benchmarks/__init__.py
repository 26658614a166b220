"""Benchmarks: the time per batch by part, compared with the highest throughput that the machine reaches."""
