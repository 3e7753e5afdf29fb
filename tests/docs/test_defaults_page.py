"""The table of defaults is read from the code, and a new schedule has them, made in Python and over REST."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainspring import Http, Mainspring, Retry
from mainspring.config.files import read_file
from mainspring.config.schema import get_value
from mainspring.config.settings import ServeSettings
from mainspring.model.errors import InvalidInput
from mainspring.model.instant import duration_ms
from tests.fixtures.service_client import api, ms

__all__ = ["api", "ms"]  # fixtures

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "defaults.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def table() -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import print_defaults
    finally:
        sys.path.remove(str(ROOT / "tools"))
    return print_defaults


def test_the_table_is_up_to_date(table: Any) -> None:
    assert table.block() in PAGE, "write it anew: python tools/print_defaults.py --write"


def test_a_difference_has_a_reason_and_a_reason_a_difference(table: Any) -> None:
    assert [row.name for row in table.rows() if not row.is_sound] == []


def _rest_fields(table: Any) -> dict[str, Any]:
    """Return the rows about fields of a schedule: name of the field in REST → row."""
    found = {}
    for row in table.rows():
        match = re.match(r"`([a-z]\w*)`", row.service_name)
        if match and row.python_name != "`Mainspring(url)`":
            found.setdefault(f"{match[1]} {'agent' if 'agent' in row.name.lower() else ''}".strip(), row)
    return found


def _value(text: str, field: str) -> Any:
    text = text.strip("`")
    if text in ("none", "–"):
        return None
    return duration_ms(text) if field.endswith("Ms") else int(text) if text.isdigit() else text


async def test_a_schedule_over_rest_has_the_defaults(api: httpx.AsyncClient, ms: Mainspring, table: Any) -> None:
    @ms.task
    def report() -> None: ...

    agent = (
        await api.post("/api/schedules", json={"name": "a", "intervalMs": "1h", "agentUrl": "http://x.example/"})
    ).json()
    task = (await api.post("/api/schedules", json={"name": "t", "intervalMs": "1h", "task": "report"})).json()
    fields = _rest_fields(table)
    assert {"grace_ms", "overlap", "timezone"} <= {re.sub(r"([A-Z])", r"_\1", name).lower() for name in fields}
    for name, row in fields.items():
        field, _, kind = name.partition(" ")
        if field == "timeoutMs" and kind == "agent":
            assert agent[field] is None  # agents.timeout applies to the call
            continue
        assert (agent if kind else task)[field] == _value(row.service, field), name
    policy = {
        row.service_name.strip("`").partition(".")[2]: row.service
        for row in table.rows()
        if "retryPolicy" in row.service_name
    }
    assert {name: agent["retryPolicy"][name] for name in policy} == {
        name: _value(text, name) if name.endswith("Ms") or not text[0].isdigit() else float(text)
        for name, text in policy.items()
    }


async def test_a_schedule_in_python_has_the_defaults(table: Any) -> None:
    ms = Mainspring("memory://")

    @ms.task
    def report() -> None: ...

    made = await ms.schedule("task", report, every="1h")
    agent = await ms.schedule("agent", Http("http://x.example/"), every="1h")
    for row in table.rows():
        match = re.fullmatch(r"`(\w+)=`", row.python_name)
        if match is None or match[1] not in made.to_dict() or match[1] in ("every", "name", "namespace"):
            continue
        value = getattr(agent if "agent" in row.name.lower() else made, match[1])
        wanted = row.python.strip("`")
        if match[1] in ("timeout", "recovery", "max_crashes"):
            assert value is None, row.name  # the task's, or that of the call
        elif match[1] in ("grace", "replay_age", "jitter", "spread"):
            assert duration_ms(value) == duration_ms(wanted), row.name
        else:
            assert str(value).lower() == wanted.lower(), row.name
    await ms.close()


@pytest.mark.parametrize("backoff", ["exponential", "linear"])
def test_retry_takes_the_words_of_rest(backoff: Any) -> None:
    own = {"base": 3.0} if backoff == "exponential" else {"multiplier": 3.0}
    assert Retry(backoff=backoff, initial_delay="2s", backoff_multiplier=3.0) == Retry(
        backoff=backoff, initial="2s", **own
    )


def test_retry_refuses_a_wrong_value_under_its_word_of_rest() -> None:
    with pytest.raises(InvalidInput, match=r"retry\.base: 0 is out of range"):
        Retry(backoff_multiplier=0)


def test_the_configuration_takes_the_words_of_python(tmp_path: Path) -> None:
    path = tmp_path / "mainspring.yaml"
    path.write_text("scheduler: {concurrency: 3}\nretry: {backoff: linear}\n")
    assert read_file(path, {}).values == {"scheduler.workers": 3, "retry.backoff_strategy": "linear"}
    path.write_text("scheduler: {concurrency: 3, workers: 4}\n")
    with pytest.raises(InvalidInput, match="means the same setting"):
        read_file(path, {})


def test_every_key_of_the_table_exists(table: Any) -> None:
    for row in table.rows():
        for key in re.findall(r"`((?:scheduler|agents|limits)\.\w+)`", row.service_name):
            get_value(ServeSettings(), key.replace("scheduler.concurrency", "scheduler.workers"))


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("cronExpression", "cron="),
        ("intervalMs", "every="),
        ("delayMs", "'delay'"),
        ("graceMs", "'grace'"),
        ("startAt", "'start'"),
        ("onExhausted", "'on_exhausted'"),
        ("retryPolicy", "retry=Retry"),
        ("timezone", "tz="),
        ("enabled", "ms.pause"),
        ("agentUrl", "Http("),
    ],
)
async def test_an_error_in_python_names_the_word_of_python(word: str, ours: str) -> None:
    call: Any = Mainspring("memory://").schedule
    with pytest.raises(InvalidInput, match=re.escape(ours)):
        await call("x", Http("http://x.example/"), every="1h", **{word: "1h"})
    http: Any = Http
    with pytest.raises(InvalidInput, match="method="):
        http("http://x.example/", httpMethod="GET")


async def test_an_error_names_the_word_of_this_side(api: httpx.AsyncClient) -> None:
    answer = await api.post("/api/schedules", json={"name": "x", "cron": "@daily", "agentUrl": "http://x.example/"})
    assert "cronExpression" in answer.text
    with pytest.raises(InvalidInput, match="Write tz="):
        await Mainspring("memory://").schedule("x", Http("http://x.example/"), every="1h", timezone="UTC")  # type: ignore[call-arg]  # the mistake
