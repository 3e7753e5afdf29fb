"""HTTP agents as values: the request that a run makes, the limits of calls, and the stored part of an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from mainspring.model.errors import InvalidInput, suggest_nearest
from mainspring.model.instant import Duration, Ms, duration_ms
from mainspring.model.option_hints import refuse_unknown_options
from mainspring.model.query_values import hide_query_values

if TYPE_CHECKING:
    from urllib.parse import SplitResult

#: The name of the built-in task of every HTTP schedule.
HTTP_TASK = "http"
#: A run that calls an agent fails for good when this number of its leases, held by a worker or the agent, ended without
#: an outcome. The limit is higher than that of other tasks, because a call cannot kill its worker.
MAX_CALL_CRASHES = 5

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
HTTP_METHODS: tuple[Method, ...] = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
#: A call by one of these carries no payload: servers and proxies ignore or refuse a body there.
METHODS_WITHOUT_BODY = ("GET", "HEAD")

MAX_URL_CHARS = 2_048
MAX_AGENT_ID_CHARS = 255
MAX_AGENT_HEADERS = 64
MAX_HEADER_NAME_CHARS = 200
MAX_HEADER_VALUE_CHARS = 8_192

#: Headers that Mainspring sets to describe the call; a schedule may not set them.
MAINSPRING_HEADERS = (
    "Idempotency-Key",
    "X-Schedule-Id",
    "X-Fire-Time",
    "X-Attempt",
    "X-Fencing-Token",
    "X-Deadline",
    "X-Callback-Url",
    "X-Callback-Token",
    "traceparent",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
)
#: Headers that belong to the connection or to the encoding of the body; a schedule may not set them.
CONNECTION_HEADERS = (
    "Host",
    "Content-Length",
    "Content-Encoding",
    "Transfer-Encoding",
    "Connection",
    "Keep-Alive",
    "Upgrade",
    "TE",
    "Trailer",
    "Proxy-Authorization",
    "Accept-Encoding",
    "Expect",
)
#: Lower-case name of each header that a schedule may not set → the name as it is usually written.
_RESERVED = {name.lower(): name for name in (*MAINSPRING_HEADERS, *CONNECTION_HEADERS)}
#: The characters of a header name.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_URL_FIX = "Write for example https://example.com/run"


class HttpTarget(Struct, frozen=True, omit_defaults=True):
    """The HTTP request that a run makes, as it is stored in the run's options.

    Header values and the query of the URL may be secrets, so they are not stored here: `headers_ref` is the id of the
    key-value entry that holds them, and `header_names` are the names to show. `agent_id` is a label for people.
    """

    url: str
    method: Method = "POST"
    headers_ref: str | None = None
    header_names: tuple[str, ...] = ()
    agent_id: str = ""
    #: The longest time between two callbacks of an agent that answered 202.
    silence: Ms = 60_000
    #: The time that an agent that answered 202 has for its whole work, added to the call's own time-out.
    within: Ms = 3_600_000
    #: True: `url` has `***` in place of the values of its query, which is in the key-value entry. False: `url` is what
    #: is called, as a caller passed it or an earlier version stored it.
    query_kept: bool = False


class HttpAgent(Struct, frozen=True, repr_omit_defaults=True):
    """An HTTP request as a caller passes it: the target, and the header values, which are stored apart from the target.

    `headers` None: keep the header values that are stored for the schedule.
    """

    target: HttpTarget
    headers: Mapping[str, str] | None = None

    def __repr__(self) -> str:
        """Return the target and the names of headers and query, never their values."""
        url = hide_query_values(self.target.url)
        return f"Http({url!r}, method={self.target.method!r}, headers={list(self.target.header_names)})"


class AgentSettings(Struct, frozen=True, kw_only=True):
    """The limits under which this instance calls agents; durations in milliseconds."""

    #: The most concurrent calls to all hosts together. A call that waits for its answer costs next to nothing.
    concurrency: int = 1_000
    #: The most concurrent calls to one host.
    per_host: int = 250
    #: The time-out for opening a connection.
    connect: Ms = 3_000
    #: The time-out of one call whose schedule sets none.
    timeout: Ms = 30_000
    #: The most bytes of an answer that are read.
    max_response: int = 1024 * 1024
    #: The most bytes of an answer that are stored.
    keep_response: int = 64 * 1024
    #: Allow loopback and private addresses. None: a service allows them if only this machine uses it, a program does.
    allow_private: bool | None = None
    #: Names, addresses or networks that may be called although they are private.
    allow_hosts: tuple[str, ...] = ()
    #: Ports that may be called; empty: any. None: 80 and 443 for a service that not only this machine uses, else any.
    allow_ports: tuple[int, ...] | None = None
    #: The URL under which agents reach this service for callbacks. Without it, an answer of 202 ends the call.
    public_url: str | None = None


class HttpResult(Struct, frozen=True, omit_defaults=True):
    """The part of an agent's answer, or of its callback, that is stored as the run's result."""

    status: int
    body: str = ""
    content_type: str = ""
    #: The number of bytes of the answer that were read.
    bytes: int = 0
    #: True if the end of the answer is not in `body`, because it was not read or not stored.
    truncated: bool = False


#: Keywords of HTTP clients → what to write.
_HINTS = {
    **dict.fromkeys(("json", "data", "body", "payload"), "Write payload=… with ms.schedule(…) or ms.http(…)"),
    **dict.fromkeys(("timeout", "retry"), "Give it to the schedule: ms.schedule(name, Http(…), timeout=…, retry=…)"),
    **dict.fromkeys(("auth", "token"), 'Write headers={"Authorization": "Bearer …"}'),
    "params": "Write the query in the URL; its values are kept like header values",
}


@refuse_unknown_options("Http(…)", _HINTS)
def Http(  # noqa: N802 - it reads as the value it makes
    url: str,
    *,
    method: Method = "POST",
    headers: Mapping[str, str] | None = None,
    agent_id: str = "",
    silence: Duration = "60s",
    within: Duration = "1h",
) -> HttpAgent:
    """Check the request of an HTTP agent and return it: `ms.schedule("report", Http("https://…"), cron="0 9 * * *")`.

    `silence` and `within` apply to an agent that answers 202 and reports its end later by a callback: `silence` is the
    longest time between two callbacks. `within` is the time for the whole work, added to the time-out of the call.
    `agent_id` is a label for people. Raises `InvalidInput` for a value that is not acceptable.
    """
    target = HttpTarget(
        url=check_url(url),
        method=check_method(method),
        header_names=tuple(check_headers(headers or {})),
        agent_id=check_agent_id(agent_id),
        silence=duration_ms(silence, field="silence", minimum=1_000),
        within=duration_ms(within, field="within", minimum=1_000),
    )
    return HttpAgent(target, {} if headers is None else dict(headers))


def check_url(url: str, *, field: str = "url") -> str:
    """Return the URL if it can be called: an absolute http or https URL without user and password.

    A host with non-ASCII letters is converted to IDNA. Raises `InvalidInput` for any other URL, and for one that is too
    long, has the port 0, or holds a character that no URL may have. `field` names the URL in the error.
    """
    _check_url_text(url, field)
    from urllib.parse import urlsplit  # here, because only programs with agents need it

    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise InvalidInput(field, f"is not a URL: {error}", _URL_FIX) from None
    if parts.scheme not in ("http", "https"):
        problem = f"has the scheme {parts.scheme!r}" if parts.scheme else "has no scheme"
        raise InvalidInput(field, problem, "Begin it with http:// or https://")
    if "@" in parts.netloc:
        raise InvalidInput(field, "holds a user or a password", "Send them in a header, for example Authorization")
    if not host:
        raise InvalidInput(field, "names no host", _URL_FIX)
    if port == 0:
        raise InvalidInput(field, "has the port 0", "Use 1 to 65535")
    return _with_ascii_host(parts, host, port, field) if not url.isascii() else url


def _check_url_text(url: str, field: str) -> None:
    """Raise `InvalidInput` if the URL is not text, empty or too long, or holds a character that no URL may have."""
    if not isinstance(url, str) or not url:
        raise InvalidInput(field, f"{url!r:.80} is not a URL", _URL_FIX)
    if len(url) > MAX_URL_CHARS:
        raise InvalidInput(field, f"{len(url)} characters are too many", f"Use at most {MAX_URL_CHARS}")
    if any(c <= " " or c == "\x7f" or c in '\\<>"^`{|}' for c in url):
        raise InvalidInput(
            field, "holds a character that no URL has (space, line break, backslash…)", "Percent-encode it"
        )


def _with_ascii_host(parts: SplitResult, host: str, port: int | None, field: str) -> str:
    """Return the URL of `parts` with its host in IDNA. `field` names the URL in errors.

    Raises `InvalidInput` if the host has no IDNA form or the path is not ASCII.
    """
    try:
        name = host.encode("idna").decode()
        path = parts.path.encode().decode("ascii")
    except UnicodeError:
        raise InvalidInput(
            field, "holds letters that no URL may have", "Percent-encode the path, and write the host in IDNA"
        ) from None
    if not name or any(c in "/?#@:\\" for c in name):
        raise InvalidInput(field, f"{host!r} is not the name of a host", "Write it in ASCII")
    return parts._replace(netloc=name if port is None else f"{name}:{port}", path=path).geturl()


def check_method(method: str, *, field: str = "method") -> Method:
    """Return the method if it is one of `HTTP_METHODS`. Else raise `InvalidInput`, which suggests the nearest of them.

    `field` names the method in errors.
    """
    for known in HTTP_METHODS:
        if method == known:
            return known
    fix = suggest_nearest(method.upper(), HTTP_METHODS) if isinstance(method, str) else ""
    raise InvalidInput(field, f"{method!r} is not one of {', '.join(HTTP_METHODS)}", fix)


def check_agent_id(agent_id: str, *, field: str = "agent_id") -> str:
    """Return the label of an agent if it is printable text of at most `MAX_AGENT_ID_CHARS` characters, or empty.

    Raises `InvalidInput`, which names `field`, for any other value.
    """
    if not isinstance(agent_id, str) or len(agent_id) > MAX_AGENT_ID_CHARS or (agent_id and not agent_id.isprintable()):
        raise InvalidInput(field, "is not a short printable text", f"Use at most {MAX_AGENT_ID_CHARS} characters")
    return agent_id


def check_headers(headers: Mapping[str, str], *, field: str = "headers") -> dict[str, str]:
    """Return a copy of the headers (name → value) if all can be sent, none is reserved, and none is given twice.

    Else, and for more than `MAX_AGENT_HEADERS` headers, raise `InvalidInput`. The error names `field` and the header,
    but never shows its value, which may be a secret.
    """
    if not isinstance(headers, Mapping):
        raise InvalidInput(field, "is not an object of names and values", 'Write {"Authorization": "Bearer …"}')
    if len(headers) > MAX_AGENT_HEADERS:
        raise InvalidInput(field, f"{len(headers)} headers are too many", f"Use at most {MAX_AGENT_HEADERS}")
    seen: set[str] = set()
    for name, value in headers.items():
        _check_header_name(name, field)
        where = f"{field}.{name}"
        if name.lower() in seen:
            raise InvalidInput(where, "is given twice (upper and lower case count as equal)", "Remove one")
        seen.add(name.lower())
        _check_header_value(value, where)
    return dict(headers)


def _check_header_name(name: str, field: str) -> None:
    """Raise `InvalidInput`, which names `field`, for a name that no header can have or that a schedule may not set."""
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name) or len(name) > MAX_HEADER_NAME_CHARS:
        raise InvalidInput(
            field, f"{name!r:.80} is not the name of a header", "Use letters, digits and dashes; no line breaks"
        )
    reserved = _RESERVED.get(name.lower())
    if reserved is not None:
        owner = "set by Mainspring" if reserved in MAINSPRING_HEADERS else "a matter of the connection"
        raise InvalidInput(f"{field}.{name}", f"{reserved} is {owner}", "Leave it out, or use another name")


def _check_header_value(value: str, where: str) -> None:
    """Raise `InvalidInput` for a value that no header can carry; `where` names the header in the error."""
    if not isinstance(value, str) or len(value) > MAX_HEADER_VALUE_CHARS:
        raise InvalidInput(
            where, f"is not a text of at most {MAX_HEADER_VALUE_CHARS} characters", "Give a shorter text"
        )
    if any((c < " " and c != "\t") or c == "\x7f" for c in value):
        raise InvalidInput(where, "holds a line break or another control character", "Remove it")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise InvalidInput(
            where, "holds letters that no header can carry", "Encode it, for example as base64"
        ) from None


def origin_of(url: str) -> tuple[str, str, int]:
    """Return (scheme, host, port) of a URL. Stored secrets of a schedule are never sent to another origin."""
    return url.partition(":")[0].lower(), *host_and_port(url)


def host_and_port(url: str) -> tuple[str, int]:
    """Return the host and port of a URL that `check_url` returned. A URL without a port has the port of its scheme."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
