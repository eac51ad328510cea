"""Benchmarks of MAPL."""
