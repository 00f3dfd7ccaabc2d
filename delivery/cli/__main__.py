"""`python -m delivery.cli`, for where the console script is not on PATH.

What it is: the same command. What it must not know: anything else.
"""

from delivery.cli import main

if __name__ == "__main__":
    main()
