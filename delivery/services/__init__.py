"""Real Kafka and Cassandra servers from their published jars, and the Java they run on."""
