"""What others cost on the same graphs: ``python benchmarks/peers``, or ``make bench-peers``."""
