"""What can be had back: a host's index from the catalog, a lost catalog from the topics.

What it is: one module for each; nothing but this line here.
"""
