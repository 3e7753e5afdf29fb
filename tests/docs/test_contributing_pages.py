"""Files, links and the package diagram of the pages exist as they are named; no document names a moved module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.print_packages import block

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "mainspring"
PAGES = sorted(
    [
        ROOT / "CONTRIBUTING.md",
        ROOT / "README.md",
        ROOT / "bench" / "README.md",
        *(ROOT / "docs").glob("**/*.md"),
    ]
)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
#: The page that describes the move may name old modules.
LAYOUT_DECISION = ROOT / "docs" / "adr" / "0019-layout.md"

#: Modules by their package before the layout step (decision 19), none of which exists any more.
MOVED = {
    "mainspring": (
        "stores brokers agent_door bulk comparing copying depends editing handle host idle joining keys ledger_cover "
        "paging payload registry serving signals supervisor verify"
    ),
    "mainspring.agents": "turns",
    "mainspring.api": (
        "access access_log acting base buckets callbacks comparing components drafting executions ops reading "
        "schedules server stream"
    ),
    "mainspring.compat": "listening",
    "mainspring.config": "keys shown",
    "mainspring.engine": (
        "batcher brokering bus calling crossing demand direct dispatcher early ends everywhere heart hold inbox inline "
        "intake line prefetch recorder riders runtime service slots store_time telling term watchdog watcher worker"
    ),
    "mainspring.executors": "child lazily moment",
    "mainspring.model": "kept",
    "mainspring.ports": "following joining",
    "mainspring.rules": "declaring draft pool scheduling",
    "mainspring.telemetry": "lines logging",
    "mainspring.testing": (
        "compare contract_apply contract_base contract_claim contract_due contract_early contract_find contract_kept "
        "contract_leases contract_moves contract_purge contract_restore expecting factories failpoints faulty_broker "
        "history_fires history_report history_runs home model_check scenario simulated_ground simulated_loop "
        "simulated_plan simulated_postgres simulated_store simulated_wire simulated_work simulation simulation_main "
        "virtual"
    ),
}
OLD_PATHS = [f"{package}.{module}" for package, modules in MOVED.items() for module in modules.split()]

#: A file or folder in a code span: `engine/loop.py`, `tools/mutants_*.py`, `tests/x.py::test_y`, `api/routes/`.
_FILE = re.compile(r"`((?:[\w.*-]+/)*[\w.*-]+\.(?:py|md|sql|lua|toml)|(?:[\w*-]+/)+)(?:::[\w\[\]:]+)?`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read_prose(page: Path) -> str:
    """Return the text of a page without its fenced blocks, which show commands and programs of users."""
    return re.sub(r"^[ ]*```.*?^[ ]*```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", read_prose(page), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def exists(name: str) -> bool:
    """Return True for a path below the repository, the package or a page's own folder, or for the name of any file."""
    if "/" not in name:
        folders = (SOURCE, ROOT / "tests", ROOT / "proof", ROOT / "tools")
        return (ROOT / name).exists() or any(any(folder.glob(f"**/{name}")) for folder in folders)
    return any(any(folder.glob(name.rstrip("/"))) for folder in (ROOT, SOURCE, ROOT / "docs", ROOT / "bench"))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = set(_FILE.findall(read_prose(page)))
    shown_to_users = {"mainspring.toml", "mainspring.yaml", "shop/jobs.py", "five.py"}
    own = re.findall(r"^# (\S+\.\w+)$", page.read_text(encoding="utf-8"), re.M)
    shown_to_users |= {name for path in own for name in (path, Path(path).name)}
    if page == LAYOUT_DECISION:
        shown_to_users |= {"stores/", "brokers/", "fast/"}
    assert [name for name in sorted(named - shown_to_users) if not exists(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_relative_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in _LINK.findall(read_prose(page)):
        if link.startswith(("http:", "https:")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors_of(target), link


def test_the_package_diagram_is_printed_from_the_imports() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert block() in page, "print it anew: python tools/print_packages.py --write"


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=page_id)
def test_no_page_names_a_module_that_moved(page: Path) -> None:
    if page == LAYOUT_DECISION:
        return
    named = set(re.findall(r"\bmainspring(?:\.\w+)+", page.read_text(encoding="utf-8")))
    assert [old for old in OLD_PATHS if any(name == old or name.startswith(f"{old}.") for name in named)] == []


def test_the_moved_modules_are_gone() -> None:
    paths = [ROOT / "src" / old.replace(".", "/") for old in OLD_PATHS]
    assert [path for path in paths if path.is_dir() or path.with_suffix(".py").exists()] == []
