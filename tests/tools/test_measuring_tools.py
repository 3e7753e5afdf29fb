"""Each measuring tool finds what was planted in a small source tree, and passes on a clean one."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import complexity  # noqa: E402
import count_words  # noqa: E402
import outside_attributes  # noqa: E402
import package_cycles  # noqa: E402
import print_packages  # noqa: E402
import public_names  # noqa: E402


def plant(folder: Path, **files: str) -> list[str]:
    """Write a source tree, `a__b` as a/b.py, and return the arguments that point a tool to it."""
    for name, text in {"__init__": "", **files}.items():
        path = folder / "mainspring" / (name if name == "__init__" else name.replace("__", "/"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text)
    return ["--src", str(folder / "mainspring")]


# ── words ──────────────────────────────────────────────────────────────────


def test_words_of_dialect_are_found_in_docstrings_and_comments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = '''"""Tell whoever asks."""
NAME = "nobody"  # somebody else's
# Wait for so
# many seconds.
'''
    (tmp_path / "mainspring" / "b").mkdir(parents=True)
    (tmp_path / "mainspring" / "b" / "c.lua").write_text("local who = 1\n-- Nobody waits.\n")
    assert count_words.main([*plant(tmp_path, a__one=code), "--list"]) == 1
    shown = capsys.readouterr().out
    for place in ("a/one.py:1: whoever", "a/one.py:2: somebody", "a/one.py:3: so many", "b/c.lua:2: Nobody"):
        assert place in shown
    assert count_words.count(tmp_path / "mainspring")["a"].so_many == 1
    assert count_words.count(tmp_path / "mainspring")["a"].persons == 2, "a string is no prose"


def test_few_words_of_dialect_among_thousands_are_within_the_goal(tmp_path: Path) -> None:
    text = f'"""Wait so long for whom it concerns: {"word " * 1_000}"""\n'
    assert count_words.main(plant(tmp_path, a__one=text)) == 0
    assert count_words.main(plant(tmp_path, a__two="# So often.\n\n# So much.\n\n# So soon.\n")) == 1


# ── packages ───────────────────────────────────────────────────────────────


def test_a_cycle_between_packages_is_found_even_through_a_function(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = "def ask():\n    from mainspring.a import one\n"
    arguments = plant(
        tmp_path, a__one="from mainspring.b.two import ask\n", b__two=late, c__three="import mainspring.a.one"
    )
    assert package_cycles.main(arguments) == 1
    shown = capsys.readouterr().out
    assert "cycles between packages: 1 (by imports at module level alone: 0)" in shown
    assert "  module    a/one.py:1: a.one → b.two\n  function  b/two.py:2: b.two → a.one\n" in shown
    assert package_cycles.main([*arguments, "--modules"]) == 1
    assert print_packages.main(arguments) == 1
    assert "c --> a_and_b" in capsys.readouterr().out


def test_imports_for_types_and_inside_a_package_are_no_cycle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mainspring.a.one import One\n"
    arguments = plant(
        tmp_path,
        a__one="from mainspring.b import two\nfrom . import other\n",
        a__other="from .one import x",
        b__two=typed,
    )
    assert package_cycles.main(arguments) == 0
    assert "3 at module level, 0 in functions, 1 for types" in capsys.readouterr().out
    assert package_cycles.main([*arguments, "--modules"]) == 1, "between modules it is one"


def test_a_name_of_the_root_counts_as_its_module(tmp_path: Path) -> None:
    root = "if TYPE_CHECKING:\n    from mainspring.app.door import Door\n"
    arguments = plant(
        tmp_path, __init__=root, app__door="import mainspring.a.one\n", a__one="from mainspring import Door"
    )
    assert package_cycles.main(arguments) == 1


def test_the_diagram_of_packages_shows_no_arrow_that_follows_from_others(tmp_path: Path) -> None:
    top = "import mainspring.b.two\nimport mainspring.c.three\n"
    late = "def ask():\n    import mainspring.c.three\n"
    arguments = plant(tmp_path, a__one=top, b__two=late, c__three="", d__four="")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{print_packages.BEGIN}\n{print_packages.END}\nafter\n")
    assert print_packages.main([*arguments, "--write", str(page)]) == 0
    drawn = "flowchart TD\n    d\n    a --> b\n    b -.-> c"
    assert print_packages.diagram(tmp_path / "mainspring") == drawn
    written = f"before\n{print_packages.BEGIN}\n```mermaid\n{drawn}\n```\n{print_packages.END}\nafter\n"
    assert page.read_text() == written
    page.write_text("no markers")
    with pytest.raises(SystemExit, match="has no lines"):
        print_packages.main([*arguments, "--write", str(page)])


# ── attributes ─────────────────────────────────────────────────────────────

WORKER = """
class Worker:
    name = "worker"

    def __init__(self):
        self.inbox, self._cache = None, {}

    def copy(self):
        other = Worker()
        other._cache = self._cache
        return other
