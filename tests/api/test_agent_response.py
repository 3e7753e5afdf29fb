"""The view of an agent's answer: names in camelCase, and the decoded body where it is JSON."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mainspring.api.views import decode_result
from mainspring.model.http import HttpResult


def shown(result: HttpResult) -> dict[str, Any]:
    view: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(decode_result(_stored(result), "http")))
    return view


def _stored(result: HttpResult) -> str:
    return msgspec.json.encode(result).decode()


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "application/problem+json"])
def test_a_json_body_is_decoded_and_kept_as_text(kind: str) -> None:
    assert shown(HttpResult(200, '{"ok": [1]}', kind, 11)) == {
        "status": 200,
        "body": '{"ok": [1]}',
        "contentType": kind,
        "bytes": 11,
        "json": {"ok": [1]},
    }


@pytest.mark.parametrize(
    "result",
    [
        HttpResult(200, '{"ok": 1}', "text/plain", 9),
        HttpResult(200, "no json", "application/json", 7),
        HttpResult(200, "[1, 2]", "application/json", 600, truncated=True),
        HttpResult(204),
    ],
)
def test_any_other_body_is_text_only(result: HttpResult) -> None:
    assert "json" not in shown(result)


def test_an_answer_that_an_earlier_version_stored_is_shown_alike() -> None:
    stored = '{"status":200,"body":"null","content_type":"application/json","bytes":4}'
    view = msgspec.json.decode(msgspec.json.encode(decode_result(stored, "http")))
    assert (view["contentType"], view["bytes"], view["json"]) == ("application/json", 4, None)


@pytest.mark.parametrize(
    ("text", "value"), [("[1]", [1]), ("not json", "not json"), ('{"content_type":1}', {"content_type": 1})]
)
def test_the_result_of_a_task_is_shown_as_it_is(text: str, value: Any) -> None:
    assert msgspec.json.decode(msgspec.json.encode(decode_result(text, "report"))) == value
