"""The statements of docs/brokers.md agree with the code: methods, options, defaults, commands."""

from __future__ import annotations

import re
from pathlib import Path

from mainspring.backends.redis import broker as redis_streams
from mainspring.cli.broker import broker
from mainspring.engine.broker.dispatcher import MAX_EVENT_BYTES, MAX_OUTBOX_MESSAGES
from mainspring.engine.work.hint_inbox import MAX_NAMED_CLAIM
from mainspring.ports.broker import Broker, BrokerLimits
from mainspring.runtime import broker_url as url

DOCUMENT = (Path(__file__).parents[2] / "docs" / "brokers.md").read_text(encoding="utf-8")


def test_the_verbs_are_those_of_the_port() -> None:
    named = re.search(r"`ports/broker.py`: (.*?)\. A broker", DOCUMENT, re.S)
    assert named is not None
    verbs = {verb for words in re.findall(r"`([a-z_/]+)[`(]", named[1]) for verb in words.split("/")}
    have = {name for name in vars(Broker) if not name.startswith("_") and name != "limits"}
    assert verbs == have


def test_the_options_and_their_defaults_are_those_of_the_code() -> None:
    limits = BrokerLimits()
    for option in (*url._BROKER_OPTIONS, "prefix"):
        assert f"`{option}`" in DOCUMENT, option
    assert f"| `redeliver_after` | {limits.redeliver_after // 1000} s |" in DOCUMENT
    assert f"| `max_deliveries` | {limits.max_deliveries} |" in DOCUMENT
    for figure in (limits.capacity, limits.kept, limits.dead, MAX_OUTBOX_MESSAGES):
        assert f"{figure:_}".replace("_", " ") in DOCUMENT, figure
    assert f"{MAX_EVENT_BYTES // 1024} KiB" in DOCUMENT
    assert f"up to {MAX_NAMED_CLAIM}" in DOCUMENT
    assert redis_streams.DEFAULT_STREAM in DOCUMENT


def test_the_commands_exist() -> None:
    assert set(re.findall(r"^\$ mainspring broker (\w+)", DOCUMENT, re.M)) == set(broker.commands)
