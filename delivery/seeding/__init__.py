"""Switching on beside what ran before: seeded ids, and starting positions of another job."""
