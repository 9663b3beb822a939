"""Web pages as clients: a browser asks first, and shows a page only what it may read."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from gate import Gate, body, gate, user

from instar.record.keys import Keys

OURS = "https://chat.example.org"
ELSEWHERE = "https://elsewhere.example"
READABLE = "access-control-allow-origin"


async def asked_first(http: httpx.AsyncClient, page: str, path: str) -> httpx.Response:
    """What a browser asks before it sends JSON, or a key, for a page."""
    wish = {
        "origin": page,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-session-id",
    }
    return await http.options(path, headers=wish)


@pytest.mark.parametrize("page", [OURS, "http://localhost:8080"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_page_that_needs_no_key(tmp_path: Path, page: str, stream: bool) -> None:
    async with gate(tmp_path, gateway__allowed_origins=f"[{OURS}]") as opened:
        may = await asked_first(opened.http, page, "/v1/chat/completions")
        assert may.status_code == 200 and may.headers[READABLE] == "*"
        assert "x-session-id" in may.headers["access-control-allow-headers"]
        asked = body([user("Hello.")], stream=stream)
        answer = await opened.post(asked, origin=page)
        assert answer.status_code == 200 and answer.headers[READABLE] == "*"
        missing = await opened.post(asked | {"model": "none"}, origin=page)
        assert missing.status_code == 404 and missing.headers[READABLE] == "*"


async def test_a_page_from_elsewhere_with_a_key(system: Gate) -> None:
    _, key = await Keys(system.system.store).create_key("ann")
    may = await asked_first(system.http, ELSEWHERE, "/v1/messages")
    assert may.status_code == 200
    headers = {"origin": ELSEWHERE, "authorization": f"Bearer {key}"}
    answer = await system.http.get("/v1/models", headers=headers)
    assert answer.status_code == 200 and answer.headers[READABLE] == "*"


async def test_a_page_from_elsewhere_without_a_key_gets_nothing(system: Gate) -> None:
    """That it may ask must not mean that it is answered: on no route, old or new."""
    routes = (await system.http.get("/openapi.json")).json()["paths"]
    found = [(path, method) for path, ways in routes.items() for method in ways]
    for path, method in found:
        answer = await system.http.request(method, path, json={}, headers={"origin": ELSEWHERE})
        if path.startswith("/v1/"):
            assert answer.status_code == 403, (path, method)
        else:
            assert READABLE not in answer.headers, (path, method)
    assert len(found) > 10 and not await system.all_turns()
