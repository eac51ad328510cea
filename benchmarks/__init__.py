"""Benchmarks with targets: one driver, one row a case. ``python -m benchmarks list`` shows them."""
