"""The PostgreSQL store; needs the extra `mainspring[postgres]`."""

from mainspring.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
