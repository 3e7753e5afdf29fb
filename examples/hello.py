"""The smallest program that is worth running: a job every second, kept in a file, accounted for.

Stop it with Ctrl-C (or kill -9), start it again, and read the ledger:

    .venv/bin/mainspring ledger --store sqlite:///hello.db
"""

from mainspring import Context, Mainspring

ms = Mainspring("sqlite:///hello.db")


@ms.every("1s")
def tick(ctx: Context) -> None:
    """Runs every second; after more than a minute away, one run makes up for what was missed."""
    note = " (catching up)" if ctx.catch_up else ""
    print(f"tick {ctx.fire_time:%H:%M:%S}  run {ctx.run_id}  attempt {ctx.attempt}{note}", flush=True)


if __name__ == "__main__":
    print("A job every second, in hello.db. Ctrl-C stops; nothing is lost, not even by kill -9.")
    print("Then read the ledger: .venv/bin/mainspring ledger --store sqlite:///hello.db\n", flush=True)
    ms.run()
    print("Stopped in order.")
