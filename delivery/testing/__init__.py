"""The testing kit that ships: faulty wrappers, the explorer of fault plans, and `run`."""
