"""Which ids are decided: ids, filters, segments, the catalog port and its stores.

This package knows no Spark and no Kafka, and imports none of its three siblings.
"""
