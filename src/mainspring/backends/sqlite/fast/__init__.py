"""Fast paths of `apply`. Each writes one frequent kind of batch with few statements, and leaves others to `apply`."""
