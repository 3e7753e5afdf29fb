"""Parts that the stores behind a network connection share: PostgreSQL and Redis."""
