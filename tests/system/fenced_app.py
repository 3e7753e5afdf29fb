"""A process that takes a lock and, when told, writes under its token to something that refuses older ones."""

from __future__ import annotations

import sqlite3
import sys

from mainspring import LockLost, Mainspring


def write(place: str, token: int, words: str) -> bool:
    """The fenced resource: a row that takes no smaller token than it has seen."""
    with sqlite3.connect(place) as db:
        done = db.execute("UPDATE thing SET token = ?, words = ? WHERE token <= ?", (token, words, token))
        return done.rowcount == 1


def main(url: str, place: str, name: str) -> None:
    """Says what it did; each line it hears is the word for the next step."""
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
