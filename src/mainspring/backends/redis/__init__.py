"""Redis and Valkey as a store (`store.py`) and as a broker (`broker.py`); needs the extra `mainspring[redis]`."""

from mainspring.backends.redis.store import RedisStore

__all__ = ["RedisStore"]
