"""A page that shows what its commands do not print is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.page_commands import run_page

PAGE = """
```python
# say.py
print("one", 1)
```

```console
$ python say.py{end}
{shown}
```
"""


@pytest.mark.parametrize("shown", ["one 1", "one …", "…", "…\none 1\n…"])
def test_a_page_that_is_true(shown: str, tmp_path: Path) -> None:
    run_page(PAGE.format(end="", shown=shown), tmp_path)


@pytest.mark.parametrize(
    ("end", "shown"),
    [("", "one 2"), ("", "one"), ("", "one 1\nmore"), ("", "…\ntwo"), (" &", "two"), ("", "one 2\n^C")],
)
def test_a_page_that_is_wrong(end: str, shown: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="one 1"):
        run_page(PAGE.format(end=end, shown=shown), tmp_path)


def test_a_command_without_shown_lines_must_succeed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"\$ false"):
        run_page("```console\n$ false\n```\n", tmp_path)


def test_a_block_without_the_name_of_its_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="does not begin with the name of its file"):
        run_page("```python\nprint()\n```\n", tmp_path)
