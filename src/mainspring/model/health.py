"""Health: whether an instance and the loops of its engine can do their work."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Health(Struct, frozen=True):
    """The health of an instance, as `ms.health()` reports it.

    `status` "degraded": the instance runs, but a loop of its engine cannot do its work, for example while the store
    cannot be reached. No work is lost; it is done later.
    """

    status: Literal["ok", "degraded", "stopped"]
    #: The name of each engine loop that cannot do its work → the error that keeps it from working.
    failing: dict[str, str] = {}
    #: Problems that a person should solve although all loops work, for example a server that does not persist its data.
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True while the instance runs and every loop does its work."""
        return self.status == "ok"
