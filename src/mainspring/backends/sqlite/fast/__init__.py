"""Fast paths of `apply`: each writes one frequent kind of change with few statements, and leaves others to `apply`."""
