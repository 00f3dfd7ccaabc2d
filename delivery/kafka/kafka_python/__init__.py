"""The Kafka port over kafka-python, wherever a client without compiled code serves."""
