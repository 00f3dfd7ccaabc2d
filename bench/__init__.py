"""Benchmarks of this project; `python -m bench` runs them."""
