"""Passwords in URLs: nothing that a parser takes as a password is shown, and nothing else is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.backends.redis.settings import read_url
from mainspring.config.redaction import redact_url, show_store


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:p@h:6379/0", "redis://u:***@h:6379/0"),
        ("redis://:p@h/0", "redis://:***@h/0"),
        ("redis://u:p@ss@host/0", "redis://u:***@host/0"),
        ("redis://u:p/ss@host/0", "redis://u:***@host/0"),
        ("redis://u:p:s@host/0", "redis://u:***@host/0"),
        ("redis://u:p#ss@host/0", "redis://u:***@host/0"),
        ("redis://u/x:p@host/0", "redis://u/x:***@host/0"),
        (
            "redis+sentinel://u:p@ss@a:1,b:2/main/0?sentinel_password=q@q",
            "redis+sentinel://u:***@a:1,b:2/main/0?sentinel_password=***",
        ),
        ("redis://h/0?pool=2&sentinel%5Fpassword=secret&wait=1s", "redis://h/0?pool=2&sentinel%5Fpassword=***&wait=1s"),
        ("postgresql://u:p@ss@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:p#s@h/db", "postgresql://u:***@h/db"),
        ("postgresql://h/db?password=a@b&sslpassword=c", "postgresql://h/db?password=***&sslpassword=***"),
        ("postgresql://u:p@h/db?application_name=a@b", "postgresql://u:***@h/db?application_name=a@b"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h:5432/db?application_name=a@b",
        "postgresql://u@h:5432/db",
        "redis://[::1]:6379/0?client_name=a@b",
        "redis://u@h:6379/0",
        "sqlite:///C:/data/a@b.db",
        "sqlite:////data/a:b@c.db",
        "memory://",
        "memory://name",
    ],
)
def test_a_url_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert redact_url(url) == url


@pytest.mark.parametrize("password", ["p@ss", "p/ss", "p:ss", "p#ss", "@", "a@b/c:d@e", "/@:", "***@x"])
def test_all_that_redis_takes_as_the_password_is_redacted(password: str) -> None:
    url = f"redis://u:{password}@h:6379/0"
    assert read_url(url).password == password
    assert redact_url(url) == "redis://u:***@h:6379/0"


def test_the_file_of_a_store_is_shown_with_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert show_store("sqlite:///shop.db?synchronous=normal") == f"sqlite:///{tmp_path}/shop.db?synchronous=normal"
    assert show_store("sqlite:////srv/shop.db") == "sqlite:////srv/shop.db"
    assert show_store("postgresql://u:p@h/db") == "postgresql://u:***@h/db"
    assert show_store("memory://") == "memory://"
