"""What operators do with a catalog: look, prove, tidy up, put away and bring back.

Each is a function with plain values as its result; the command line only prints them.
"""
