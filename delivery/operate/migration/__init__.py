"""A catalog moved into another store, so that it runs in one of them at most.

What it is: one module for what a lane says of itself meanwhile, one for copying, one for the order.
"""
