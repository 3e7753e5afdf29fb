"""Doors for people who come from other schedulers, thin, on the same core: docs/sources.md says which serves whom.

- `mainspring.compat.scheduler`: `schedule_once`, `schedule_recurring`, `schedule_delayed`, `cancel` (source 000)
- `mainspring.compat.handlers`: `TaskHandler`, `EventHandler`, `list_tasks` (source 001)
- `mainspring.compat.jobs`: `Job`, `Task`, `run(job)` and its report (source 003)
"""
