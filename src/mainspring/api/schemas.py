"""Structs of request bodies, query parameters and answers of the API, from which the OpenAPI document is made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from mainspring.agents.vault import ROTATION_OVERLAP_MS
from mainspring.model.http import Method
from mainspring.model.policies import Backoff, Missed, OnExhausted, Overlap, PriorityName, Recovery
from mainspring.model.trigger import First, Fold, Gap

#: Longest duration in a request: ten years. It is exact in every JSON client.
MAX_DURATION_MS = 315_360_000_000

Instant = Annotated[
    str,
    Meta(
        description="RFC 3339 with an offset",
        examples=["2026-03-01T09:00:00Z"],
        max_length=40,
        extra_json_schema={"format": "date-time"},
    ),
]
Millis = Annotated[int, Meta(ge=0, le=MAX_DURATION_MS)]
DurationText = Annotated[
    str, Meta(pattern=r"^ *(\d{1,9}(\.\d{1,9})?(ms|s|m|h|d|w) *)+$", max_length=40, examples=["30s", "1h30m"])
]
#: In requests: milliseconds, or a text such as "30s". Answers have milliseconds.
DurationMs = Millis | DurationText
CronText = Annotated[
    str,
    Meta(min_length=1, max_length=256, examples=["0 9 * * *"], extra_json_schema={"format": "cron"}),
]
ZoneText = Annotated[
    str, Meta(min_length=1, max_length=64, examples=["Europe/Berlin"], extra_json_schema={"format": "timezone"})
]
UrlText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=2_048,
        description="http or https, without credentials",
        examples=["https://example.com/api/agent"],
        extra_json_schema={"format": "http-url"},
    ),
]
NameText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=255,
        description="printable, without / ? #, and not in the form of an id",
        examples=["Daily Report Agent"],
        extra_json_schema={"pattern": r"^[^/?#\u0000-\u001f]+$"},
    ),
]
Text = Annotated[str, Meta(max_length=500)]
Status = Literal["pending", "running", "retrying", "success", "failed", "cancelled", "skipped"]
HealthStatus = Literal["healthy", "degraded", "unhealthy"]
STATUSES: tuple[Status, ...] = ("pending", "running", "retrying", "success", "failed", "cancelled", "skipped")


class RetryBody(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Retry policy in a request: how often an execution is attempted, and the delays between the attempts.

    A field that is left out keeps its value; in a new schedule, it has the default.
    """

    max_attempts: Annotated[int, Meta(ge=1, le=1_000, description="executions in all, 1 = no retry")] | UnsetType = (
        UNSET
    )
    backoff_multiplier: Annotated[float, Meta(ge=1, le=1_000)] | UnsetType = UNSET
    initial_delay_ms: DurationMs | UnsetType = UNSET
    max_delay_ms: DurationMs | UnsetType = UNSET
    backoff: Backoff | UnsetType = UNSET
    jitter: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET


