"""The Kafka port's two hot paths over sockets of our own: record batches become columns, and columns record batches."""
