"""Every page can be found from the index, every link leads to a page and a heading, and pages for users stay short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.page_commands import DOCS, ROOT

PAGES = sorted(DOCS.rglob("*.md"))
INDEX = (DOCS / "README.md").read_text(encoding="utf-8")
SHORT_PAGES = [DOCS / "README.md", DOCS / "tutorial.md", DOCS / "faq.md", *sorted((DOCS / "how-to").glob("*.md"))]
MAX_LINES = 220
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$", re.S | re.M)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_links_every_page() -> None:
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in _LINK.findall(INDEX)}
    reference = DOCS / "reference" / "README.md"  # the index of its folder
    linked |= {(reference.parent / link).resolve() for link in _LINK.findall(reference.read_text(encoding="utf-8"))}
    missing = [page for page in PAGES if "adr" not in page.parts and page not in linked]
    assert missing == [DOCS / "README.md"]
    assert DOCS / "adr" in linked


def test_the_readme_links_the_index() -> None:
    assert "(docs/README.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    for link in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), f"{link}: {sorted(anchors(target))}"


@pytest.mark.parametrize("page", SHORT_PAGES, ids=lambda page: page.name)
def test_pages_for_users_are_short(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= MAX_LINES
