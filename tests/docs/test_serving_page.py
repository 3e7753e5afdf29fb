"""The statements of docs/serving.md agree with the code: keys, options, variables, the example file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from mainspring.config.files import CONFIG_FILE_NAMES, read_file
from mainspring.config.schema import KEYS, VARIABLES
from tools.print_keys import table

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


def test_the_table_of_keys_is_printed_from_the_code() -> None:
    shown = re.search(r"<!-- keys:begin -->\n(.*?)\n<!-- keys:end -->", DOCUMENT, re.S)
    assert shown is not None
    assert shown[1] == table(), "print it anew: python -m tools.print_keys"


def test_the_example_is_a_right_file(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.S)
    (tmp_path / "example.yaml").write_text(example)
    found = read_file(tmp_path / "example.yaml", {})
    assert found.values["server.public_url"] == "https://cron.example"
    assert len(found.values) >= 10


@pytest.mark.parametrize("name", [name for name in VARIABLES if not name.startswith("MAINSPRING")])
def test_every_foreign_variable_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in DOCUMENT


def test_the_options_are_those_of_the_command() -> None:
    from mainspring.cli.serve import serve

    given = {option for parameter in serve.params for option in parameter.opts if option != "--log-level"}
    assert given == set(re.findall(r"`(--[a-z-]+)", DOCUMENT.partition("## Control access")[0]))


def test_the_statements_about_the_package_hold() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "serve" in extras
    own = DOCUMENT.partition("If you come from another scheduler")[0]
    named = set(re.findall(r"`([a-z]+\.[a-z_]+)(?:: [a-z0-9]+)?`", own))
    assert named - set(CONFIG_FILE_NAMES) <= set(KEYS)
