"""Redis and Valkey as a store."""

from mainspring.backends.redis.store import RedisStore

__all__ = ["RedisStore"]
