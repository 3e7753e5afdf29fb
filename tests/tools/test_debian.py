"""Debian packages for the tests are unpacked without root rights; if that fails, the error has the reason."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from servers.debian import NotFetched, fetch, main, program

APT = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
*lists=*download*) touch one.deb ;;
*download*) echo "E: Unable to locate package one" >&2; exit {code} ;;
esac
"""
DPKG = """#!/bin/sh
mkdir -p "$3/usr/sbin" && echo hello > "$3/usr/sbin/one"
"""


def tools(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Set a PATH that contains only the given programs and what they need."""
    for name, text in scripts.items():
        path = folder / name.replace("_", "-")
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin" if scripts else str(folder))


def test_without_apt_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tools(tmp_path, monkeypatch)
    with pytest.raises(NotFetched, match="no apt-get and no dpkg-deb on this machine"):
        fetch(("one",), tmp_path / "place")
    monkeypatch.setattr("servers.debian.fetch.__defaults__", (("one",), tmp_path / "place"))
    main()
    assert "tests through PgBouncer and TLS are skipped" in capsys.readouterr().out


def test_without_package_lists_apt_gets_lists_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, place = tmp_path / "log", tmp_path / "place"
    tools(tmp_path, monkeypatch, apt_get=APT.format(log=log, code=100), dpkg_deb=DPKG)
    fetch(("one",), place)
    assert (place / "usr" / "sbin" / "one").read_text() == "hello\n"
    assert [line.split()[-1] for line in log.read_text().splitlines()] == ["one", "update", "one"]
    (place / "usr" / "sbin" / "one").write_text("#!/bin/sh\necho $1 and $LD_LIBRARY_PATH\n")
    assert program("usr/sbin/one", place) is None, "it cannot be run"
    (place / "usr" / "sbin" / "one").chmod(0o755)
    (place / "usr" / "lib" / "here").mkdir(parents=True)
    (place / "usr" / "lib" / "here" / "two.so.1").touch()
    command = program("usr/sbin/one", place)
    assert command is not None
    said = subprocess.run([command, "hello"], check=True, capture_output=True, text=True).stdout
    assert said == f"hello and {place}/usr/lib/here\n"
    fetch(("one",), place)
    assert len(log.read_text().splitlines()) == 3, "once is enough"


def test_a_package_that_cannot_be_had_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt = APT.format(log=tmp_path / "log", code=100).replace("touch one.deb", "exit 7")
    tools(tmp_path, monkeypatch, apt_get=apt, dpkg_deb=DPKG)
    (tmp_path / "in").mkdir()
    with pytest.raises(NotFetched, match="apt-get"):
        fetch(("one",), tmp_path / "in" / "place")
    assert not list((tmp_path / "in").iterdir())
