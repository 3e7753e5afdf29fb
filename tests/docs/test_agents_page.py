"""The examples of docs/agents.md run and print what the page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

from mainspring import AgentSettings, Http, Mainspring, State
from mainspring.api.app import build
from mainspring.api.route_table import CALLBACK_PATH, ENDPOINTS
from mainspring.app.internals import host_of
from tests.agents.agent_process import serving

DOCUMENT = (Path(__file__).parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")
CALL, WORK, SETTINGS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.S)


def test_the_first_example_calls_an_agent(tmp_path: Path) -> None:
    program = CALL.replace("5678", str(_free_port()))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    said = 'called with {"reportType":"daily"} signed True attempt 1\n200 {"pages": 3}\n'
    assert (done.stdout, done.returncode) == (said, 0), done.stderr


async def test_a_slow_agent_calls_back(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(compile(WORK, "agents.md", "exec"), names)
    agent = web.Application()
    agent.router.add_post("/", names["start"])
    runner = web.AppRunner(agent)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    app = Mainspring(f"sqlite:///{tmp_path}/ms.db")
    async with serving(build(app)) as url:
        host_of(app).enable_agents(AgentSettings(public_url=url))
        async with app.running():
            await app.schedule("pages", Http(f"http://127.0.0.1:{runner.addresses[0][1]}/"), every="1h")
            run = await app.trigger("pages")
            assert (await run.result(timeout="20s")).body == '{"pages": 3}'
            assert await run.state() is State.SUCCEEDED
    await runner.cleanup()


def test_the_settings_on_the_page_exist() -> None:
    names: dict[str, Any] = {}
    exec(compile(SETTINGS, "agents.md", "exec"), names)
    assert names["ms"].agents.allow_ports == (80, 443, 8080)


def test_every_header_and_every_callback_is_on_the_page() -> None:
    from mainspring.model.http import MAINSPRING_HEADERS

    for name in MAINSPRING_HEADERS:
        assert f"`{name}`" in DOCUMENT, name
    verbs = [one.path.rpartition("/")[2] for one in ENDPOINTS if one.path.startswith(CALLBACK_PATH)]
    assert len(verbs) == 4
    for verb in verbs:
        assert f"`POST …/{verb}`" in DOCUMENT


def _free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_the_example_of_the_readme_declares_a_schedule() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    snippet = next(one for one in re.findall(r"```python\n(.*?)```", readme, re.S) if "ms.http(" in one)
    names: dict[str, Any] = {}
    exec(compile(snippet, "README", "exec"), names)
    assert names["ms"].declared == ("daily-report",)
