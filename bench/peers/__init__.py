"""Peers of this library, doing the job of its benchmarks; users never install them."""
