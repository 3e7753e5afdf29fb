"""Callers: which API key a request came with, as the access check of the service found it."""

from __future__ import annotations

from starlette.requests import Request

from mainspring.service.api_keys import ApiKey


def key_id_of(request: Request) -> str:
    """Return the id of the API key that a request was sent with; "" if it was sent without one."""
    key = _key_of(request)
    return "" if key is None else key.id


def actor_of(request: Request) -> str:
    """Return the actor of the events that a request causes: name and id of its API key, or "api" without a key."""
    key = _key_of(request)
    return "api" if key is None else f"key:{key.name} ({key.id})"


def _key_of(request: Request) -> ApiKey | None:
    found = getattr(request.state, "key", None)
    return found if isinstance(found, ApiKey) else None  # another app around this one may use the name
