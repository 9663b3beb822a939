"""API keys: who may ask, and for whom they ask.

A secret is shown once, when it is made; the store holds only its SHA-256. That is enough for
32 random bytes, and looking the digest up tells an attacker nothing by its timing.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass

import sqlalchemy as sa

from instar.record.schema import api_keys
from instar.record.store import TurnStore

PREFIX = "instar-"
"""Lets people, and scanners of leaked secrets, tell what a key is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key as listed: never its secret."""

    id: str
    owner: str
    note: str
    created: float
    revoked: float | None = None
    """When it was revoked, or None while it is valid."""


class Keys:
    """The keys in a store.

    Example:
        key_id, secret = await Keys(store).create_key("anna", note="laptop")
        assert await Keys(store).owner_of(secret) == "anna"
    """

    def __init__(self, store: TurnStore) -> None:
        self._store = store

    async def create_key(self, owner: str, note: str = "") -> tuple[str, str]:
        """A new key's id and its secret, which cannot be shown again."""
        key_id = f"key_{secrets.token_hex(6)}"
        secret = PREFIX + secrets.token_urlsafe(32)
        row = {
            "id": key_id,
            "digest": _digest(secret),
            "owner": owner,
            "note": note,
            "created": time.time(),
        }
        await self._store.write(lambda c: c.execute(sa.insert(api_keys).values(row)) and None)
        return key_id, secret

    async def keys(self, owner: str | None = None) -> list[ApiKey]:
        """All keys, revoked ones too, oldest first."""
        columns = [column for column in api_keys.c if column.name != "digest"]
        query = sa.select(*columns).order_by(api_keys.c.created, api_keys.c.id)
        if owner is not None:
            query = query.where(api_keys.c.owner == owner)
        rows = await self._store.read(lambda c: c.execute(query).mappings().all())
        return [ApiKey(**row) for row in rows]

    async def revoke_key(self, key_id: str) -> bool:
        """Make a key invalid; returns whether there was such a valid key."""
        valid = (api_keys.c.id == key_id) & api_keys.c.revoked.is_(None)
        statement = sa.update(api_keys).where(valid).values(revoked=time.time())
        changed = await self._store.write(
            lambda c: c.execute(statement.returning(api_keys.c.id)).first()
        )
        return changed is not None

    async def owner_of(self, secret: str) -> str | None:
        """Whose valid key this is, or None."""
        valid = (api_keys.c.digest == _digest(secret)) & api_keys.c.revoked.is_(None)
        query = sa.select(api_keys.c.owner).where(valid)
        return await self._store.read(lambda c: c.scalar(query))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
