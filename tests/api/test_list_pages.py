"""Pages of lists: their size in bytes, and the link to the next page."""

from __future__ import annotations

import httpx
import pytest

from mainspring import Mainspring
from mainspring.api import context
from mainspring.api.context import MAX_PAGE_BYTES


async def walk(api: httpx.AsyncClient, path: str) -> list[list[str]]:
    """Return the ids on each page of a list, following the links."""
    pages = []
    while path:
        answer = await api.get(path)
        assert answer.status_code == 200, answer.text
        assert len(answer.content) <= MAX_PAGE_BYTES + 100_000
        pages.append([row["id"] for row in answer.json()])
        path = answer.links.get("next", {}).get("url", "")
    return pages


async def test_a_page_ends_before_it_is_too_large_and_the_next_one_continues(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"intervalMs": "1h", "agentUrl": "http://127.0.0.1:9/", "payload": "x" * 3_000}
    ids = [(await api.post("/api/schedules", json={"name": f"s{n}", **body})).json()["id"] for n in range(9)]
    monkeypatch.setattr(context, "MAX_PAGE_BYTES", 10_000)
    pages = await walk(api, "/api/schedules?limit=5")
    assert [one for page in pages for one in page] == ids
    assert [len(page) for page in pages] == [2, 2, 2, 2, 1]
    monkeypatch.setattr(context, "MAX_PAGE_BYTES", 10)
    assert [len(page) for page in await walk(api, "/api/schedules?limit=5")] == [1] * 9


@pytest.mark.parametrize("name", ["日本語", 'a>; rel="next", <b', "50%"])
async def test_the_link_of_any_name_leads_to_the_next_page(ms: Mainspring, api: httpx.AsyncClient, name: str) -> None:
    @ms.task
    def work() -> None: ...

    schedule = await ms.schedule(name, work, every="1h")
    for _ in range(5):
        await ms.trigger(schedule.id)
    first = await api.get("/api/schedules/" + httpx.URL(path="/" + name).raw_path.decode()[1:] + "/executions?limit=2")
    assert first.status_code == 200, first.text
    assert first.headers["Link"].count(">") == first.headers["Link"].count("<") == 1
    assert len(first.links) == 1
    pages = await walk(api, first.links["next"]["url"])
    assert [len(page) for page in pages] == [2, 1]


async def test_a_body_with_thousands_of_unknown_fields_is_refused_after_twenty(api: httpx.AsyncClient) -> None:
    answer = await api.post("/api/schedules", json={f"field{n}": 1 for n in range(3_800)})
    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == 20
    assert len(answer.content) < 20_000
