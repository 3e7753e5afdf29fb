"""The origin of a task: the importable name of its function, by which instances tell one program from another."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def origin_of(function: Callable[..., Any]) -> str:
    """Return the module and qualified name of a function: `shop.jobs:send`. "" if the function cannot be imported.

    A function of the program's main module gets the name by which another program would import this module, so that
    `python app.py` and `mainspring run app:ms` agree.
    """
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or type(function).__module__
    if module in ("__main__", "__mp_main__"):  # the second: in a child of multiprocessing
        module = _name_of_main()
    return f"{module}:{name}" if module else ""


def _name_of_main() -> str:
    """Return the importable name of the program's main module, "" if it has none, as in an interactive session."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":  # python -m shop.app
        return str(spec.name)
    file = getattr(main, "__file__", None)
    if file is None or str(file).startswith("<"):
        return ""
    path = Path(file).resolve()
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)
