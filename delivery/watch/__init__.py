"""Watching: how far behind stages are, whether they are exact, and both as metrics, page and advice.

What it is: read-only looks at a catalog and, where it is named, at Kafka, beside live jobs.
What it must not know: terminals, who asks.
"""
