"""The pages about Flask, Django, FastAPI, gunicorn and scripts: their files run as they are, under real servers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.model.events import InstanceJoined, InstanceLeft
from tests.system.test_background_processes import count, free_port, server, until

ROOT = Path(__file__).parents[2]
PAGE = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("web-apps.md", "django.md"))
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
    django = {f"mysite/{name}.py" for name in ("jobs", "views", "worker", "wsgi")}
    assert set(FILES) == {"nightly.py", "shop.py", "gunicorn.conf.py", "api.py"} | django


def test_the_script(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "nightly.py"], cwd=folder, capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout == "fetched https://example.com\n"
    assert joined_and_left(folder, "nightly.db") == (1, 1)


@pytest.mark.parametrize("how", ["flask", "gunicorn", "gunicorn, preload", "gunicorn, a module of its own"])
def test_flask(folder: Path, how: str) -> None:
    port = free_port()
    module = "shop"
    if "module" in how:
        (folder / "gunicorn.conf.py").unlink()
        (folder / "serve.py").write_text("from shop import app, ms\n\nms.start_background()\n")
        module = "serve"
    bind = f"127.0.0.1:{port}"
    command = ["gunicorn", f"{module}:app", "-w", "2", "-b", bind, *(["--preload"] if "preload" in how else [])]
    if how == "flask":
        command = ["flask", "--app", "shop", "run", "--port", str(port)]
    engines = 1 if how == "flask" else 2
    with server(folder, port, *command):
        run = call(port, "POST", "/invoices/acme")["run"]
        until(lambda: call(port, "GET", f"/invoices/{run}")["state"] == "succeeded")
        until(lambda: joined_and_left(folder, "shop.db")[0] == engines)
        assert call(port, "GET", "/schedules")[0]["name"] == "nightly_report"
        assert call(port, "POST", "/schedules/nightly_report/pause")["reason"] == "paused on the page"
    left = 0 if how == "flask" else engines  # the development server does not handle SIGTERM
    assert joined_and_left(folder, "shop.db") == (engines, left), (folder / "server.log").read_text()


@pytest.mark.parametrize("options", [["--debug"], ["--reload"], ["--debug", "--no-reload"]], ids=" ".join)
def test_one_process_of_the_development_server_has_an_engine(folder: Path, options: list[str]) -> None:
    port = free_port()
    with server(folder, port, "flask", "--app", "shop", "run", "--port", str(port), *options):
        run = call(port, "POST", "/invoices/acme")["run"]
        until(lambda: call(port, "GET", f"/invoices/{run}")["state"] == "succeeded")
    log = (folder / "server.log").read_text()
    assert joined_and_left(folder, "shop.db")[0] == 1, log


@pytest.mark.parametrize("command", ["routes", "shell", "--help", "hello", "--debug routes"])
def test_a_command_of_flask_starts_no_engine(folder: Path, command: str) -> None:
    own = '\n\n@app.cli.command("hello")\ndef hello() -> None:\n    print("nightly_report")\n'
    (folder / "shop.py").write_text(FILES["shop.py"] + own)
    done = subprocess.run(
        [str(Path(sys.executable).parent / "flask"), "--app", "shop", *command.split()],
        cwd=folder,
        input="print(app.view_functions['list_schedules'].__name__)",
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    known = {"routes": "list_schedules", "shell": "list_schedules", "--help": "hello", "hello": "nightly_report"}
    assert known[command.split()[-1]] in done.stdout, done.stderr  # the app was imported
    assert not (folder / "shop.db").exists()


SETTINGS = """
SECRET_KEY = "x"
ROOT_URLCONF = "mysite.urls"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["django.contrib.sessions"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.db"}}
"""
URLS = """
from django.urls import path
from mysite import views

urlpatterns = [
    path("invoices/<customer>", views.create_invoice),
    path("runs/<run_id>", views.read_run),
    path("schedules", views.list_schedules),
]
"""


@pytest.mark.parametrize("how", ["in the web process", "in a process of its own"])
def test_django(folder: Path, how: str) -> None:
    for name, text in {"__init__": "", "settings": SETTINGS, "urls": URLS}.items():
        (folder / "mysite" / f"{name}.py").write_text(text)
    (folder / "gunicorn.conf.py").unlink()
    manage(folder, "check")
    manage(folder, "migrate")
    assert not (folder / "jobs.db").exists()  # a command starts no engine
    if how == "in a process of its own":
        wsgi = FILES["mysite/wsgi.py"].replace("ms.start_background()\n", "")
        (folder / "mysite" / "wsgi.py").write_text(wsgi)
    port = free_port()
    with server(folder, port, "gunicorn", "mysite.wsgi", "-b", f"127.0.0.1:{port}"):
        run = call(port, "GET", "/invoices/acme")["run"]
        if how == "in a process of its own":
            assert call(port, "GET", f"/runs/{run}")["state"] == "waiting"
            command = [sys.executable, "-m", "mainspring.cli.main", "run", "mysite.worker:ms", "--until-idle"]
            subprocess.run(command, cwd=folder, check=True, timeout=50)
        until(lambda: call(port, "GET", f"/runs/{run}")["result"] == "sent to acme")
        assert [one["name"] for one in call(port, "GET", "/schedules")["schedules"]] == ["remove_old_sessions"]
    assert joined_and_left(folder, "jobs.db") == (1, 1), (folder / "server.log").read_text()


def test_django_models_in_a_task(folder: Path) -> None:
    for name, text in {"__init__": "", "settings": SETTINGS, "urls": URLS}.items():
        (folder / "mysite" / f"{name}.py").write_text(text)
    manage(folder, "migrate")
    program = """
        import datetime
        from mysite.worker import ms
        from django.contrib.sessions.models import Session
        from mysite.jobs import remove_old_sessions

        Session.objects.create(session_key="old", session_data="", expire_date=datetime.datetime(2020, 1, 1))
        with ms.background():
            remove_old_sessions.sync.enqueue().result(timeout="20s")
        print(Session.objects.count(), "left")
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "0 left\n", done.stderr


def manage(folder: Path, command: str) -> None:
    """Run a command of Django on the site in `folder`."""
    env = os.environ | {"DJANGO_SETTINGS_MODULE": "mysite.settings", "PYTHONPATH": str(folder)}
    subprocess.run([sys.executable, "-m", "django", command], cwd=folder, env=env, capture_output=True, check=True)


def test_fastapi(folder: Path) -> None:
    port = free_port()
    with server(folder, port, "uvicorn", "api:app", "--port", str(port)):
        made = call(port, "POST", "/invoices/acme")
        assert made["said"] == "sent to acme"
        assert call(port, "GET", f"/runs/{made['run']}")["result"] == "sent to acme"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            call(port, "GET", "/runs/unknown")
    assert joined_and_left(folder, "api.db") == (1, 1), (folder / "server.log").read_text()
