"""Checks of runs and of the log against the invariants I2 and I4 to I11, which `INVARIANTS` in `report.py` lists.

In names and reports, a token is the epoch of a lease. A stream is the list of the events of one run, in the order of
the log. `mine` are the calls of one run's handler. Each check adds its violations to `report`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from mainspring.engine.lookahead import PLAN_AHEAD_MS
from mainspring.ledger.replay import Replay
from mainspring.ledger.replay import Report as Differences
from mainspring.model.events import (
    Event,
    LeaseExpired,
    LogCompacted,
    RunCancelled,
    RunEvent,
    RunFailed,
    RunLost,
    RunReopened,
    RunRetrying,
    RunScheduled,
    RunSnoozed,
    RunStarted,
    RunSucceeded,
)
from mainspring.model.instant import Ms, isoformat
from mainspring.model.revisions import fold_definitions
from mainspring.model.run import OPEN, State
from mainspring.rules.lifecycle import TRANSITIONS
from mainspring.testing.history.report import Call, History, Report

#: Events that end a lease.
_LEASE_ENDS = tuple({event for (s, event), after in TRANSITIONS.items() if s is State.RUNNING and after is not s})
#: Events that prove that the handler was called.
_HANDLER_OUTCOMES = (RunSucceeded, RunRetrying, RunSnoozed)
#: A call may begin this much before its time: clocks show whole milliseconds, and a machine's clock drifts between two
#: answers of the store.
CLOCK_ROUNDING_MS: Ms = 2


def check_runs(history: History, report: Report, lease_ttl: Ms | None) -> None:
    """Check each run's events: epochs (I5), leases (I7), and that no claim starts the run before it is due (I6).

    `lease_ttl`: the milliseconds that a lease lasts; it must not expire earlier. None: not checked.
    """
    for run_id, stream in history.run_streams().items():
        _check_tokens(run_id, stream, report)
        _check_leases(run_id, stream, report, lease_ttl)
        _check_not_early(run_id, stream, report)


def _check_tokens(run_id: str, stream: Sequence[RunEvent], report: Report) -> None:
    """Check that the epoch grows with each claim, and that each event that ends a lease has the newest epoch (I5).

    An event that ends a lease but has no epoch is not checked. `stream`: the events of the run.
    """
    newest = 0
    for index, event in enumerate(stream):
        if isinstance(event, RunStarted):
            if (event.epoch or 0) <= newest:
                what = f"run {run_id} was claimed again under token {event.epoch}, after {newest}"
                report.add("I5", what, stream[max(0, index - 2) : index + 1])
            newest = max(newest, event.epoch or 0)
        elif isinstance(event, _LEASE_ENDS) and event.epoch is not None and event.epoch != newest:
            what = f"run {run_id}: {type(event).__name__} of token {event.epoch} was accepted, the newest is {newest}"
            report.add("I5", what, _since_started(stream, index, event.epoch))


def _since_started(stream: Sequence[RunEvent], index: int, epoch: int) -> list[RunEvent]:
    """Return the events from the claim under `epoch` to the one at `index`; only that one if there is no such claim."""
    first = next((i for i, e in enumerate(stream) if isinstance(e, RunStarted) and e.epoch == epoch), index)
    return list(stream[first : index + 1])


def _check_leases(run_id: str, stream: Sequence[RunEvent], report: Report, ttl: Ms | None) -> None:
    """Check that a run is not claimed while it is held, and that no lease expires before it has lasted `ttl` ms (I7).

    `ttl` None: the time of the expiry is not checked. If the time of a claim is the time at which its run was due, the
    claim may have been made ahead: then a lease that lasted `PLAN_AHEAD_MS` less is accepted.
    """
    holder: tuple[int, RunEvent] | None = None
    given: Ms = 0
    for index, (event, ready) in enumerate(_with_ready(stream)):
        if isinstance(event, RunStarted):
            if holder is not None:
                what = f"run {run_id} was claimed by {event.owner} while {holder[1].owner} still held it"
                report.add("I7", what, stream[holder[0] : index + 1], kind="doubled")
            holder = (index, event)
            given = event.at - (PLAN_AHEAD_MS if event.at == ready else 0)  # a run claimed ahead starts later
        elif isinstance(event, _LEASE_ENDS):
            if holder is not None and ttl is not None and _by_expiry(event) and event.at - given < ttl:
                held = event.at - given
                what = f"run {run_id}: the lease of {holder[1].owner} was ended after {held} ms, it lasts {ttl} ms"
                report.add("I7", what, stream[holder[0] : index + 1])
            holder = None


def _by_expiry(event: RunEvent) -> bool:
    """Return True if the event ended a lease that was not renewed. False for `RunLost`, which has other causes, too."""
    if isinstance(event, RunFailed):
        return event.reason == "crashed"
    return isinstance(event, LeaseExpired) or (isinstance(event, RunCancelled) and event.by == "lease")


def _with_ready(stream: Sequence[RunEvent]) -> Iterator[tuple[RunEvent, Ms | None]]:
    """Yield each event of a run with the due time known by then; None: no event has set one yet.

    The creation, a retry, a snooze, an expired lease and a reopening set the due time; other events keep it.
    """
    ready: Ms | None = None
    for event in stream:
        match event:
            case RunScheduled():
                ready = event.due_at
            case RunRetrying():
                ready = event.next_attempt_at
            case RunSnoozed():
                ready = event.until
            case LeaseExpired() | RunReopened():
                ready = event.ready_at
            case _:
                pass
        yield event, ready


def _check_not_early(run_id: str, stream: Sequence[RunEvent], report: Report) -> None:
    """Check that no claim lets the run start before it is due (I6)."""
    for index, (event, ready) in enumerate(_with_ready(stream)):
        if isinstance(event, RunStarted) and ready is not None and event.at < ready:
            what = f"run {run_id} was claimed to start {ready - event.at} ms before it was due"
            report.add("I6", what, stream[max(0, index - 1) : index + 1], kind="late")


# ── the handlers' own log ───────────────────────────────────────────────────


def check_calls(history: History, calls: Sequence[Call], report: Report, at_most_once: Collection[str]) -> None:
    """Compare `calls`, the handlers' own log, with the event log (I4, I5, I6, I10).

    `at_most_once`: names of tasks with recovery="fail".
    """
    streams = history.run_streams()
    by_run: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_run[call.run_id].append(call)
    _check_keys(by_run, streams, report)
    for run_id in by_run.keys() - streams.keys():
        report.add("I4", f"a handler was called for run {run_id}, which the log does not know", kind="extra")
    once = set(at_most_once)
    for run in history.runs:
        stream = streams.get(run.id, [])
        mine = sorted(by_run.get(run.id, []), key=lambda call: (call.began, call.token))
        if run.task in once or (run.options is not None and run.options.recovery == "fail"):
            _check_at_most_once(run.id, mine, stream, report)
        _check_called(run.id, mine, stream, report)
        _check_tokens_of_calls(run.id, mine, stream, report)
        _check_begin_times(run.id, mine, stream, report)
        _check_acceptance_order(run.id, mine, stream, report)
        _check_one_alive(run.id, mine, stream, report)


def _check_keys(by_run: dict[str, list[Call]], streams: dict[str, list[RunEvent]], report: Report) -> None:
    """Check that each run was called under one idempotency key, which no other run has (I10).

    `by_run`: run id → the calls of its handler. `streams`: run id → the events of the run.
    """
    owners: dict[str, str] = {}
    for run_id, mine in by_run.items():
        keys = sorted({call.key for call in mine})
        if len(keys) > 1:
            shown = ", ".join(keys)
            report.add("I10", f"run {run_id} was called under several keys: {shown}", streams.get(run_id, [])[:4])
        elif owners.setdefault(keys[0], run_id) != run_id:
            what = f"runs {owners[keys[0]]} and {run_id} were called under the same key {keys[0]}"
            report.add("I10", what, [*streams.get(owners[keys[0]], [])[:2], *streams.get(run_id, [])[:2]])


def _check_called(run_id: str, mine: Sequence[Call], stream: Sequence[RunEvent], report: Report) -> None:
    """Check that for each outcome which only a handler can produce, a handler was called under its epoch (I4).

    `mine`: the calls of the run's handler. `stream`: the events of the run.
    """
    tokens = {call.token for call in mine}
    for index, event in enumerate(stream):
        by_handler = isinstance(event, _HANDLER_OUTCOMES) or (
            isinstance(event, RunFailed) and event.began_at is not None
        )
        if by_handler and event.epoch is not None and event.epoch not in tokens:
            what = f"run {run_id}: {type(event).__name__} under token {event.epoch}, and no handler was called"
            report.add("I4", what, stream[max(0, index - 1) : index + 1], kind="lost")


def _check_tokens_of_calls(run_id: str, mine: Sequence[Call], stream: Sequence[RunEvent], report: Report) -> None:
    """Check that each call's epoch (`token`) was given by a claim, and that no two calls have the same epoch (I4).

    `mine`: the calls of the run's handler. `stream`: the events of the run.
    """
    calls = Counter(call.token for call in mine)
    given = {event.epoch for event in stream if isinstance(event, RunStarted)}
    for token in sorted(calls.keys() - given):
        report.add(
            "I4", f"run {run_id} was called under token {token}, which was never claimed", stream[:4], kind="extra"
        )
    for token, count in calls.items():
        if count > 1 and token in given:
            what = f"run {run_id} was called {count} times under the one token {token}"
            report.add("I4", what, stream[:4], kind="doubled", count=count - 1)


def _check_begin_times(run_id: str, mine: Sequence[Call], stream: Sequence[RunEvent], report: Report) -> None:
    """Check that no call in `mine`, the calls of the run's handler, began too early (I6).

    Too early is more than `CLOCK_ROUNDING_MS` before the run was due, by its events in `stream`. Calls under a claim
    that itself starts the run too early are left out: `_check_not_early` reports that claim.
    """
    started = [(event, at) for event, at in _with_ready(stream) if isinstance(event, RunStarted)]
    # An event before `at` is a claim that starts the run too early, which `_check_not_early` reports.
    ready = {event.epoch: at for event, at in started if at is not None and at <= event.at}
    for call in mine:
        early = ready.get(call.token, 0) - call.began
        if early > CLOCK_ROUNDING_MS:
            report.add("I6", f"run {run_id} was called {early} ms before it was due", stream[:4], kind="late")


def _check_at_most_once(run_id: str, mine: Sequence[Call], stream: Sequence[RunEvent], report: Report) -> None:
    """Check that a run with recovery="fail" was called again only after a retry, a snooze or a manual reopening (I4).

    `mine`: the calls of the run's handler. `stream`: the events of the run.
    """
    asked = {event.epoch for event in stream if isinstance(event, RunRetrying | RunSnoozed)}
    reopened = sum(isinstance(event, RunReopened) for event in stream)
    again = sum(call.token not in asked for call in mine) - 1 - reopened
    if again > 0:
        what = f"run {run_id} must run at most once and was called {again} times too often"
        report.add("I4", what, stream, kind="doubled", count=again)


def _check_acceptance_order(run_id: str, mine: Sequence[Call], stream: Sequence[RunEvent], report: Report) -> None:
    """Check that no outcome under an older epoch was accepted after a call under a newer epoch had begun (I5).

    `mine`: the calls of the run's handler. `stream`: the events of the run. If the log has the claim of the newer epoch
    before the outcome, nothing is reported: `_check_tokens` does that.
    """
    for index, event in enumerate(stream):
        if not isinstance(event, _LEASE_ENDS) or event.epoch is None:
            continue
        newer = [call for call in mine if call.token > (event.epoch or 0) and call.began < event.at]
        if newer and not any(isinstance(e, RunStarted) and e.epoch == newer[0].token for e in stream[:index]):
            what = f"run {run_id}: token {event.epoch} was accepted after {newer[0].token} had been called"
            report.add("I5", what, _since_started(stream, index, event.epoch))


def _check_one_alive(run_id: str, mine: Sequence[Call], stream: Sequence[RunEvent], report: Report) -> None:
    """Check that no call of a run began while an earlier one was still alive, unless the earlier lease had ended (I4).

    A lease ends by a crash of its worker, or because the store could not be reached. `mine`: the calls of the run's
    handler, by their begin. `stream`: the events of the run.
    """
    expired = {
        event.epoch
        for event in stream
        if isinstance(event, LeaseExpired | RunLost) or (isinstance(event, RunFailed) and event.reason == "crashed")
    }
    for index, call in enumerate(mine):
        for later in mine[index + 1 :]:
            if call.ended is None or later.began >= call.ended or later.token == call.token or call.token in expired:
                continue
            what = f"run {run_id} was called under token {later.token} while its call under {call.token} was alive"
            report.add("I4", what, stream, kind="doubled")


# ── the log as a whole ──────────────────────────────────────────────────────


def check_fold(history: History, report: Report) -> None:
    """Check that folding the events gives the rows (I8).

    An illegal transition of a run that a reported I7 violation shows is left out: that violation is its cause.
    """
    found = _replay_differences(history)
    reported = {event.run_id for v in report.violations if v.invariant == "I7" for event in v.slice}
    streams: dict[str, list[Event]] = {}
    for event in history.events:
        streams.setdefault((event.run_id if isinstance(event, RunEvent) else event.schedule_id) or "", []).append(event)
    for difference in found.differences:
        if difference.kind == "transition" and difference.id in reported:
            continue
        what = f"{difference.kind} {difference.id}: {difference.what}"
        report.add("I8", what, _slice_around(streams.get(difference.id, []), difference.what))


def _replay_differences(history: History) -> Differences:
    """Replay the log, compare the result with every row, and return the differences."""
    found = Differences()
    replay = Replay(found)
    for event in history.events:
        replay.take(event)
    replay.end()
    for run in history.runs:
        replay.compare_run(run)
    replay.report_runs_without_row()
    for schedule in history.schedules:
        replay.compare_schedule(schedule)
    replay.report_schedules_without_row()
    for span in history.spans:
        replay.compare_span(span)
    replay.report_spans_without_row()
    return found


def _slice_around(stream: list[Event], what: str) -> list[Event]:
    """Return the event that the text `what` names as "event N", with two before it and one after it.

    If `what` names none, return the last three events of the stream.
    """
    named = [i for i, event in enumerate(stream) if f"event {event.seq} " in what]
    at = named[0] if named else len(stream) - 1
    return stream[max(0, at - 2) : at + 2]


def check_tail(history: History, report: Report, seen: Iterable[int] | None) -> None:
    """Check that `tail` returned every event once and in order (I9), and that a subscriber received all in order.

    `seen`: the event numbers that the subscriber received, in that order, possibly repeated; None: no subscriber.
    """
    by_seq = {event.seq: event for event in history.events}
    _check_event_order("tail", history.tailed, by_seq, report, repeats=False)
    if seen is not None:
        _check_event_order("a subscriber", list(seen), by_seq, report, repeats=True)


def _check_event_order(
    reader: str, seqs: list[int], by_seq: dict[int, Event], report: Report, *, repeats: bool
) -> None:
    """Check that a reader received every event in order, only once unless `repeats` is True, and no others (I9).

    If retention has removed events, events that are no longer in the log are allowed. `reader`: its name in reports.
    `seqs`: the numbers of the events that it received. `by_seq`: event number → event of the log.
    """
    known: set[int] = set()
    newest = 0
    for seq in seqs:
        event = [by_seq[seq]] if seq in by_seq else []
        if seq in known:
            if not repeats:
                report.add("I9", f"{reader} handed out event {seq} twice", event)
            continue
        known.add(seq)
        if seq < newest:
            report.add("I9", f"{reader} handed out event {seq} after {newest}", [*event, by_seq[newest]])
        newest = max(newest, seq)
    for seq in sorted(by_seq.keys() - known):
        report.add("I9", f"{reader} never handed out event {seq}", [by_seq[seq]])
    purged = any(isinstance(event, LogCompacted) for event in by_seq.values())
    for seq in sorted(known - by_seq.keys()):
        if not purged:
            report.add("I9", f"{reader} handed out event {seq}, which was never committed")


# ── overlap ─────────────────────────────────────────────────────────────────


def check_overlap(history: History, report: Report) -> None:
    """Check how many leases are held at the same time (I11).

    The runs of a schedule whose runs must not overlap hold at most one, the runs of a gate at most `gate.max`.
    """
    limits = {gate.name: gate.max for gate in history.gates if not gate.name.startswith("schedule:")}
    named = _limits_of_runs(history, limits)
    held: dict[str, dict[str, RunEvent]] = defaultdict(dict)
    for event in history.events:
        if not isinstance(event, RunEvent) or event.run_id is None:
            continue
        if isinstance(event, RunStarted):
            for name in named.get(event.run_id, ()):
                holders = held[name]
                if event.run_id not in holders and len(holders) >= limits.get(name, 1):
                    what = f"{name}: run {event.run_id} was started while {', '.join(holders)} held it"
                    report.add("I11", what, [*holders.values(), event], kind="doubled")
                holders[event.run_id] = event
        elif isinstance(event, _LEASE_ENDS):
            for name in named.get(event.run_id, ()):
                held[name].pop(event.run_id, None)


def _limits_of_runs(history: History, limits: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return run id → the names under which the run's leases are counted.

    These are the run's schedule, if its runs must not overlap, and the run's gates that are in `limits` (gate names).
    """
    exclusive: set[tuple[str, int]] = set()
    for sid, stream in history.schedule_streams().items():
        exclusive |= {(sid, d.revision) for d in fold_definitions(stream) if d.spec.overlap != "allow_parallel"}
    named: dict[str, tuple[str, ...]] = {}
    for event in history.events:
        if isinstance(event, RunScheduled) and event.run_id is not None:
            own = (f"schedule {event.schedule_id}",) if (event.schedule_id, event.revision) in exclusive else ()
            named[event.run_id] = (*own, *(gate for gate in event.gates if gate in limits))
    return named


# ── what is still open ──────────────────────────────────────────────────────


def check_complete(history: History, report: Report, until: Ms, longest: Ms) -> None:
    """Check that no run that is due at `until` is open, except runs that began in the `longest` ms before `until`.

    Such a run is reported as incomplete, under no invariant.
    """
    streams = history.run_streams()
    for run in history.runs:
        running = run.state is State.RUNNING
        fresh = (run.started_at or 0) > until - longest if running else run.ready_at > until
        if run.state not in OPEN or fresh:
            continue
        what = f"run {run.id} of {run.task!r} is still {run.state.value}, due since {isoformat(run.ready_at)}"
        what += f", parked at {run.parked_on}" if run.parked_on else ""
        report.add("", what, streams.get(run.id, [])[-3:], kind="incomplete")


def check_acknowledged(history: History, acknowledged: Iterable[str], report: Report) -> None:
    """Check that every run whose enqueue was confirmed to a caller exists (I2)."""
    known = {run.id for run in history.runs}
    for run_id in acknowledged:
        if run_id not in known:
            report.add("I2", f"run {run_id} was acknowledged to its caller and does not exist", kind="lost")
