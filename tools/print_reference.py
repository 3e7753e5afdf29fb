"""Write the reference, docs/reference/*.md, from the code: public names, options with defaults, commands, keys, routes.

python tools/print_reference.py             # exit code 1 if a page differs from the code
python tools/print_reference.py --write     # write the pages
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

import reference_texts as texts
from public_names import PUBLIC_MODULES, exports
from reference_parts import (
    cell,
    class_section,
    code,
    command_sections,
    docstring,
    fields_of,
    fields_table,
    first_sentence,
    function_section,
    members,
    options_table,
    table,
)

import mainspring
from mainspring.app.locks import SyncLockGuard
from mainspring.app.options import AppOptions
from mainspring.app.registry import DeclareOptions, TaskSettings
from mainspring.app.task import AsyncTask, TaskOptions
from mainspring.config import settings as config_settings
from mainspring.config.redaction import format_value
from mainspring.config.schema import KEYS, get_value, settings_path
from mainspring.config.settings import ServeSettings
from mainspring.engine.leader import Leadership
from mainspring.model import errors, events
from mainspring.model.health import Health
from mainspring.model.instant import format_duration
from mainspring.model.policies import RunOptions
from mainspring.model.schedule import ScheduleSpec
from mainspring.rules import typestate
from mainspring.rules.definition import PolicyOptions, TriggerOptions

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
#: Methods of `Mainspring` that the page of schedules shows with their options.
DECORATORS = ("cron", "every", "at", "task", "from_config")


def defaults_of(function: Callable[..., Any]) -> dict[str, str]:
    """Return the defaults of a function's parameters, as text."""
    found = inspect.signature(inspect.unwrap(function)).parameters.values()
    return {one.name: repr(one.default).replace("'", '"') for one in found if one.default is not one.empty}


def policy_defaults() -> dict[str, str]:
    """Return the default of each policy of a schedule, as a user would write it."""
    task = "the task's"
    found = dict.fromkeys(("retry", "timeout", "recovery", "priority", "queue"), task) | {"tz": "the app's"}
    for kind in (ScheduleSpec, RunOptions):
        types = {one.name: one.type for one in fields_of(kind)}
        for one in msgspec.structs.fields(kind):
            if one.name in PolicyOptions.__annotations__ and one.name not in found:
                value = one.default
                is_time = types[one.name] == "Ms" and isinstance(value, int)
                found[one.name] = repr(format_duration(value) if is_time else value).replace("'", '"')
    return found | {"on_exhausted": '"continue"'}


def task_defaults() -> dict[str, str]:
    """Return the default of each option of a task."""
    found = {one.name: one.default for one in fields_of(TaskOptions)}
    return {
        **{name: default for name, default in found.items() if name in TaskSettings.__annotations__},
        "name": "None",
        "executor": '"auto"',
        "retry": "Retry()",
        "priority": '"normal"',
    }


def app_page() -> str:
    parts = [
        f"# `Mainspring`\n\n{texts.DURATIONS}",
        "```text\nMainspring(url: str | None = None, *, store: Store | None = None, **options)\n```",
        texts.APP,
        "## Options\n\n" + options_table([AppOptions], defaults_of(mainspring.Mainspring.__init__)),
        function_section(mainspring.Mainspring.from_config.__func__, "Mainspring.from_config"),  # type: ignore[attr-defined]  # it is a classmethod
        f"## Attributes and methods\n\n{texts.BLOCKING}",
        texts.ELSEWHERE,
        members(mainspring.Mainspring, "ms", leave_out=DECORATORS),
        class_section(Health) + "\n\n" + fields_table(Health, "`ok`, or a reason to look"),
        class_section(Leadership) + "\n\n" + fields_table(Leadership, "The name of the instance."),
        function_section(mainspring.open_broker),
    ]
    return "\n\n".join(parts)


