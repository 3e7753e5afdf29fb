"""Agent secrets: keep header values and query values of a schedule's HTTP agent apart from its definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.model.errors import InvalidInput
from mainspring.model.http import HttpTarget, origin_of
from mainspring.model.query_values import fill_query_values, has_query_values, hide_query_values, query_of
from mainspring.model.schedule import Schedule, ScheduleSpec
from mainspring.rules.definition import digest_of
from mainspring.service.requests import ScheduleRequest

if TYPE_CHECKING:
    from mainspring.agents.vault import Vault


def agent_of(spec: ScheduleSpec) -> HttpTarget | None:
    """Return the HTTP agent that a definition calls; None if it calls a task."""
    return None if spec.options is None else spec.options.http


def holds_query_values(spec: ScheduleSpec) -> bool:
    """Return True if a definition holds a URL with query values, as callers pass it and earlier versions stored it."""
    target = agent_of(spec)
    return target is not None and not target.query_kept and has_query_values(target.url)


async def store_agent_secrets(
    vault: Vault, want: ScheduleRequest, before: ScheduleSpec | None = None
) -> ScheduleRequest:
    """Store header values and query of the agent in `want`. Return `want` with a reference in their place.

    `before` is the definition that `want` replaces; None for a new schedule. `***` in the query of the URL stands for
    the value in `before`. Return `want` unchanged if it calls no agent, or holds no such values any more. Raises:
    InvalidInput for `***` without a stored value.
    """
    target = agent_of(want.spec)
    old = None if before is None else agent_of(before)
    headers = None if want.agent is None else want.agent.headers
    if target is None:
        return want
    if headers is None and (target.query_kept or not (holds_query_values(want.spec) or (old and old.query_kept))):
        return want
    url = await _full_url(vault, target, old)
    kept = has_query_values(url)
    values = await _kept_headers(vault, target) if headers is None else headers
    ref = await _store(vault, f"{want.ns}/{want.name}", values, query_of(url) if kept else "")
    return _with_target(want, replace(target, url=hide_query_values(url), headers_ref=ref, query_kept=kept))


async def move_agent_secrets(vault: Vault, want: ScheduleRequest, before: Schedule) -> ScheduleRequest:
    """Return `want` with a reference of its own to the secrets that it keeps, if it renames `before`.

    Why: a reference belongs to a name. A schedule that gets the old name, with equal values, has the old reference, and
    the values would expire when the renamed schedule is deleted.
    """
    target, old = agent_of(want.spec), agent_of(before.spec)
    if want.name == before.name or target is None or old is None or target.headers_ref != old.headers_ref:
        return want
    call = await vault.find_call(target.headers_ref)
    if call is None or target.headers_ref is None:
        return want
    return _with_target(want, replace(target, headers_ref=await vault.store_call(f"{want.ns}/{want.name}", call)))


def _with_target(want: ScheduleRequest, target: HttpTarget) -> ScheduleRequest:
    """Return `want` with another HTTP agent, whose secrets are stored."""
    assert want.spec.options is not None, "it calls an agent"
    spec = replace(want.spec, options=replace(want.spec.options, http=target))
    digest = digest_of(spec) if want.digest == digest_of(want.spec) else want.digest
    return replace(want, spec=spec, digest=digest, agent=None)


async def _store(vault: Vault, owner: str, headers: Mapping[str, str], query: str) -> str | None:
    from mainspring.agents.vault import StoredCall  # most programs call no agent

    return await vault.store_call(owner, StoredCall(headers, query))


async def _full_url(vault: Vault, target: HttpTarget, old: HttpTarget | None) -> str:
    """Return the URL of `target` with all its query values. `old` is the agent before the edit, if any.

    Raises: InvalidInput if a value that is to be kept is not stored, or was stored for another host.
    """
    stored = "" if old is None else query_of(old.url)
    if old is not None and old.query_kept:
        found = await vault.find_call(old.headers_ref)
        stored = "" if found is None else found.query
    url = fill_query_values(target.url, stored)
    if url != target.url and old is not None and origin_of(url) != origin_of(old.url):
        raise InvalidInput("url", "*** stands for a value that is not sent to a new host", "Send the value again")
    return url


async def _kept_headers(vault: Vault, target: HttpTarget) -> Mapping[str, str]:
    """Return the header values that are stored for `target`. Raises: InvalidInput if they are stored no longer."""
    found = await vault.headers(target.headers_ref)
    if found is None:
        raise InvalidInput("headers", "the stored values are gone", "Send all headers again")
    return found
