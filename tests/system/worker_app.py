"""The program the kill loops run: it writes down every execution, independently of the store.

python worker_app.py DB LOG fires LEASE        ten schedules, together ten fires a second, until killed
python worker_app.py DB LOG drain LEASE        work off what is enqueued, then stop
"""

import os
import sys

from mainspring import Context, Mainspring

db, log_path, mode, lease = sys.argv[1:5]
ms = Mainspring(f"sqlite:///{db}", lease_ttl=lease, poll_interval="200ms", concurrency=20, shutdown_timeout="5s")
log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@ms.task(executor="loop")
def work(ctx: Context, number: int) -> None:
    os.write(log, f"{ctx.idempotency_key} {ctx.attempt} {number}\n".encode())


if mode == "fires":
    for index in range(10):
        ms.every("1s", name=f"every-{index}", args=(index,), missed="replay_all", overlap="allow_parallel")(work)

ms.run(until_idle=mode == "drain")