def schedules_page() -> str:
    ms = mainspring.Mainspring
    parts = [
        f"# Schedules\n\n{texts.DURATIONS}",
        *(function_section(getattr(ms, name), f"@ms.{name}") for name in ("cron", "every", "at")),
        texts.DECLARING,
        options_table([DeclareOptions], task_defaults() | {"args": "()", "kwargs": "None"}),
        texts.WHEN,
        options_table([TriggerOptions], dict.fromkeys(TriggerOptions.__annotations__, "")),
        texts.POLICIES,
        options_table([PolicyOptions], policy_defaults()),
        *(class_section(one, constructor=True) for one in (mainspring.Cron, mainspring.Every, mainspring.At)),
        function_section(mainspring.Window),
        function_section(mainspring.Retry),
        class_section(mainspring.RetryPolicy),
        options_table([mainspring.RetryPolicy]),
        class_section(mainspring.Schedule),
        fields_table(mainspring.Schedule, "The option of this name."),
        members(mainspring.Schedule, "schedule"),
    ]
    return "\n\n".join(parts)


def tasks_page() -> str:
    states = table(("state", "meaning"), ((code(one.value), cell(texts.STATES[one])) for one in mainspring.State))
    parts = [
        f"# Tasks and runs\n\n{texts.DURATIONS}",
        function_section(mainspring.Mainspring.task, "@ms.task"),
        options_table([TaskSettings], task_defaults()),
        texts.TASK,
        members(
            AsyncTask,
            "send",
            leave_out=("new_run", "gates", "handler", "with_options", "enqueue_many_blocking", "connection_of"),
        ),
        class_section(mainspring.RunHandle),
        members(mainspring.RunHandle, "handle"),
        class_section(mainspring.Context),
        "`ctx.deps` is the value of `Mainspring(deps=…)`.",
        members(mainspring.Context, "ctx"),
        *(class_section(one, constructor=True) for one in (mainspring.Fail, mainspring.Cancel, mainspring.Snooze)),
        function_section(mainspring.Depends),
        class_section(mainspring.Priority) + "\n\n`CRITICAL`, `HIGH`, `NORMAL` and `LOW`, or the same words as text.",
        class_section(mainspring.State) + "\n\n" + states,
        class_section(mainspring.Run),
        fields_table(mainspring.Run),
        members(mainspring.Run, "run"),
        class_section(mainspring.LogLine),
        fields_table(mainspring.LogLine, "The line."),
        members(mainspring.LogLine, "line"),
    ]
    return "\n\n".join(parts)


def agents_page() -> str:
    parts = [
        f"# HTTP agents and locks\n\n{texts.DURATIONS} How to use them: [agents](../agents.md), [locks](../locks.md).",
        function_section(mainspring.Http),
        class_section(mainspring.HttpAgent),
        class_section(mainspring.AgentSettings),
        options_table([mainspring.AgentSettings]),
        class_section(mainspring.HttpResult),
        fields_table(mainspring.HttpResult, "Status, body and content type of the answer."),
        class_section(mainspring.LockGuard),
        members(mainspring.LockGuard, "guard"),
        class_section(SyncLockGuard),
        class_section(mainspring.ExecutionGuard),
        members(mainspring.ExecutionGuard, "port"),
    ]
    return "\n\n".join(parts)


def events_page() -> str:
    base = f"{docstring(events.Event)}\n\n{fields_text(events.Event)}"
    shared = docstring(events).split("Fields that several")[1]
    kinds = [one for one in vars(events).values() if isinstance(one, type) and issubclass(one, events.Event)]
    rows = []
    for kind in kinds:
        if kind is events.Event:
            continue
        public = code(kind.__name__) + (" ¹" if kind.__name__ not in mainspring.__all__ else "")
        rows.append((public, cell(" ".join(docstring(kind).split())), fields_text(kind)))
    parts = [
        texts.EVENTS,
        f"## `Event`\n\n{base}",
        f"Fields that several{shared}",
        texts.ALL_EVENTS,
        table(("event", "meaning", "fields of its own"), rows),
        class_section(mainspring.LoggingHandler, constructor=True),
    ]
    return "\n\n".join(parts)


