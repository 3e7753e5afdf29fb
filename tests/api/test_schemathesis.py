"""Requests made from the OpenAPI document: no server error, no answer that the document does not allow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import ignored_auth, negative_data_rejection, positive_data_acceptance

from mainspring import Mainspring
from mainspring.api.openapi import EXAMPLES, document
from tests.server.serving import served

REQUESTS = int(os.environ.get("MAINSPRING_API_REQUESTS", "2000"))
SEED = int(os.environ.get("MAINSPRING_API_SEED", "1"))
OPERATIONS = [(method.upper(), path) for path, found in document()["paths"].items() for method in found]
#: Without keys: tests/server/test_access.py tests them.
SCHEMA = schemathesis.openapi.from_dict(document() | {"security": []})
#: Each operation gets valid and invalid requests, for rows that exist and for others.
WAYS = [(mode, known) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE) for known in (True, False)]
#: Large bodies take long to generate. Some operations have little to vary, and get fewer requests than the others.
LARGE = {("POST", "/api/schedules"), ("PUT", "/api/schedules/{id}"), ("PATCH", "/api/schedules/{id}")}
FEW = {
    ("GET", "/api/schedules/{id}"),
    ("DELETE", "/api/schedules/{id}"),
    ("GET", "/api/executions/{id}"),
    ("POST", "/api/callbacks/{run_id}/heartbeat"),
    ("POST", "/api/callbacks/{run_id}/complete"),
    ("POST", "/api/echo"),
}
EACH = int(-(-REQUESTS // (len(WAYS) * (len(OPERATIONS) - len(FEW) - len(LARGE) / 2))))
FORMATS = {
    "cron": ["* * * * *", "*/5 9-17 * * 1-5", "0 9 L * *", "61 * * * *"],
    "timezone": ["UTC", "Europe/Berlin", "Asia/Kathmandu", "Europe/Berlim"],
    "http-url": ["http://127.0.0.1:5678/", "https://agent.invalid/x?y=1", "ftp://x", "http://[::1"],
}
for _name, _words in FORMATS.items():
    schemathesis.openapi.format(_name, st.sampled_from(_words))


class Client:
    """Sends generated requests to one server, and creates the schedules and executions that they name."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = requests.Session()
        self.sent = 0

    def known(self, path: str) -> dict[str, Any] | None:
        if "{id}" not in path:
            return None
        body = EXAMPLES["ScheduleCreate"]["interval"] | {"name": f"known {self.sent}"}
        made = self._post("/api/schedules", json=body)
        if path.startswith("/api/schedules"):
            return {"id": made["id"]}
        return {"id": self._post(f"/api/schedules/{made['id']}/trigger")["id"]}

    def _post(self, path: str, **given: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.session.post(self.url + path, **given).json()
        return answer

    def send(self, case: schemathesis.Case) -> None:
        self.sent += 1
        response = case.call(base_url=self.url, session=self.session)
        without = [positive_data_acceptance, ignored_auth]
        if response.status_code == 413:  # refused as well, and schemathesis does not count it
            without.append(negative_data_rejection)
        case.validate_response(response, excluded_checks=without)


@pytest.fixture
def client() -> Iterator[Client]:
    ms = Mainspring("memory://")
    with served(ms) as server:
        server.app.state.api.closing.set()  # event streams end after their first word
        client = Client(server.url)
        yield client
        client.session.close()
    ms.sync.close()


@pytest.mark.chaos
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=[f"{method} {path}" for method, path in OPERATIONS])
def test_every_answer_is_one_the_document_allows(client: Client, method: str, path: str) -> None:
    many = EACH // 2 if (method, path) in LARGE else 4 if (method, path) in FEW else EACH
    limits = settings(max_examples=many, deadline=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
    for mode, known in WAYS:
        cases = SCHEMA[path][method].as_strategy(mode, path_parameters=client.known(path) if known else None)
        with contextlib.suppress(Unsatisfiable):
            seed(SEED)(limits(given(case=cases)(client.send)))()
    assert client.sent >= len(WAYS) * many or (method, path) in FEW or path == "/api/health"
