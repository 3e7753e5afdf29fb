"""Lines of the log: what an agent sends controls no terminal, and tracebacks stay readable."""

from __future__ import annotations

import json
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.ids import printable_text
from mainspring.telemetry.log_format import JsonLineFormatter, TextFormatter

ESCAPE = "\x1b[2J\x1b[1;1H\x9b31m all is well \u202egnp.exe\x07\r"


def record(message: str, *, trace: bool = False) -> logging.LogRecord:
    error = None
    if trace:
        try:
            raise ValueError(message)
        except ValueError:
            error = sys.exc_info()
    return logging.LogRecord("mainspring.engine", logging.ERROR, "x.py", 1, "task http failed: %s", (message,), error)


@pytest.mark.parametrize("trace", [False, True])
def test_no_escape_sequence_reaches_the_terminal(trace: bool) -> None:
    line = TextFormatter().format(record(ESCAPE, trace=trace))
    assert "task http failed: \\x1b[2J\\x1b[1;1H\\x9b31m all is well \\u202egnp.exe\\x07\\r" in line
    assert not set("\x1b\x9b\u202e\x07\r") & set(line)
    assert ("\nTraceback (most recent call last):\n" in line) is trace


def test_a_json_line_has_the_text_unchanged() -> None:
    line = JsonLineFormatter().format(record(ESCAPE))
    assert "\x1b" not in line
    assert json.loads(line)["message"] == f"task http failed: {ESCAPE}"


@given(st.text())
def test_text_without_controls_is_unchanged_and_no_character_is_lost(text: str) -> None:
    shown = printable_text(text)
    assert all(char in "\n\t" or not (ord(char) < 32 or 127 <= ord(char) < 160) for char in shown)
    if shown != text:
        assert len(shown) > len(text)
    else:
        assert printable_text(shown) == shown
