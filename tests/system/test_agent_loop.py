"""Run agent_loop.py: an agent is called once a second by instances that are killed, with one key for each fire.

`make chaos` runs it for a minute.
"""

from __future__ import annotations

import os

import pytest

from tests.system.scripts import run_script

LOOP_SECONDS = int(os.environ.get("MAINSPRING_AGENT_SECONDS", "3"))
#: Seconds between two kills, on average; a short loop needs one as well.
KILL_EVERY = 3.0 if LOOP_SECONDS > 10 else 1.0


@pytest.mark.chaos
@pytest.mark.timeout(180 + 2 * LOOP_SECONDS)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_an_agent_sees_one_key_for_each_fire_and_every_fire(store: str) -> None:
    arguments = ["--store", store, "--seconds", str(LOOP_SECONDS), "--kill-every", str(KILL_EVERY)]
    assert "0 violations" in run_script("agent_loop.py", *arguments)[-1]
