"""Fast paths of `apply`. Each writes one frequent kind of batch with few statements, else leaves it to `apply`."""