def fields_text(kind: type) -> str:
    """Return the names and types of the fields that a class itself defines."""
    return ", ".join(code(f"{one.name}: {one.type}") for one in fields_of(kind))


def errors_page() -> str:
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.MainspringError)]
    rows = []
    for kind in kinds:
        bases = ", ".join(code(one.__name__) for one in kind.__bases__)
        public = code(kind.__name__) + (" ¹" if kind.__name__ not in mainspring.__all__ else "")
        rows.append((public, bases, cell(" ".join(docstring(kind).split()))))
    return "\n\n".join(
        [
            texts.ERRORS,
            table(("error", "is a", "meaning"), rows),
            "¹ Import it from `mainspring.model.errors`, or catch the error that it is.",
        ]
    )


def typestate_page() -> str:
    kinds = [one for one in vars(typestate).values() if isinstance(one, type) and one.__module__ == typestate.__name__]
    parts = ["# States as types", docstring(typestate), class_section(mainspring.Complete)]
    for kind in kinds:
        parts.append(class_section(kind))
        parts.append(members(kind, kind.__name__.lower()))
    return "\n\n".join(part for part in parts if part)


def testing_page() -> str:
    from mainspring import testing

    parts = ["# `mainspring.testing`", docstring(testing) + " How to use them: [testing](../testing.md)."]
    for name in testing.__all__:
        one = getattr(testing, name)
        if isinstance(one, type):
            parts += [
                class_section(one, constructor=True),
                members(one, "mainspring" if name == "Kit" else name.lower()),
            ]
        else:
            parts.append(function_section(one))
    rows = []
    for module in PUBLIC_MODULES[1:]:
        for line in exports(module):
            name = line.rpartition(".")[2]
            one = getattr(import_module(module), name)
            text = first_sentence(one) if callable(one) and inspect.getdoc(one) else ""
            rows.append((code(name), code(module), cell(text)))
    parts.append(texts.MODULES)
    parts.append(table(("name", "module", "meaning"), rows))
    return "\n\n".join(parts)


def commands_page() -> str:
    from mainspring.cli.main import mainspring as command

    return "\n\n".join(["# Command line", *command_sections(command, "mainspring")])


@cache
def _structs() -> dict[str, type]:
    """Return the structs of the configuration, by the section that they describe; "" for the top."""
    found: dict[str, type] = {"": ServeSettings}
    for one in msgspec.structs.fields(ServeSettings):
        kind = type(getattr(ServeSettings(), one.name))
        if issubclass(kind, msgspec.Struct):
            found[one.name] = kind
    return found


def key_meaning(key: str) -> str:
    """Return the comment of the field that holds a key's value."""
    if key in texts.KEY_MEANINGS:
        return texts.KEY_MEANINGS[key]
    section, dot, name = settings_path(key).rpartition(".")
    kind = _structs()[section if dot else ""]
    for one in (kind, config_settings.SchedulerSettings):
        for field in fields_of(one):
            if field.name == name and field.comment:
                return field.comment.replace("None", "null")
    return ""


def configuration_page() -> str:
    rows = []
    for key, known in KEYS.items():
        value = format_value(key, get_value(ServeSettings(), key))
        meaning = key_meaning(key)
        if not meaning:
            raise SystemExit(f"the key {key} has no meaning: give its field a comment #:")
        rows.append((code(key), code(value), cell(meaning), "yes" if known.live else ""))
    return "\n\n".join(
        [
            "# Configuration",
            texts.CONFIGURATION,
            table(("key", "default", "meaning", "live"), rows),
        ]
    )


