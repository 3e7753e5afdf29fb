"""Fixture that runs the pytest plugin as a user would: a file of tests in an empty folder, warnings as errors."""

from __future__ import annotations

from typing import Any

import pytest

import mainspring.testing  # noqa: F401 - what runs in this process must not load it a second time
from tests.testing.trial import SHOP, Run


@pytest.fixture
def tested(pytester: pytest.Pytester) -> Run:
    """Return a function that runs tests, which may use the shop program, in a folder of their own."""

    def run(tests: str, *options: str, shop: bool = True, inprocess: bool = True) -> pytest.RunResult:
        source = (SHOP if shop else "    import pytest\n") + "\n" + tests
        pytester.makepyfile(source)
        how: dict[str, Any] = {} if inprocess else {"timeout": 60}
        runner = pytester.runpytest_inprocess if inprocess else pytester.runpytest_subprocess
        fixed = ["-Werror", "-pno:cacheprovider", "-pno:schemathesis"]  # that plugin costs every start 2 s
        if "-pno:asyncio" not in options:
            fixed.append("-oasyncio_default_fixture_loop_scope=function")
        result = runner(*fixed, *options, **how)
        assert not (pytester.path / "must-not-be-made.db").exists()
        return result

    return run
