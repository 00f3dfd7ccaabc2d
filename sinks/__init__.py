"""Sinks, each module named after what it wraps."""
