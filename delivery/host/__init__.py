"""What runs lanes in a process, whoever started it: Spark's tasks and plain Python alike."""
