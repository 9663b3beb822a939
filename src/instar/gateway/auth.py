"""Who is asking. The key decides the owner; loopback needs none."""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import urlsplit

from instar.errors import RequestError, StoreError

_REMEMBER_S = 0.5
"""A revoked key stops working after at most this long: `instar keys revoke` promises one second.
The store need not be asked for each of many requests."""

LOCAL_OWNER = "local"
"""Whose turns those are that come over loopback without a known key, or with INSTAR_API_KEY."""


class Access:
    """Maps requests to owners."""

    def __init__(
        self,
        owner_of: Callable[[str], Awaitable[str | None]],
        *,
        key_required: bool,
        local_key: str | None = None,
        made_here: str | None = None,
        origins: Sequence[str] = (),
    ) -> None:
        """`made_here` is how keys begin that have an owner, who must not be guessed.

        `origins` are web pages from elsewhere that need no key on loopback either.
        """
        self._owner_of = owner_of
        self._required = key_required
        self._made_here = made_here
        self._origins = frozenset(one.rstrip("/") for one in origins)
        self._local_key = local_key.encode() if local_key else None
        self._known: dict[str, tuple[float, str | None]] = {}

    async def owner(self, headers: Mapping[str, str]) -> str:
        """The owner, or a 401. Agents on loopback often send a made-up key: it is ignored."""
        key = _bearer(headers)
        owner = await self._look_up(key) if key else None
        if owner is not None:
            return owner
        if not self._required:
            self._check_page(headers)
            return LOCAL_OWNER
        found = "an unknown key" if key else "no key"
        raise RequestError(
            f"The request came with {found}. Send `Authorization: Bearer KEY`; "
            "`instar keys create --owner NAME` makes one.",
            status=401,
            code="invalid_api_key",
            kind="authentication_error",
        )

    def _check_page(self, headers: Mapping[str, str]) -> None:
        """Any page that a person opens can send requests to this machine; browsers say which did.

        Without this, what such a page says would be served, recorded and learned as theirs.
        """
        origin = headers.get("origin")
        if origin is None or origin.rstrip("/") in self._origins or not _is_foreign(origin):
            return
        raise RequestError(
            f"A web page of {origin[:80]!r} sent this request, without a key. Send "
            "`Authorization: Bearer KEY`, or add the page to gateway.allowed_origins.",
            status=403,
            code="origin_not_allowed",
            kind="permission_error",
        )

    async def _look_up(self, key: str) -> str | None:
        given = key.encode("utf-8", "surrogatepass")
        if self._local_key and hmac.compare_digest(given, self._local_key):
            return LOCAL_OWNER
        until, owner = self._known.get(key, (0.0, None))
        if time.monotonic() < until:
            return owner
        try:
            owner = await self._owner_of(key)
        except StoreError:
            if key not in self._known and self._may_be_somebodys(key):
                raise
            return owner
        if len(self._known) > 1000:
            self._known.clear()
        self._known[key] = (time.monotonic() + _REMEMBER_S, owner)
        return owner

    def _may_be_somebodys(self, key: str) -> bool:
        """Whether a key that cannot be looked up may not be taken for a made-up one."""
        return self._required or bool(self._made_here and key.startswith(self._made_here))


def _bearer(headers: Mapping[str, str]) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("x-api-key") or None


def _is_foreign(origin: str) -> bool:
    """Whether a page is neither of this machine nor part of a program that runs on it."""
    try:
        page = urlsplit(origin)
        host = page.hostname or ""
    except ValueError:
        return True
    if page.scheme not in ("", "http", "https"):
        return False  # a desktop program or an extension; no web page has such an origin
    if host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True
