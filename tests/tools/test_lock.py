"""requirements.lock agrees with pyproject.toml: each dependency is there, at an allowed version, with hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
EXTRAS = ("serve", "postgres", "redis")


def test_every_dependency_is_locked_at_an_allowed_version_with_hashes() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    blocks = re.findall(r"^([a-z].*?)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE)
    assert len(blocks) == len(re.findall(r"^[a-z]", text, re.MULTILINE))
    locked = {}
    for name, version in (one[0].partition(";")[0].split("==") for one in blocks):
        locked[name] = version.strip()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    for requirement in map(Requirement, wanted):
        version = locked[requirement.name.lower().replace("_", "-")]
        assert requirement.specifier.contains(version), (str(requirement), version)
    assert "://" not in text.replace("#     pip", "")


def test_the_floors_leave_out_versions_with_known_faults() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    serve = {one.name: one.specifier for one in map(Requirement, project["optional-dependencies"]["serve"])}
    assert not serve["aiohttp"].contains("3.14.2")
    assert not serve["starlette"].contains("0.49.0")