def rest_page() -> str:
    from mainspring.api.openapi import document

    found = document()
    parts = [
        "# REST API",
        texts.REST,
    ]
    common = {"401", "403", "421", "422", "429", "503"}
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            good, *bad = operation["responses"].items()
            answers = ", ".join(status for status, _ in bad if status not in common)
            lines = [f"## `{method.upper()} {path}`", operation["description"]]
            rows = [
                (code(one["name"]), one["in"], cell(schema_text(one["schema"])), cell(one["description"]))
                for one in operation["parameters"]
            ]
            if rows:
                lines.append(table(("parameter", "in", "type", "meaning"), rows))
            if "requestBody" in operation:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                lines.append(f"Body: {schema_text(schema)}. {operation['requestBody']['description']}")
            content = list(good[1].get("content", {}).values())
            kind = f" ({schema_text(content[0]['schema'])})" if content else ""
            lines.append(
                f"Answers: {good[0]}: {good[1]['description']}{kind}" + (f" Also {answers}." if answers else "")
            )
            parts += [" ".join(line.split()) if not line.startswith("|") else line for line in lines]
    for name, schema in found["components"]["schemas"].items():
        required = schema.get("required", [])
        fields = [
            (
                code(field) + (" (required)" if field in required else ""),
                cell(schema_text(one)),
                cell(one["description"]),
            )
            for field, one in schema.get("properties", {}).items()
        ]
        parts += [f"## {name}", schema["description"]]
        if fields:
            parts.append(table(("field", "type", "meaning"), fields))
    return "\n\n".join(parts)


def schema_text(schema: dict[str, Any]) -> str:
    """Return the type of a JSON schema in words, with a link to the schema that it names."""
    if "default" in schema:
        rest = {name: value for name, value in schema.items() if name != "default"}
        return f"{schema_text(rest)}, default `{msgspec.json.encode(schema['default']).decode()}`"
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(schema_text(part) for part in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {schema_text(schema.get('items', {}))}"
    limits = [f"≥ {schema['minimum']}"] if "minimum" in schema else []
    limits += [f"≤ {schema['maximum']}"] if "maximum" in schema else []
    return " ".join([str(schema.get("type", "anything")), *limits])


PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "app.md": ("`Mainspring(…)`: its options, attributes and methods", app_page),
    "schedules.md": ("decorators and options of schedules, triggers, `Window`, `Retry`, `Schedule`", schedules_page),
    "tasks.md": ("options of tasks, `enqueue`, `using`, `Context`, `RunHandle`, `Run`, states", tasks_page),
    "agents-and-locks.md": ("`Http`, `AgentSettings`, lock guards", agents_page),
    "events.md": ("every event with its fields", events_page),
    "errors.md": ("every error", errors_page),
    "command-line.md": ("every command with its options", commands_page),
    "configuration.md": ("every key of the configuration, with default and meaning", configuration_page),
    "rest.md": ("every route, field and answer of the REST API", rest_page),
    "testing.md": ("`mainspring.testing`, contract suites", testing_page),
    "typestate.md": ("`Waiting`, `Running` and the other states as types", typestate_page),
}


def index_page(pages: dict[str, str]) -> str:
    """Return the index: the pages, and for each public name the page that has a section about it."""
    rows = []
    for name in mainspring.__all__:
        if name.startswith("__"):
            continue
        home = next((page for page, text in pages.items() if f"## `{name}`" in text or f"| `{name}` |" in text), None)
        if home is None:
            raise SystemExit(f"no page of the reference shows {name}")
        rows.append((code(name), f"[{home.removesuffix('.md')}]({home})"))
    listed = table(("page", "content"), ((f"[{page}]({page})", PAGES[page][0]) for page in pages))
    return "\n\n".join(
        [
            "# Reference",
            texts.INDEX,
            listed,
            "## Names that you import from `mainspring`",
            table(("name", "page"), rows),
        ]
    )


@cache
def reference() -> dict[str, str]:
    """Return the pages: name of the file → text."""
    pages = {name: f"{make()}\n" for name, (_, make) in PAGES.items()}
    pages = {"README.md": index_page(pages) + "\n", **pages}
    return {name: f"{texts.NOTE}\n{text}" for name, text in pages.items()}


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the pages into docs/reference")
    options = parser.parse_args(None if arguments is None else list(arguments))
    differing = []
    for name, text in reference().items():
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            differing.append(name)
            if options.write:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    print("\n".join(differing) or "the reference is up to date")
    return 1 if differing and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
