"""The types are part of the API: right uses pass `mypy --strict`, each wrong one is refused where it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ERROR = re.compile(r"^(?P<file>.+?):(?P<line>\d+): error: (?P<text>.*?)  \[(?P<code>[\w-]+)\]$")

Found = dict[str, dict[int, set[str]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """File → line → error codes, from one run of mypy under the project's own configuration."""
    cache = tmp_path_factory.mktemp("mypy")
    files = [str(HERE / name) for name in ("good.py", "bad.py")]
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--strict", "--no-error-summary", "--no-pretty"]
    output, errors, _ = api.run([*options, "--cache-dir", str(cache), *files])
    assert not errors, errors
    answer: Found = {"good.py": {}, "bad.py": {}}
    for line in output.splitlines():
        match = ERROR.match(line)
        if match is None:
            assert ": note: " in line, line
            continue
        name = Path(match["file"]).name
        answer.setdefault(name, {}).setdefault(int(match["line"]), set()).add(match["code"])
    return answer


def marked() -> dict[int, set[str]]:
    """Line → the codes that its mark names."""
    lines = enumerate((HERE / "bad.py").read_text().splitlines(), 1)
    return {number: set(line.partition("# E: ")[2].split()) for number, line in lines if "  # E: " in line}


def test_right_uses_pass(found: Found) -> None:
    assert found["good.py"] == {}
    assert set(found) == {"good.py", "bad.py"}  # and nothing in the package itself is complained about


def test_wrong_uses_are_refused_exactly_where_they_stand(found: Found) -> None:
    expected = marked()
    assert len(expected) > 60
    assert found["bad.py"] == expected
