"""The sentences of the reference that are written by hand: what the code does not say beside a name."""

from __future__ import annotations

from mainspring import State

NOTE = "<!-- Written by tools/print_reference.py from the code: do not edit. -->"
DURATIONS = (
    'A `Duration` is a text such as `"500ms"`, `"30s"`, `"10m"`, `"1h30m"` or `"2d"`, a number of seconds, '
    "or a `timedelta`. A datetime must have a zone."
)
APP = (
    "`url` of the store; None: `$MAINSPRING_URL`, else `sqlite:///mainspring.db`. `store`: an object in "
    "place of a URL. What the service has instead: [defaults](../defaults.md)."
)
BLOCKING = (
    'A line with `await` is a coroutine. In code without an event loop write `ms.sync.pause("nightly")`: '
    "`ms.sync` has every one of them as a blocking method, with the same parameters."
)
ELSEWHERE = (
    "`@ms.cron`, `@ms.every`, `@ms.at` and the options of `ms.schedule`, `ms.update` and `ms.http` are on "
    "the page [schedules](schedules.md), `@ms.task` is on the page [tasks](tasks.md)."
)
DECLARING = "These decorators take the [policies](#policies) below and the options of the task:"
WHEN = (
    "## When it fires\n\n`ms.schedule` takes exactly one of these, and `first` with `every`. `ms.update` takes "
    "at most one."
)
POLICIES = (
    "## Policies\n\nThe decorators, `ms.schedule`, `ms.update` and `ms.http` take these. In `ms.update` an "
    'option that you leave out stays. Calls of HTTP agents have `overlap="allow_parallel"` as the default.'
)
TASK = (
    "## The task\n\nA decorated function is a task: calling it calls the function. In code without an event "
    "loop, `send.sync` has `enqueue` and `enqueue_many` as blocking methods."
)
EVENTS = (
    "# Events\n\n`await ms.events()` returns events, `ms.on_event(RunFailed, handler)` calls your function "
    "with them, and `/api/events/stream` sends them."
)
ALL_EVENTS = (
    "## All events\n\n¹ Import it from `mainspring.model.events`, or give its name as text: "
    '`ms.events(types=["InstanceJoined"])`.'
)
ERRORS = "# Errors\n\nEvery error of Mainspring is a `MainspringError`. Its text says what is wrong and what to do."
MODULES = (
    "## Further modules\n\nContract suites for your own store, broker or lock, the checker of histories, and "
    "[the names of other schedulers](../sources.md)."
)
CONFIGURATION = (
    "Write these keys in `mainspring.yaml` or `mainspring.toml`, or set a variable: `server.port` is "
    "`MAINSPRING_SERVER__PORT`. [How the sources are combined](../serving.md#configure-it). A running "
    "service applies a key that is marked live when the file changes."
)
REST = (
    "A running service shows this at `/api/docs`, and programs read `/api/openapi.json`. [How to use "
    "it](../api.md). Every request may also be answered with 401, 403, 421, 422, 429 or 503."
)
INDEX = (
    "Every public name, option and default, written from the code. Defaults of programs and of the service, "
    "side by side: [defaults](../defaults.md)."
)
STATES = {
    State.BLOCKED: "waits until other runs have ended; reserved, nothing creates such a run yet",
    State.WAITING: "waits for its time, for a worker, or at a concurrency limit",
    State.RUNNING: "an attempt is under way",
    State.RETRYING: "an attempt failed, and another one will follow",
    State.SUCCEEDED: "its function returned",
    State.FAILED: "failed, and no attempt will follow",
    State.CANCELLED: "ended because it was cancelled",
    State.SKIPPED: "ended before its function began, for example outside its window",
    State.LOST: 'its worker disappeared, and `recovery="fail"` forbids another attempt',
}
#: Key → its meaning, where the comment of the field is not for users, or the field has none.
KEY_MEANINGS = {
    "store": "URL of the store.",
    "role": "What the process does: all, or one part of it.",
    "server.host": "Address to listen on.",
    "server.port": "Port to listen on; 0 takes a free one.",
    "server.require_key": "Require a key on loopback, too: needed behind a proxy on this machine.",
    "scheduler.name": "Name of the program. Instances of one name share a leader.",
    "scheduler.namespace": "Separates services on one store: schedules, runs, events and keys.",
    "scheduler.workers": "The most runs that the instance executes at once.",
    "scheduler.poll_interval": "The longest time between two queries for due work.",
    "scheduler.shutdown_timeout": "Time that running work has to end when the service stops; then it is handed back.",
    "scheduler.lease_ttl": "The runs of a process that crashed may be executed by another one after this time.",
    "logging.level": "The least level of lines in the log.",
    "logging.format": "Lines as text, or as JSON objects.",
    "metrics.enabled": "Has no effect in this version.",
    "metrics.port": "Has no effect in this version.",
}
