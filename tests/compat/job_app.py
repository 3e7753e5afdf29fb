"""A program of source 003's kind: python job_app.py DB; prints each occurrence it runs, then the report's count."""

import asyncio
import sys

from mainspring import Mainspring
from mainspring.compat.jobs import Job, Schedule, Scheduler, Task, TaskContext


def work(context: TaskContext[None]) -> None:
    print(context.run.scheduled_at.timestamp(), flush=True)


async def main() -> None:
    store = Mainspring(f"sqlite:///{sys.argv[1]}", lease_ttl="1s", poll_interval="100ms")
    job = Job.without_deps("job", Schedule.interval("150ms"), Task.from_sync(work)).with_max_runs(12)
    job = job.with_missed_run_policy("replay_all").with_overlap_policy("queue_all")
    report = await Scheduler(store).run(job)
    print("total", report.state.trigger_count, len(report.history), flush=True)


asyncio.run(main())
