"""HTTP agents as values: what is called, with which limits, and what is kept of the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from mainspring.model.errors import InvalidInput, nearest
from mainspring.model.instant import Duration, Ms, duration_ms

if TYPE_CHECKING:
    from urllib.parse import SplitResult

#: The task of every HTTP schedule.
HTTP_TASK = "http"
#: So often the worker or the agent may fall silent; more often than elsewhere, for a call cannot kill its worker.
MAX_CRASHES = 5

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
METHODS: tuple[Method, ...] = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

MAX_URL, MAX_HEADERS, MAX_HEADER, MAX_AGENT_ID = 2_048, 64, 8_192, 255

#: Headers that say what this call is; a schedule may not set them.
OURS = (
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
#: Headers that belong to the connection or to the body as it is sent.
CONNECTION = (
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
_RESERVED = {name.lower(): name for name in (*OURS, *CONNECTION)}
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class HttpTarget(Struct, frozen=True, omit_defaults=True):
    """Whom a run calls. Header values are not here: `headers_ref` names them, they live beside the log."""

    url: str
    method: Method = "POST"
    headers_ref: str | None = None
    header_names: tuple[str, ...] = ()
    agent_id: str = ""
    #: After a 202: so long the agent may stay silent, and so long it has in all.
    silence: Ms = 60_000
    within: Ms = 3_600_000


class HttpAgent(Struct, frozen=True, repr_omit_defaults=True):
    """A target as somebody wants it, with the header values that are kept apart; None keeps what is there."""

    target: HttpTarget
    headers: Mapping[str, str] | None = None

    def __repr__(self) -> str:  # never the values
        return f"Http({self.target.url!r}, method={self.target.method!r}, headers={list(self.target.header_names)})"


class AgentSettings(Struct, frozen=True, kw_only=True):
    """How this instance calls agents."""

    #: Calls at once, in all and to one host. A call that waits for its answer costs next to nothing.
    concurrency: int = 1_000
    per_host: int = 250
    connect: Ms = 3_000
    #: For one call, where the schedule says nothing.
    timeout: Ms = 30_000
    #: Bytes read of an answer, and kept of it.
    max_response: int = 1024 * 1024
    keep_response: int = 64 * 1024
    #: Loopback and private addresses; None: as long as the service itself is bound to loopback.
    allow_private: bool | None = None
    #: Names, addresses or networks that may be called although they are private.
    allow_hosts: tuple[str, ...] = ()
    #: None: any port.
    allow_ports: tuple[int, ...] | None = None
    #: Where agents reach this service; without it an answer of 202 is the end of the call.
    public_url: str | None = None


class HttpResult(Struct, frozen=True, omit_defaults=True):
    """What is kept of an answer, as the run's result."""

    status: int
    body: str = ""
    content_type: str = ""
    #: Bytes read; more may have come where `truncated`.
    bytes: int = 0
    truncated: bool = False