"""


@pytest.mark.parametrize(
    "statement",
    ["worker.inbox = 1", "self.worker.name += '2'", "worker.inbox, _ = 1, 2", "setattr(worker, 'inbox', 1)"],
)
def test_an_attribute_assigned_from_outside_is_found(
    statement: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wiring = f"class Runtime:\n    def wire(self, worker):\n        {statement}\n"
    assert outside_attributes.main(plant(tmp_path, engine__work__worker=WORKER, runtime__runtime=wiring)) == 1
    assert "from outside: 1; goal 0\n  runtime/runtime.py:3: " in capsys.readouterr().out


def test_own_attributes_values_and_private_records_are_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean = """
class Claim(Struct):
    inbox: int = 0

class _Door:
    def __init__(self):
        self.inbox = 0

class Runtime:
    def wire(self, door, claim, one: Claim, attempt):
        self.inbox = door.size = claim.inbox = one.inbox = 1
        attempt.trust = 2
"""
    shared = "class Attempt(Struct):\n    trust: int\n"
    use = "def use(one: _Door, claim: Claim): claim.inbox = 2\n"
    arguments = plant(
        tmp_path,
        engine__worker=WORKER,
        engine__claim=clean,
        engine__use=use,
        ports__executor=shared,
        cli__a="a.name = 1",
    )
    assert outside_attributes.main(arguments) == 0
    assert "Attempt fields written outside: 1\n  engine/claim.py:12: attempt.trust\n" in capsys.readouterr().out
    assert outside_attributes.main(plant(tmp_path, engine__more="def open(door): door.inbox = 1")) == 1


# ── complexity ─────────────────────────────────────────────────────────────


def test_a_complex_function_and_a_long_file_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("radon")
    code = "class Rule:\n    def judge(self, x):\n" + "        if x:\n            x += 1\n" * 10
    assert complexity.main(plant(tmp_path, a__one=code, a__two="\n" * 451)) == 1
    shown = capsys.readouterr().out
    assert "over 10: 1 (100.0 %)" in shown
    assert "   11 a/one.py:2 Rule.judge\nfiles over 450 lines: 1\n  451 a/two.py\n" in shown
    simple = "\n".join(f"def f{number}(): pass" for number in range(30))
    assert complexity.main(plant(tmp_path, a__three=simple)) == 0, "1 of 31"


# ── public names ───────────────────────────────────────────────────────────


def test_public_names_are_those_of_all_else_those_defined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted_kit.py").write_text("import os\ndef two(): ...\ndef _three(): ...\nclass Four: ...\n")
    (tmp_path / "planted_door.py").write_text('from planted_kit import two, Four\n__all__ = ["two"]\nfive = 5\n')
    (tmp_path / "planted_contract.py").write_text("class Bench: ...\nclass MineContract: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = ("planted_kit", "planted_door", "planted_contract")
    assert [name for module in modules for name in public_names.exports(module)] == [
        "export planted_kit.two",
        "export planted_kit.Four",
        "export planted_door.two",
        "export planted_contract.MineContract",
    ]


def test_no_saved_public_name_is_lost() -> None:
    saved = public_names.SAVED.read_text(encoding="utf-8").splitlines()
    lost = [line for line in public_names.differences(saved, public_names.public_names()) if line.startswith("-")]
    assert lost == []


def test_commands_are_found_with_their_options() -> None:
    @click.group()
    def top() -> None: ...

    @top.command()
    @click.option("--all/--none", "-a", required=True)
    @click.argument("names", nargs=-1)
    def copy(**_: object) -> None: ...

    assert list(public_names.commands(top, "top")) == [
        "command top",
        "command top copy",
        "command top copy option --all/-a/--none (flag, required)",
        "command top copy argument names (text, many)",
    ]


def test_members_are_found_with_their_signatures() -> None:
    class Door:
        def __init__(self) -> None:
            self.url = ""

        @property
        def size(self) -> int:
            return 1

        async def open(self, wait: float = 1.0) -> bool:
            return bool(wait)

        def _shut(self) -> None: ...

    assert list(public_names.members(Door, "Door", Door())) == [
        "member Door.open: async (self, wait: 'float' = 1.0) -> 'bool'",
        "member Door.size",
        "member Door.url",
    ]


def test_a_public_name_that_was_lost_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "names.txt"
    saved.write_text("key a\nkey b\n")
    monkeypatch.setattr(public_names, "public_names", lambda: ["key b", "key c"])
    assert public_names.main(["--compare", str(saved)]) == 1
    assert capsys.readouterr().out == "- key a\n+ key c\n"
    monkeypatch.setattr(public_names, "public_names", lambda: ["key a", "key b", "key c"])
    assert public_names.main(["--compare", str(saved)]) == 0
    assert public_names.main([]) == 0
