"""The page about Flask, Django, FastAPI, gunicorn and scripts: its files run as they are, under real servers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.model.events import InstanceJoined, InstanceLeft
from tests.system.test_background_processes import count, free_port, server, until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "web-apps.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.S))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of the page."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def call(port: int, method: str, path: str) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    with urllib.request.urlopen(request, timeout=25) as answer:
        return json.load(answer)


def joined_and_left(folder: Path, database: str) -> tuple[int, int]:
    app = Mainspring(f"sqlite:///{folder}/{database}")
    try:
        return count(app, InstanceJoined), count(app, InstanceLeft)
    finally:
        app.sync.close()


def test_every_snippet_is_a_file_that_a_test_runs() -> None:
    assert PAGE.count("```python") == len(FILES)
    assert set(FILES) == {"nightly.py", "shop.py", "gunicorn.conf.py", "mysite/wsgi.py", "mysite/jobs.py", "api.py"}


def test_the_script(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "nightly.py"], cwd=folder, capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout == "fetched https://example.com\n"
    assert joined_and_left(folder, "nightly.db") == (1, 1)


@pytest.mark.parametrize("how", ["flask", "gunicorn", "gunicorn, hook", "gunicorn, hook, preload"])
def test_flask(folder: Path, how: str) -> None:
    port = free_port()
    if "hook" in how:
        (folder / "shop.py").write_text(FILES["shop.py"].rsplit("if not app.debug", 1)[0])
    else:
        (folder / "gunicorn.conf.py").unlink()
    bind = f"127.0.0.1:{port}"
    command = ["gunicorn", "shop:app", "-w", "2", "-b", bind, *(["--preload"] if "preload" in how else [])]
    if how == "flask":
        command = ["flask", "--app", "shop", "run", "--port", str(port)]
    engines = 1 if how == "flask" else 2
    with server(folder, port, *command):
        run = call(port, "POST", "/invoices/acme")["run"]
        until(lambda: call(port, "GET", f"/invoices/{run}")["state"] == "succeeded")
        until(lambda: joined_and_left(folder, "shop.db")[0] == engines)
    left = 0 if how == "flask" else engines  # the development server does not handle SIGTERM
    assert joined_and_left(folder, "shop.db") == (engines, left), (folder / "server.log").read_text()


def test_django(folder: Path) -> None:
    (folder / "mysite" / "__init__.py").touch()
    (folder / "mysite" / "settings.py").write_text(
        "SECRET_KEY = 'x'\nROOT_URLCONF = 'mysite.urls'\nALLOWED_HOSTS = ['*']\n"
    )
    urls = """
        from django.http import JsonResponse
        from django.urls import path

        def create(request, customer):
            from mysite.jobs import send_invoice

            return JsonResponse({"said": send_invoice.sync.enqueue(customer).result(timeout="20s")})

        urlpatterns = [path("invoices/<customer>", create)]
    """
    (folder / "mysite" / "urls.py").write_text(textwrap.dedent(urls))
    (folder / "gunicorn.conf.py").unlink()
    port = free_port()
    with server(folder, port, "gunicorn", "mysite.wsgi", "-b", f"127.0.0.1:{port}"):
        assert call(port, "GET", "/invoices/acme") == {"said": "sent to acme"}
    assert joined_and_left(folder, "jobs.db") == (1, 1), (folder / "server.log").read_text()
    checked = subprocess.run(
        [sys.executable, "-m", "django", "check"],
        cwd=folder,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "mysite.settings", "PYTHONPATH": str(folder)},
        capture_output=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert joined_and_left(folder, "jobs.db") == (1, 1)  # a command starts no engine


def test_fastapi(folder: Path) -> None:
    port = free_port()
    with server(folder, port, "uvicorn", "api:app", "--port", str(port)):
        assert call(port, "POST", "/invoices/acme")["said"] == "sent to acme"
    assert joined_and_left(folder, "api.db") == (1, 1), (folder / "server.log").read_text()
