"""python worker_app.py DB LOG: execute the runs that are enqueued, log every execution, then stop."""

import os
import sys

from mainspring import Context, Mainspring

db, log_path = sys.argv[1:3]
ms = Mainspring(f"sqlite:///{db}", poll_interval="200ms", concurrency=20)
log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@ms.task(executor="loop")
def work(ctx: Context, number: int) -> None:
    os.write(log, f"{ctx.idempotency_key} {ctx.attempt} {number}\n".encode())


ms.run(until_idle=True)
