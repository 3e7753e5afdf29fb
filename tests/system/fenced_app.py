"""A process that acquires a lock and, on request, writes under its token to a resource that refuses older tokens."""

from __future__ import annotations

import sqlite3
import sys

from mainspring import LockLost, Mainspring


def write(place: str, token: int, words: str) -> bool:
    """Write to the fenced resource: a row that refuses a smaller token than its last; return True if it accepted."""
    with sqlite3.connect(place) as db:
        done = db.execute("UPDATE thing SET token = ?, words = ? WHERE token <= ?", (token, words, token))
        return done.rowcount == 1


def main(url: str, place: str, name: str) -> None:
    """Print each step; wait for a line on standard input before the next one."""
    ms = Mainspring(url)
    try:
        with ms.sync.lock("thing", ttl="600ms") as guard:
            token = guard.token
            print("begin", token, flush=True)
            sys.stdin.readline()
            print("wrote" if write(place, token, name) else "refused", flush=True)
            sys.stdin.readline()
        print("kept", flush=True)
    except LockLost as error:
        print("lost", error.token, flush=True)
    ms.sync.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
