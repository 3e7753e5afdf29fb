"""Header values beside the log: a revision names them, nobody shows them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from mainspring.model.kept import HEADER, Kept
from mainspring.model.policies import RunOptions
from mainspring.model.schedule import Schedule, ScheduleSpec
from mainspring.service import Commands

if TYPE_CHECKING:
    from mainspring.api.drafting import Draft


def headers_ref(spec: ScheduleSpec) -> str | None:
    """The name under which a definition's header values are kept."""
    return None if spec.options is None or spec.options.http is None else spec.options.http.headers_ref


async def keep_headers(commands: Commands, draft: Draft, current: Schedule | None) -> str | None:
    """Keep the values a draft brings, and those it leaves as they are, under a new name; what is there stays as it is.

    Executions that exist already go on with the values of their own revision.
    """
    if draft.headers is None or not (draft.headers or draft.keeps):
        return None
    values: dict[str, str] = dict(draft.headers)
    if draft.keeps and current is not None:
        before = {name.lower(): value for name, value in (await _values(commands, current.spec)).items()}
        values |= {name: before[name.lower()] for name in draft.keeps if name.lower() in before}
    name = f"h_{secrets.token_hex(12)}"
    await commands.keep([Kept(kind=HEADER, id=name, data=msgspec.json.encode(values).decode())])
    spec = draft.want.spec
    options = spec.options or RunOptions()
    assert options.http is not None
    target = replace(options.http, headers_ref=name)
    draft.want = replace(draft.want, spec=replace(spec, options=replace(options, http=target)))
    return name


async def _values(commands: Commands, spec: ScheduleSpec) -> Mapping[str, str]:
    ref = headers_ref(spec)
    found = {} if ref is None else await commands.kept(HEADER, [ref])
    return {} if ref is None or ref not in found else msgspec.json.decode(found[ref].data, type=dict[str, str])


async def let_expire(commands: Commands, spec: ScheduleSpec, at: int) -> None:
    """Values that no later fire needs are kept as long as history is: an old execution may be run again."""
    ref = headers_ref(spec)
    found = {} if ref is None else await commands.kept(HEADER, [ref])
    if ref is not None and ref in found:
        await commands.keep([replace(found[ref], expires_at=at)], replace=True)
