"""Masked events: events and definitions as they may be shown, without the query values of agents' URLs.

Earlier versions stored these values in the definition. Now they are kept beside the header values.
"""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.model.events import Event, RunScheduled, ScheduleCreated, ScheduleSnapshot, ScheduleUpdated
from mainspring.model.policies import RunOptions
from mainspring.model.query_values import hide_query_values
from mainspring.model.schedule import ScheduleSpec


def mask_event(event: Event) -> Event:
    """Return an event as it may be shown; the event itself if it holds no query value."""
    match event:
        case ScheduleCreated() | ScheduleUpdated():
            spec = mask_spec(event.spec)
            return event if spec is event.spec else replace(event, spec=spec)
        case ScheduleSnapshot():
            state = replace(event.state, spec=mask_spec(event.state.spec))
            past = tuple(replace(one, spec=mask_spec(one.spec)) for one in event.definitions)
            return replace(event, state=state, definitions=past)
        case RunScheduled(options=RunOptions() as options):
            shown = _mask_options(options)
            return event if shown is options else replace(event, options=shown)
    return event


def mask_spec(spec: ScheduleSpec) -> ScheduleSpec:
    """Return a definition as it may be shown; the definition itself if it holds no query value."""
    if spec.options is None or (shown := _mask_options(spec.options)) is spec.options:
        return spec
    return replace(spec, options=shown)


def _mask_options(options: RunOptions) -> RunOptions:
    if options.http is None or (url := hide_query_values(options.http.url)) == options.http.url:
        return options
    return replace(options, http=replace(options.http, url=url))
