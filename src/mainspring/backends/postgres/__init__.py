"""The PostgreSQL store; needs the extra `mainspring[postgres]`."""

from mainspring.backends.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
