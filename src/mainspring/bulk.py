"""Definitions in bulk: what an item shares with the one before it is read and checked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from mainspring.model.errors import InvalidInput
from mainspring.model.ids import check_name
from mainspring.rules.definition import digest_of
from mainspring.rules.triggers.every import Every
from mainspring.service import Definition

#: What may be another object each time, or changes its meaning with the name or the moment.
_READ_EACH_TIME = frozenset({"args", "kwargs", "payload", "cron", "delay", "at"})


class Bulk:
    """Reads items one after another; those that differ in name and interval only are made from the last one."""

    def __init__(self, define: Callable[..., Definition], task: Any) -> None:
        self._define = define
        self._task = task
        self._last: tuple[Mapping[str, Any], Definition] | None = None

    def definition(self, number: int, item: Mapping[str, Any]) -> Definition:
        """An item's definition; a wrong one is refused with its number."""
        if not isinstance(item, (dict, Mapping)) or not isinstance(item.get("name"), str):
            raise InvalidInput(f"items[{number}]", f"{item!r:.80} has no name", 'Write {"name": "…", "cron": "…"}')
        try:
            found = self._like_the_last(item) or self._define(**{"task": self._task, **item})
        except InvalidInput as error:
            raise InvalidInput(f"items[{number}].{error.field}", error.problem, error.fix) from None
        # A copy, because the caller may fill one dict again and again.
        self._last = (dict(item), found) if _READ_EACH_TIME.isdisjoint(item) else None
        return found

    def _like_the_last(self, item: Mapping[str, Any]) -> Definition | None:
        if self._last is None:
            return None
        before, want = self._last
        if len(item) != len(before):
            return None
        spec = want.spec
        for key, value in item.items():
            known = before.get(key)
            if key == "name" or value is known:
                continue
            if key != "trigger" or type(value) is not Every or type(known) is not Every:
                return None
            if value.spec.fixed_delay != known.spec.fixed_delay:
                return None
            spec = replace(spec, trigger=value.spec)
        digest = want.digest if spec is want.spec else digest_of(spec)
        return replace(want, name=check_name(item["name"]), spec=spec, digest=digest)
