"""The runner of a plan: each run of a part is a process of its own, and contenders alternate run by run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.contenders.common import MARK
from bench.envs import CONTENDERS, PLACE, ROOT, NotInstalled, python_of
from bench.plan import Part, Scenario
from bench.redis_server import Keyspaces
from bench.server import Databases, Unavailable
from bench.stats import condensed


class Failed(Exception):
    """Raised if a contender's process ended without figures."""


@dataclass
class Measured:
    """A part of a scenario with the figures of its runs, or the reason why it was not run."""

    part: Part
    runs: list[dict[str, Any]] = field(default_factory=list)
    not_run: str | None = None


Results = dict[str, list[Measured]]


class Runner:
    """Runs the parts of a plan; owns their interpreters, folders, prepared files and servers."""

    def __init__(
        self, folder: Path, *, here: bool = False, reuse: bool = False, databases: Databases | None = None
    ) -> None:
        self._folder = folder
        self._here = here
        self._reuse = reuse
        self._source = os.environ.get("MAINSPRING_SRC") or str(ROOT / "src")
        self._pythons: dict[str, str | NotInstalled] = {}
        self._prepared: dict[str, tuple[Path, dict[str, Any]]] = {}
        self._databases = databases or Databases()
        self._keyspaces = Keyspaces()
        #: Scenario → seconds that it took.
        self.seconds: dict[str, float] = {}

    def run(self, plan: Sequence[Scenario], runs: int | None, tell: Callable[[str, int], None]) -> Results:
        """Run all scenarios in order; call `tell` with the next step and the number of steps done."""
        results: Results = {}
        done = 0
        for scenario in plan:
            began = time.monotonic()
            measured = results[scenario.key] = [Measured(part) for part in scenario.parts]
            times = runs or scenario.runs
            for number in range(times):
                for one in measured:
                    tell(f"{scenario.title} · {one.part.label} · run {number + 1}", done)
                    done += 1
                    if one.not_run is None and number < (one.part.runs or times):
                        self._measure(one)
            self.seconds[scenario.key] = round(time.monotonic() - began, 1)
        return results

    def _measure(self, one: Measured) -> None:
        try:
            one.runs.append(condensed(self._run_part(one.part)))
        except NotInstalled as reason:
            one.not_run = f"does not install: {reason}"
        except (Failed, Unavailable) as reason:
            one.not_run = str(reason)

    def _run_part(self, part: Part) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            parameters = dict(part.parameters)
            if CONTENDERS[part.contender].on_redis:
                return self._run_on_redis(part, folder, parameters)
            if CONTENDERS[part.contender].on_server:
                return self._run_on_server(part, folder, parameters)
            if part.prepare is not None:
                made, figures = self._prepare(part)
                shutil.copytree(made, folder, dirs_exist_ok=True)
                parameters["first_ms"] = figures["first_ms"]
            return self._spawn(part.contender, part.job, folder, parameters, part.timeout)

    def _run_on_server(self, part: Part, folder: str, parameters: dict[str, Any]) -> dict[str, Any]:
        template = ""
        if part.prepare is not None:
            job, wanted = part.prepare

            def fill(url: str) -> dict[str, Any]:
                return self._spawn(part.contender, job, folder, {"url": url, **wanted}, 1_200)

            template, figures = self._databases.template(json.dumps([part.contender, *part.prepare]), fill)
            parameters["first_ms"] = figures["first_ms"]
        with self._databases.fresh(template) as url:
            return self._spawn(part.contender, part.job, folder, {"url": url, **parameters}, part.timeout)

    def _run_on_redis(self, part: Part, folder: str, parameters: dict[str, Any]) -> dict[str, Any]:
        with self._keyspaces.fresh() as url:
            if not CONTENDERS[part.contender].on_server:
                return self._spawn(part.contender, part.job, folder, {"url": url, **parameters}, part.timeout)
            with self._databases.fresh() as database:
                both = {"url": database, "broker": url, **parameters}
                return self._spawn(part.contender, part.job, folder, both, part.timeout)

    def _prepare(self, part: Part) -> tuple[Path, dict[str, Any]]:
        """Create the prepared folder of a part, or reuse it; each run gets a copy."""
        assert part.prepare is not None
        job, parameters = part.prepare
        schema = b"".join(path.read_bytes() for path in sorted(Path(self._source).rglob("backends/sqlite/sql/*.sql")))
        said = json.dumps([part.contender, job, parameters]).encode()
        key = hashlib.sha256(schema + said).hexdigest()[:16]
        if key in self._prepared:
            return self._prepared[key]
        folder = PLACE / "prepared" / key
        stamp = folder.with_suffix(".json")
        if not (self._reuse and stamp.exists()):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            figures = self._spawn(part.contender, job, str(folder), parameters, 1_200)
            stamp.write_text(json.dumps(figures))
        self._prepared[key] = folder, json.loads(stamp.read_text())
        return self._prepared[key]

    def close(self) -> None:
        """Drop prepared databases, and remove prepared files unless they will be reused."""
        self._databases.close()
        if not self._reuse:
            for folder, _ in self._prepared.values():
                shutil.rmtree(folder, ignore_errors=True)
                folder.with_suffix(".json").unlink(missing_ok=True)

    def _spawn(
        self, contender: str, job: str, folder: str, parameters: dict[str, Any], timeout: float
    ) -> dict[str, Any]:
        python = self._python(contender)
        os.sync()  # pages written by the copy or by the last run must not be flushed during this run
        ours = CONTENDERS[contender].kind == "ours"
        path = os.pathsep.join((self._source, str(ROOT)) if ours else (str(ROOT),))
        environment = {**os.environ, "PYTHONPATH": path, "MAINSPRING_SRC": self._source, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [python, "-m", CONTENDERS[contender].module, job, json.dumps({"folder": folder, **parameters})]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=folder, env=environment, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{job} did not end within {timeout:g} s") from None
        found = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
        if done.returncode or not found:
            said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
            raise Failed(f"{job} failed: {said[-1][:300]}")
        figures: dict[str, Any] = json.loads(found[-1].removeprefix(MARK))
        return figures

    def _python(self, contender: str) -> str:
        if contender not in self._pythons:
            try:
                self._pythons[contender] = python_of(CONTENDERS[contender], here=self._here)
            except NotInstalled as reason:
                self._pythons[contender] = reason
        found = self._pythons[contender]
        if isinstance(found, NotInstalled):
            raise found
        return found