def Http(  # noqa: N802 - it reads as the value it makes
    url: str,
    *,
    method: Method = "POST",
    headers: Mapping[str, str] | None = None,
    agent_id: str = "",
    silence: Duration = "60s",
    within: Duration = "1h",
) -> HttpAgent:
    """An HTTP agent to call, checked: `ms.schedule("report", Http("https://…"), cron="0 9 * * *")`.

    `silence` and `within` matter to agents that answer 202: how long they may say nothing, and how long they have.
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
    """An absolute http or https URL without credentials; its host in ASCII."""
    if not isinstance(url, str) or not url:
        raise InvalidInput(field, f"{url!r:.80} is not a URL", "Write for example https://example.com/run")
    if len(url) > MAX_URL:
        raise InvalidInput(field, f"{len(url)} characters are too many", f"Use at most {MAX_URL}")
    if any(c <= " " or c == "\x7f" or c in '\\<>"^`{|}' for c in url):
        raise InvalidInput(
            field, "holds a character that no URL has (space, line break, backslash…)", "Percent-encode it"
        )
    from urllib.parse import urlsplit  # only programs with agents need it

    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise InvalidInput(field, f"is not a URL: {error}", "Write for example https://example.com/run") from None
    if parts.scheme not in ("http", "https"):
        said = f"the scheme {parts.scheme!r}" if parts.scheme else "no scheme"
        raise InvalidInput(field, f"has {said}", "Begin it with http:// or https://")
    if "@" in parts.netloc:
        raise InvalidInput(field, "holds a user or a password", "Send them in a header, for example Authorization")
    if not host:
        raise InvalidInput(field, "names no host", "Write for example https://example.com/run")
    if port == 0:
        raise InvalidInput(field, "has the port 0", "Use 1 to 65535")
    return _with_ascii_host(parts, host, port, field) if not url.isascii() else url


def _with_ascii_host(parts: SplitResult, host: str, port: int | None, field: str) -> str:
    try:
        name = host.encode("idna").decode()
        path = parts.path.encode().decode("ascii")
    except UnicodeError:
        raise InvalidInput(
            field, "holds letters that must be written otherwise", "Percent-encode the path, write the host in IDNA"
        ) from None
    if not name or any(c in "/?#@:\\" for c in name):
        raise InvalidInput(field, f"{host!r} is not the name of a host", "Write it in ASCII")
    return parts._replace(netloc=name if port is None else f"{name}:{port}", path=path).geturl()


def check_method(method: str, *, field: str = "method") -> Method:
    """One of the methods agents are called with."""
    for known in METHODS:
        if method == known:
            return known
    fix = nearest(method.upper(), METHODS) if isinstance(method, str) else ""
    raise InvalidInput(field, f"{method!r} is not one of {', '.join(METHODS)}", fix)


def check_agent_id(agent_id: str, *, field: str = "agent_id") -> str:
    """What the agent is called; it is for people."""
    if not isinstance(agent_id, str) or len(agent_id) > MAX_AGENT_ID or (agent_id and not agent_id.isprintable()):
        raise InvalidInput(field, "is not a short printable text", f"Use at most {MAX_AGENT_ID} characters")
    return agent_id


def check_headers(headers: Mapping[str, str], *, field: str = "headers") -> dict[str, str]:
    """Headers as they can be sent; an error names the header, never its value."""
    if not isinstance(headers, Mapping):
        raise InvalidInput(field, "is not an object of names and values", 'Write {"Authorization": "Bearer …"}')
    if len(headers) > MAX_HEADERS:
        raise InvalidInput(field, f"{len(headers)} headers are too many", f"Use at most {MAX_HEADERS}")
    seen: set[str] = set()
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > 200:
            raise InvalidInput(
                field, f"{name!r:.80} is not the name of a header", "Use letters, digits and dashes; no line breaks"
            )
        where = f"{field}.{name}"
        if name.lower() in _RESERVED:
            whose = "set by Mainspring" if _RESERVED[name.lower()] in OURS else "a matter of the connection"
            raise InvalidInput(where, f"{_RESERVED[name.lower()]} is {whose}", "Leave it out, or use another name")
        if name.lower() in seen:
            raise InvalidInput(where, "is given twice", "Names of headers differ in more than case")
        seen.add(name.lower())
        if not isinstance(value, str) or len(value) > MAX_HEADER:
            raise InvalidInput(where, f"is not a text of at most {MAX_HEADER} characters", "Give a shorter text")
        if any((c < " " and c != "\t") or c == "\x7f" for c in value):
            raise InvalidInput(where, "holds a line break or another control character", "Remove it")
        try:
            value.encode("latin-1")
        except UnicodeEncodeError:
            raise InvalidInput(where, "holds letters that no header can carry", "Encode it, e.g. as base64") from None
    return dict(headers)


def host_and_port(url: str) -> tuple[str, int]:
    """Whom a checked URL names."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
