"""The health of an instance."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Health(Struct, frozen=True):
    """The health of an instance, as `ms.health()` reports it.

    `degraded`: the instance runs, but a loop cannot do its work. Promises are kept, only later.
    """

    status: Literal["ok", "degraded", "stopped"]
    #: The loops that cannot do their work, each with the error that keeps it from working.
    failing: dict[str, str] = {}
    #: Conditions that work but should be mended, for example a server that does not persist its data.
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True while the instance runs and every loop does its work."""
        return self.status == "ok"
