"""What the page about brokers says is so."""

from __future__ import annotations

import re
from pathlib import Path

from mainspring.brokers import redis_streams, url
from mainspring.cli.broker import broker
from mainspring.engine.dispatcher import BUFFER, MAX_EVENT
from mainspring.engine.inbox import ASK
from mainspring.ports.broker import Broker, Limits

PAGE = (Path(__file__).parents[2] / "docs" / "brokers.md").read_text(encoding="utf-8")


def test_the_verbs_are_those_of_the_port() -> None:
    named = re.search(r"`ports/broker.py`: (.*?)\. A broker", PAGE, re.S)
    assert named is not None
    verbs = {verb for words in re.findall(r"`([a-z/]+)[`(]", named[1]) for verb in words.split("/")}
    have = {name for name in vars(Broker) if not name.startswith("_") and name != "limits"}
    assert verbs == have


def test_the_options_and_their_defaults_are_those_of_the_code() -> None:
    limits = Limits()
    for option in (*url._OWN, "prefix"):
        assert f"`{option}`" in PAGE, option
    assert f"(`{limits.redeliver_after // 1000}s`)" in PAGE
    assert f"`max_deliveries` ({limits.max_deliveries})" in PAGE
    for figure in (limits.capacity, limits.kept, limits.dead, BUFFER):
        assert f"{figure:_}".replace("_", " ") in PAGE, figure
    assert f"{MAX_EVENT // 1024} KiB" in PAGE
    assert f"up to {ASK}" in PAGE
    assert redis_streams.DEFAULT_STREAM in PAGE


def test_the_commands_exist() -> None:
    assert set(re.findall(r"^\$ mainspring broker (\w+)", PAGE, re.M)) == set(broker.commands)
