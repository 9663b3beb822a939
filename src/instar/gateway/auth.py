"""Who is asking. The key decides the owner; loopback needs none."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, Mapping

from instar.errors import RequestError, StoreError

_REMEMBER_S = 5.0
"""A revoked key stops working after at most this long; asking the store each time is slow."""

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
    ) -> None:
        """`made_here` is how keys begin that have an owner, who must not be guessed."""
        self._owner_of = owner_of
        self._required = key_required
        self._made_here = made_here
        self._local_key = local_key.encode() if local_key else None
        self._known: dict[str, tuple[float, str | None]] = {}

    async def owner(self, headers: Mapping[str, str]) -> str:
        """The owner, or a 401. Agents on loopback often send a made-up key: it is ignored."""
        key = _bearer(headers)
        owner = await self._look_up(key) if key else None
        if owner is not None:
            return owner
        if not self._required:
            return LOCAL_OWNER
        found = "an unknown key" if key else "no key"
        raise RequestError(
            f"The request came with {found}. Send `Authorization: Bearer KEY`; "
            "`instar keys create --owner NAME` makes one.",
            status=401,
            code="invalid_api_key",
            kind="authentication_error",
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
