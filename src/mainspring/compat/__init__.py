"""Compatibility layers: the APIs of other schedulers on a `Mainspring`, for programs that move (docs/sources.md).

- `mainspring.compat.scheduler`, of scheduler-rs: `schedule_once`, `schedule_recurring`, `schedule_delayed`, `cancel`
- `mainspring.compat.handlers`, of Azoth Scheduler: `TaskHandler`, `EventHandler`, `list_tasks`
- `mainspring.compat.jobs`, of cloudiful-scheduler: `Job`, `Task`, and `run(job)`, which returns a report
"""