class WindowBody(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Window in a request: the weekdays and times of day at which an execution may start."""

    timezone: Annotated[ZoneText, Meta(description="left out: the zone of the schedule")] | UnsetType = UNSET
    weekdays: Annotated[list[Annotated[str, Meta(max_length=16)]], Meta(max_length=7, examples=[["mon", "fri"]])] = []
    segments: Annotated[
        list[Annotated[str, Meta(max_length=20)]], Meta(max_length=24, examples=[["09:00-12:00", "13:00-18:00"]])
    ] = []


class ScheduleUpdate(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Changes to a schedule. A field that is left out keeps its value; `null` removes an optional value."""

    name: NameText | UnsetType = UNSET
    # when: one of cronExpression, intervalMs, at, delayMs
    cron_expression: CronText | UnsetType = UNSET
    dst_gap: Gap | UnsetType = UNSET
    dst_overlap: Fold | UnsetType = UNSET
    interval_ms: DurationMs | UnsetType = UNSET
    anchor: Instant | UnsetType | None = UNSET
    fixed_delay: bool | UnsetType = UNSET
    first: First | UnsetType | None = UNSET
    at: Annotated[list[Instant], Meta(max_length=1_000)] | Instant | UnsetType = UNSET
    delay_ms: DurationMs | UnsetType = UNSET
    timezone: ZoneText | UnsetType = UNSET
    # what: an HTTP agent, or a task of the code
    agent_id: Annotated[str, Meta(max_length=255)] | UnsetType = UNSET
    agent_url: UrlText | UnsetType = UNSET
    http_method: Method | UnsetType = UNSET
    headers: dict[str, str] | UnsetType | None = UNSET
    task: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET
    payload: Any = UNSET
    # how
    retry_policy: RetryBody | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    missed: Missed | UnsetType = UNSET
    grace_ms: DurationMs | UnsetType = UNSET
    replay_max: Annotated[int, Meta(ge=1, le=10_000)] | UnsetType = UNSET
    replay_age_ms: DurationMs | UnsetType = UNSET
    overlap: Overlap | UnsetType = UNSET
    jitter_ms: DurationMs | UnsetType = UNSET
    spread_ms: DurationMs | UnsetType = UNSET
    start_at: Instant | UnsetType | None = UNSET
    end_at: Instant | UnsetType | None = UNSET
    max_runs: Annotated[int, Meta(ge=0, le=1000000000)] | UnsetType | None = UNSET
    window: WindowBody | UnsetType | None = UNSET
    start_deadline_ms: DurationMs | UnsetType | None = UNSET
    on_exhausted: OnExhausted | UnsetType = UNSET
    terminal: Literal["keep", "delete"] | UnsetType = UNSET
    priority: PriorityName | UnsetType = UNSET
    queue: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET
    timeout_ms: DurationMs | UnsetType | None = UNSET
    recovery: Recovery | UnsetType = UNSET


class ScheduleCreate(ScheduleUpdate, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A new schedule: a name, when (cronExpression, intervalMs, at or delayMs) and what (agentUrl or task)."""

    name: NameText


class PauseBody(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Reason of a pause, and the instant `until` at which it ends. Without `until`, it lasts until a resume."""

    reason: Text = "paused"
    until: Instant | None = None


class RotateBody(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How long calls are signed with the old secret as well; 0 ends it at once."""

    overlap_ms: DurationMs = ROTATION_OVERLAP_MS


class TriggerBody(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Payload for one execution, in place of the schedule's payload."""

    payload: Any = UNSET


class CancelBody(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Reason of a cancellation."""

    reason: Text = "cancelled"


class EmptyBody(Struct, forbid_unknown_fields=True):
    """Body of an action that takes no fields (resume, retry): an empty object, or no body."""


class ProgressBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Progress of an agent's work: a fraction from 0 to 1, a text for people, or both."""

    fraction: Annotated[float, Meta(ge=0, le=1)] | None = None
    message: str = ""


class FailureBody(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Failure of an agent's work.

    `retry: false`: do not attempt the work again. `retryAfter`: the shortest delay before the next attempt, in seconds.
    """

    error: str
    retry: bool = True
    retry_after: float | None = None


# ── parameters ──────────────────────────────────────────────────────────────

Limit = Annotated[int, Meta(ge=1, le=500)]
Cursor = Annotated[str, Meta(min_length=1, max_length=64, description="taken from the Link of the previous page")]
IdText = Annotated[str, Meta(min_length=1, max_length=255)]


class NoQuery(Struct, rename="camel"):
    """No query parameters: a route with this type refuses every parameter."""


class ScheduleQuery(Struct, kw_only=True, rename="camel"):
    """Query parameters of GET /api/schedules. `enabled` "true": only active ones; "false": only paused and finished."""

    limit: Limit = 100
    cursor: Cursor | None = None
    enabled: Literal["true", "false"] | None = None


class OfScheduleQuery(Struct, kw_only=True, rename="camel"):
    """Query parameters of GET /api/schedules/{id}/executions. `status`: only executions in this status."""

    limit: Limit = 50
    cursor: Cursor | None = None
    status: Status | None = None


class ExecutionQuery(OfScheduleQuery, kw_only=True, rename="camel"):
    """Query parameters of GET /api/executions. `scheduleId`: only executions of the schedule with this id or name."""

    schedule_id: IdText | None = None


class StreamQuery(Struct, kw_only=True, rename="camel"):
    """Query parameters of GET /api/events/stream.

    `types`: send only events of these types, separated by commas. `schedule`: send only events of the schedule with
    this id or name. `since` "now": send only later events; "beginning": send the stored events first.
    """

    types: Annotated[str, Meta(max_length=1_000)] | None = None
    schedule: IdText | None = None
    since: Literal["now", "beginning"] = "now"


class LogQuery(Struct, kw_only=True, rename="camel"):
    """Query parameters of GET /api/executions/{id}/logs. `attempt`: only its lines. `after`: only lines after it."""

    limit: Limit = 500
    after: Annotated[int, Meta(ge=0)] | None = None
    attempt: Annotated[int, Meta(ge=1)] | None = None


class LogStreamQuery(Struct, kw_only=True, rename="camel"):
    """Query parameters of GET /api/executions/{id}/logs/stream. `attempt`: only lines of this attempt."""

    attempt: Annotated[int, Meta(ge=1)] | None = None


# ── answers ─────────────────────────────────────────────────────────────────


class RetryView(Struct, kw_only=True, rename="camel"):
    """Retry policy in an answer: the one that the executions of a schedule follow."""

    max_attempts: int
    backoff_multiplier: float
    initial_delay_ms: int
    max_delay_ms: int
    backoff: Backoff
    jitter: float


class WindowView(Struct, kw_only=True, rename="camel"):
    """Window in an answer: the weekdays and times of day at which an execution may start."""

    timezone: str
    weekdays: list[str]
    segments: list[str]


class DriftView(Struct, kw_only=True, rename="camel"):
    """How a schedule that a person edited differs from its code: the fields in words, the edit, and the way out."""

    code: str
    stored: str
    edited_by: str
    edited_at: Instant
    command: str


class ScheduleView(Struct, kw_only=True, rename="camel"):
    """Schedule in an answer. `headers` shows *** in place of each header's value."""

    id: str
    name: str
    revision: int
    description: str
    cron_expression: str | UnsetType = UNSET
    dst_gap: Gap | UnsetType = UNSET
    dst_overlap: Fold | UnsetType = UNSET
    interval_ms: int | UnsetType = UNSET
    anchor: Instant | UnsetType | None = UNSET
    fixed_delay: bool | UnsetType = UNSET
    first: First | UnsetType | None = UNSET
    at: list[Instant] | UnsetType = UNSET
    timezone: str
    agent_id: str | UnsetType = UNSET
    agent_url: str | UnsetType = UNSET
    http_method: Method | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    task: str | UnsetType = UNSET
    payload: Any = None
    retry_policy: RetryView
    enabled: bool
    state: Literal["active", "paused", "finished", "deleted"]
    pause_reason: str | None
    paused_until: Instant | None
    finish_reason: str | None
    missed: Missed
    grace_ms: int
    replay_max: int
    replay_age_ms: int
    overlap: Overlap
    jitter_ms: int
    spread_ms: int
    start_at: Instant | None
    end_at: Instant | None
    max_runs: int | None
    window: WindowView | None
    start_deadline_ms: int | None
    on_exhausted: OnExhausted
    terminal: Literal["keep", "delete"]
    priority: PriorityName
    queue: str
    timeout_ms: int | None
    recovery: Recovery
    next_run: Instant | None
    fired: int
    created_at: Instant
    updated_at: Instant
    signing_secret: Annotated[str, Meta(description="shown once, when the schedule is created")] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
    drift: Annotated[DriftView, Meta(description="if a person's edit differs from the code")] | UnsetType = UNSET


class AgentResponseView(Struct, rename="camel", omit_defaults=True):
    """Answer of an agent: `bytes` were read of it; `truncated`: its end is not in `body`.

    `json`: the decoded body, if the content type is JSON and the body is whole.
    """

    status: int
    body: str = ""
    content_type: str = ""
    bytes: int = 0
    truncated: bool = False
    json: Any = UNSET


class AttemptView(Struct, kw_only=True, rename="camel"):
    """One attempt of an execution, with its outcome; `status` "running" if it has none yet.

    `startedAt`: when it was claimed. `response`: the answer of the agent, also if it failed, or the task's result.
    `trace`: the traceback of the error. `overranMs`: how long it ran beyond its time limit, if it was not stopped.
    """

    attempt: int
    started_at: Instant
    ended_at: Instant | None = None
    status: Literal["running", "success", "failed", "retrying", "cancelled", "skipped", "lost", "handed-back", "later"]
    instance: str | None = None
    duration_ms: int | None = None
    error: str | None = None
    next_attempt_at: Instant | None = None
    overran_ms: int | None = None
    trace: str | None = None
    response: Any = None


class ExecutionView(Struct, kw_only=True, rename="camel"):
    """Execution in an answer. Lists, and the answer to a trigger, leave out `payload` and `attemptDetails`."""

    id: str
    schedule_id: str | None
    task: str
    fire_time: Instant | None
    status: Status
    reason: str | None
    attempts: int
    origin: str
    catch_up: bool
    due_at: Instant
    next_attempt_at: Instant | None
    started_at: Instant | None
    completed_at: Instant | None
    duration_ms: int | None
    error: str | None
    response: Any
    progress: str | None
    cancel_requested: str | None
    created_at: Instant
    payload: Any = UNSET
    attempt_details: list[AttemptView] | UnsetType = UNSET
    warnings: Annotated[list[str], Meta(description="in the answer to a trigger")] | UnsetType = UNSET


class LogLineView(Struct, kw_only=True, rename="camel"):
    """Line of an execution's log. `number` grows within an execution. `source`: "log", "print", or a logger's name."""

    number: int
    attempt: int
    at: Instant
    level: str
    source: str
    text: str


class EchoView(Struct, kw_only=True, rename="camel"):
    """What the echo agent received: the body, and the headers of the call about its fire (null in other requests)."""

    echo: Any
    schedule_id: str | None
    fire_time: str | None
    attempt: str | None


class SecretView(Struct, kw_only=True, rename="camel"):
    """New signing secret of a schedule; no later answer shows it again, also not that to a repeated request."""

    signing_secret: str | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class ComponentView(Struct):
    """Status of one part of an instance, and when it was checked. `detail`: a problem or warning, or ""."""

    status: HealthStatus
    last_updated: Instant
    detail: str = ""


class HealthView(Struct, kw_only=True):
    """Status of the service. A caller with an API key, or on loopback, also gets `components`: name → status."""

    status: HealthStatus
    components: dict[str, ComponentView] | UnsetType = UNSET
    last_updated: Instant | UnsetType = UNSET
