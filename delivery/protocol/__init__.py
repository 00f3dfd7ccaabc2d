"""The protocol core: what must happen next, and never how.

Pure: no I/O, clock, randomness, threads, environment, logging, Spark or driver. `lane` is the state
machine, `messages` its events and instructions, `senders` what a receiver may conclude from a
sender's row, `expiry` which ids may be forgotten.
"""
