"""How an instance is."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Health(Struct, frozen=True):
    """`degraded`: it runs, but a loop cannot do its work; what was promised is kept, later."""

    status: Literal["ok", "degraded", "stopped"]
    #: By loop: what keeps it from its work.
    failing: dict[str, str] = {}
    #: What works and should be mended all the same: a server that does not persist, for example.
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True while it runs and every loop does its work."""
        return self.status == "ok"
