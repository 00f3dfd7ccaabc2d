"""The parts of the demonstration: the job, its traffic, what is done to it, and what came out."""
