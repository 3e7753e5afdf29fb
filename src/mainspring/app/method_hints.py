"""Method hints: what to write for a method that other schedulers have, in the text of an AttributeError."""

from __future__ import annotations

import re

from mainspring.model.errors import suggest_nearest

#: A call to await in a hint: the object, and the method with its arguments.
_CALL = re.compile(r"await (ms|add)\.(\w+\([^()]*\))")
_ENQUEUE = "write await {name}.enqueue(…), or {name}.sync.enqueue(…) in code without an event loop"
#: Method of a task elsewhere → what to write here; `{name}` is the name of the task.
TASK_METHODS = {
    "delay": _ENQUEUE,
    "apply_async": _ENQUEUE + "; options go before: {name}.using(delay=…)",
    "send": _ENQUEUE,
    "send_with_options": _ENQUEUE + "; options go before: {name}.using(delay=…)",
    "defer": _ENQUEUE,
    "defer_async": _ENQUEUE,
    "kiq": _ENQUEUE,
    "push": _ENQUEUE,
    "enqueue_in": "write await {name}.using(delay=…).enqueue(…)",
    "enqueue_at": "write await {name}.using(at=…).enqueue(…)",
    "schedule": 'write await {name}.using(delay=…).enqueue(…), or await ms.schedule("name", {name}, every=…)',
    "call_local": "call the task itself: {name}(…)",
    "apply": "call the task itself: {name}(…)",
    "map": "write await {name}.enqueue_many([…])",
    "batch": "write await {name}.enqueue_many([…])",
    "retry": "raise an error to be tried again by the retry policy, or Snooze(…) to be called again later",
    "options": "write {name}.using(…) for other options of a call",
}
#: Method of a scheduler elsewhere → what to write here.
APP_METHODS = {
    "enqueue": "write await add.enqueue(1, 2), where add is a function under @ms.task",
    "send_task": "write await add.enqueue(1, 2), where add is a function under @ms.task",
    "add_job": 'write await ms.schedule("name", task, every=…), or put @ms.every(…) above the function',
    "add_task": 'write await ms.schedule("name", task, every=…), or put @ms.every(…) above the function',
    "add_periodic_task": 'write await ms.schedule("name", task, every=…), or put @ms.every(…) above the function',
    "scheduled_job": "put @ms.cron(…) or @ms.every(…) above the function",
    "periodic_task": "put @ms.cron(…) or @ms.every(…) above the function",
    "crontab": "put @ms.cron(…) above the function",
    "interval": "put @ms.every(…) above the function",
    "job": "put @ms.task above the function",
    "get_job": 'write await ms.get("name")',
    "get_jobs": "write await ms.schedules()",
    "jobs": "write await ms.schedules()",
    "remove_job": 'write await ms.delete("name")',
    "remove": 'write await ms.delete("name")',
    "pause_job": 'write await ms.pause("name")',
    "resume_job": 'write await ms.resume("name")',
    "modify_job": 'write await ms.update("name", …)',
    "reschedule_job": 'write await ms.update("name", every=…)',
    "run_job": 'write await ms.trigger("name")',
    "remove_all_jobs": 'write await ms.delete("name") for each schedule',
    "print_jobs": "write await ms.schedules()",
    "add_listener": "write ms.on_event(RunFailed, function)",
    "conf": "give the options to Mainspring(…), or keep them in a file for Mainspring.from_config(…)",
    "shutdown": "call ms.stop() to end run(); to close the store, write await ms.close()",
    "start": "call ms.start_background() in a program without an event loop, or write async with ms.running():",
    "timezone": "read ms.tz",
}
#: Option of a scheduler elsewhere → what to write for `Mainspring(…)`.
APP_OPTIONS = {
    "executors": "Write concurrency=…, and executor= for a task",
    "job_defaults": "Give such options to each task or schedule",
    "max_workers": "Write concurrency=…",
    "workers": "Write concurrency=…",
}


def missing_attribute(owner: object, attribute: str, methods: dict[str, str], name: str = "") -> AttributeError:
    """Return the error for an `attribute` that `owner` does not have, with what to write instead, if that is known.

    `methods` is one of the tables of this module; `name` fills their `{name}`.
    """
    kind = type(owner).__name__
    hint = _CALL.sub(r"await \1.\2, or \1.sync.\2 in code without an event loop", methods.get(attribute, ""))
    hint = hint.format(name=name) or _nearest(owner, attribute)
    return AttributeError(f"{kind!r} object has no attribute {attribute!r}" + (f": {hint}" if hint else ""))


def blocking_hint(owner: object, attribute: str, methods: dict[str, str]) -> str:
    """Return what to write without an event loop for an `attribute` that `owner` does not have; "" if unknown.

    `methods` is a table of this module whose texts need no name.
    """
    return _CALL.sub(r"\1.sync.\2", methods.get(attribute, "")) or _nearest(owner, attribute)


def _nearest(owner: object, attribute: str) -> str:
    """Return a hint with the public attribute of `owner` nearest to `attribute`; "" if none is near."""
    if attribute.startswith("_"):
        return ""
    return suggest_nearest(attribute, [one for one in dir(type(owner)) if not one.startswith("_")])
