"""Compatibility layers: the APIs of other schedulers, carried out by Mainspring; see docs/sources.md.

- `mainspring.compat.scheduler`: `schedule_once`, `schedule_recurring`, `schedule_delayed`, `cancel` (source 000)
- `mainspring.compat.handlers`: `TaskHandler`, `EventHandler`, `list_tasks` (source 001)
- `mainspring.compat.jobs`: `Job`, `Task`, `run(job)` and its report (source 003)
"""
