"""Benchmarks of the stability controller."""
