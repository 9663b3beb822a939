"""API keys: shown once, kept as digests, revoked at once."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from instar.record.keys import PREFIX, Keys
from instar.record.schema import api_keys
from instar.record.store import open_store


async def test_a_key_knows_its_owner_until_it_is_revoked(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/instar.db") as store:
        keys = Keys(store)
        first, secret = await keys.create_key("anna", "laptop")
        second, other = await keys.create_key("ben")
        assert await keys.owner_of(secret) == "anna"
        assert await keys.owner_of(other) == "ben"
        for wrong in ("", first, secret[:-1], secret + "x", PREFIX, "\ud800"):
            assert await keys.owner_of(wrong) is None
        assert await keys.revoke_key(first)
        assert not await keys.revoke_key(first)
        assert not await keys.revoke_key("key_unknown")
        assert await keys.owner_of(secret) is None
        assert await keys.owner_of(other) == "ben"
        listed = await keys.keys()
        assert [(key.id, key.owner, key.note) for key in listed] == [
            (first, "anna", "laptop"),
            (second, "ben", ""),
        ]
        assert [key.revoked is None for key in listed] == [False, True]
        assert [key.id for key in await keys.keys("ben")] == [second]


async def test_a_secret_is_long_random_and_not_stored(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/instar.db") as store:
        keys = Keys(store)
        secrets = [(await keys.create_key("anna"))[1] for _ in range(5)]
        assert len(set(secrets)) == 5
        assert all(secret.startswith("instar-") and len(secret) == 50 for secret in secrets)
        rows = await store.read(lambda c: c.execute(sa.select(api_keys)).all())
        assert not any(secret[7:] in str(rows) for secret in secrets)
    assert not any(
        secret[7:].encode() in stored for secret in secrets for stored in bytes_of(tmp_path)
    )


def bytes_of(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in folder.iterdir()]
