"""A stage's life: renamed, reset, retired, deduplicated otherwise, left for a job of its own.

What it is: a function for each, and what refuses to start a stage that is in the middle of one.
What it must not know: the command line.
"""
