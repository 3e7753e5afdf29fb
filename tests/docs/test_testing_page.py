"""The examples of docs/testing.md are files; they are written down and run together as a user would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mainspring.testing  # noqa: F401 - what runs in this process must not load it a second time

pytest_plugins = ["pytester"]

DOCUMENT = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
FILES = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", DOCUMENT, re.S)
INI = re.findall(r"```ini\n# (pytest\.ini)\n(.*?)```", DOCUMENT, re.S)
EXTRA = """
import pytest
import shop


def test_the_message_on_the_page(mainspring):
    mainspring.travel_to("2026-03-28T22:00Z")
    shop.order.sync.enqueue("acme")
    mainspring.run_due()
    with pytest.raises(AssertionError) as failure:
        mainspring.assert_enqueued(shop.send, args=("acme",))
    assert str(failure.value).strip() == {message!r}
"""


def test_every_example_of_the_page_passes(pytester: pytest.Pytester) -> None:
    assert len(FILES) == len(re.findall("```python", DOCUMENT)) == 6
    for name, text in FILES + INI:
        (pytester.path / name).write_text(text, encoding="utf-8")
    shown = re.search(r"```text\n(.*?)```", DOCUMENT, re.S)
    assert shown is not None
    (pytester.path / "test_message.py").write_text(EXTRA.format(message=shown.group(1).strip()), encoding="utf-8")
    options = (
        "-Werror",
        "-pno:cacheprovider",
        "-pno:schemathesis",
        "-oasyncio_default_fixture_loop_scope=function",
    )
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=7)
    assert not (pytester.path / "shop.db").exists()


def test_plain_tests_need_pytest_alone(pytester: pytest.Pytester) -> None:
    for name, text in FILES:
        if name != "test_async.py":
            (pytester.path / name).write_text(text, encoding="utf-8")
    pytester.runpytest_inprocess("-Werror", "-pno:cacheprovider", "-pno:schemathesis", "-pno:asyncio").assert_outcomes(
        passed=5
    )
