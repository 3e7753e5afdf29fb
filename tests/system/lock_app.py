"""A process that acquires one lock repeatedly and logs when it believes to hold it."""

from __future__ import annotations

import os
import sys

from mainspring import LockLost, Mainspring


def main(url: str, log: str) -> None:
    """Run until killed; log the begin and end of each block with its token, and the blocks that lost the lock."""
    ms = Mainspring(url)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(word: str, token: int) -> None:
        os.write(file, f"{word} {token} {os.getpid()}\n".encode())

    while True:
        token = 0
        try:
            with ms.sync.lock("x", ttl="600ms") as guard:
                token = guard.token
                say("begin", token)
                guard.lost.wait(0.02)
                say("end", token)
        except LockLost as error:
            say("lost", error.token)
        else:
            say("kept", token)


if __name__ == "__main__":
    main(*sys.argv[1:])
