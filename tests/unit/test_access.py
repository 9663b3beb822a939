"""Who is asking, while the store that knows the keys can be read and while it cannot."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from instar.errors import RequestError, StoreError
from instar.gateway import auth
from instar.gateway.auth import LOCAL_OWNER, Access


class Book:
    """Knows Ann's key, unless it is down."""

    down = False
    revoked = False
    asked = 0

    async def owner_of(self, key: str) -> str | None:
        if self.down:
            raise StoreError("the store cannot be read")
        self.asked += 1
        return "ann" if key == "instar-ann" and not self.revoked else None

    def access(self, *, key_required: bool) -> Access:
        return Access(self.owner_of, key_required=key_required, made_here="instar-")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_on_loopback_a_made_up_key_is_served_though_the_store_is_down() -> None:
    book = Book()
    access = book.access(key_required=False)
    book.down = True
    assert await access.owner(bearer("sk-none")) == LOCAL_OWNER
    book.down = False
    assert await access.owner(bearer("sk-none")) == LOCAL_OWNER


async def test_a_key_that_was_made_here_is_never_taken_for_a_made_up_one() -> None:
    """Ann's words must not become somebody else's to learn from."""
    book = Book()
    access = book.access(key_required=False)
    book.down = True
    with pytest.raises(StoreError):
        await access.owner(bearer("instar-ann"))
    book.down = False
    assert await access.owner(bearer("instar-ann")) == "ann"


async def test_where_a_key_is_required_one_that_cannot_be_looked_up_is_an_error() -> None:
    book = Book()
    access = book.access(key_required=True)
    book.down = True
    for key in ("sk-none", "instar-ann"):
        with pytest.raises(StoreError):
            await access.owner(bearer(key))
    with pytest.raises(RequestError):
        await access.owner({})


@pytest.mark.parametrize("required", [True, False])
async def test_a_known_key_stays_known_while_the_store_is_down(
    monkeypatch: pytest.MonkeyPatch, required: bool
) -> None:
    monkeypatch.setattr(auth, "_REMEMBER_S", 0.0)
    book = Book()
    access = book.access(key_required=required)
    assert await access.owner(bearer("instar-ann")) == "ann"
    book.down = True
    assert await access.owner(bearer("instar-ann")) == "ann"


@pytest.mark.parametrize(
    ("origin", "served"),
    [
        ("http://localhost:3000", True),
        ("https://chat.localhost", True),
        ("http://127.0.0.1:30000", True),
        ("http://[::1]:8080", True),
        ("app://obsidian.md", True),
        ("chrome-extension://abc", True),
        ("https://chat.example.org", True),
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
        ("http://192.168.0.2", False),
        ("http://[", False),
        ("null", False),
    ],
)
async def test_a_page_from_elsewhere_needs_a_key(origin: str, served: bool) -> None:
    """Browsers let every page that a person opens send requests to their own machine."""
    access = Access(Book().owner_of, key_required=False, origins=["https://chat.example.org/"])
    headers = {"origin": origin}
    assert await access.owner(headers | bearer("instar-ann")) == "ann"
    if served:
        assert await access.owner(headers) == LOCAL_OWNER
        return
    with pytest.raises(RequestError, match="allowed_origins") as refused:
        await access.owner(headers | bearer("sk-none"))
    assert refused.value.status == 403


async def test_a_revoked_key_is_refused_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(auth, "time", SimpleNamespace(monotonic=lambda: now))
    book = Book()
    access = book.access(key_required=True)
    for _ in range(50):
        assert await access.owner(bearer("instar-ann")) == "ann"
    assert book.asked == 1, "a key is not looked up for each request"
    book.revoked = True
    now += 0.9
    with pytest.raises(RequestError):
        await access.owner(bearer("instar-ann"))
