"""What ids go through, in C, where a library could be made. Without it arrays do the same, slower."""
