"""Redis and Valkey as a store."""

from mainspring.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
