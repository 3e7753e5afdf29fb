"""Fast paths of `apply`: each writes one frequent kind of change with few statements, and returns all other changes."""
