"""The Kafka port over confluent-kafka (librdkafka), where speed counts."""
