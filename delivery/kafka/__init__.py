"""Kafka through a port: which client library reads and writes is a choice, not a difference."""
