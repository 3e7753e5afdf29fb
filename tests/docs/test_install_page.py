"""The page about installing names every extra, and every extra that an error text names."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_page_names_every_extra() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.M) == sorted(PROJECT["optional-dependencies"])
    for extras in re.findall(r"(?:checkout|whl|\.)\[([\w,]+)\]", PAGE):
        assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


def test_every_error_text_names_an_extra_of_the_page() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    named = {extra for text in texts for extra in re.findall(r"mainspring\[(\w+)\]", text)}
    assert named == set(PROJECT["optional-dependencies"])
    assert "`Install it: pip install 'mainspring[serve]'`" in PAGE


def test_the_name_of_the_wheel_and_the_version_of_python_are_right() -> None:
    assert f"mainspring-{PROJECT['version']}-py3-none-any.whl" in PAGE
    assert f"Python {PROJECT['requires-python'].removeprefix('>=')} or newer" in PAGE


def test_the_version_is_printed() -> None:
    command = [sys.executable, "-m", "mainspring.cli.main", "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert PROJECT["version"] in printed
