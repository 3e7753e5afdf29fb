"""Redis and Valkey as a store, and as a broker (`broker.py`)."""

from mainspring.backends.redis.store import RedisStore

__all__ = ["RedisStore"]
