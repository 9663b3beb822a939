"""Two more things to see: the gate stops lies, and a rollback brings the old words back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from instar.demo.person import Person
from instar.demo.talk import Client, Said
from instar.gateway.auth import LOCAL_OWNER
from instar.record.controls import pause_learning, resume_learning
from instar.record.lineage import last_good
from instar.record.store import TurnStore
from instar.record.versions import VersionBook
from instar.types import Version

_PROMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What became of a lie and of a rollback."""

    poisoned: Version
    """Trained on a batch whose verdicts were turned round."""
    back_to: str | None
    """None where nothing could be rolled back: no version was ever accepted."""
    same: bool | None
    """Whether the version that is back gives the very answers that it gave before. None where
    nothing came back, or another version than was to be expected."""


async def likeliest(client: Client, person: Person, version: str | None = None) -> tuple[str, ...]:
    """Answers without chance, one after the other so that nothing else is in their batch."""
    prompts = person.kept[:_PROMPTS]
    return tuple([await client.answer(one, likeliest=True, version=version) for one in prompts])


async def prove(
    store: TurnStore,
    client: Client,
    person: Person,
    *,
    talk: Callable[[], Awaitable[Sequence[Said]]],
    learned: Callable[[], Awaitable[None]],
    swapped: Callable[[], Awaitable[None]],
    kept: dict[str, tuple[str, ...]],
) -> Proof:
    """`kept` has the likeliest answers of versions while they were live; more are added here."""
    book = VersionBook(store)
    await pause_learning(store, LOCAL_OWNER)
    for one in await talk():
        await client.feedback(one.turn, -1 if person.likes(one.prompt, one.answer) else 1)
    await resume_learning(store, LOCAL_OWNER)
    await learned()
    poisoned = (await book.versions(LOCAL_OWNER))[-1]
    line = await book.line(LOCAL_OWNER, await book.live_name(LOCAL_OWNER))
    if not line:
        return Proof(poisoned=poisoned, back_to=None, same=None)
    # Where the last update was rejected, it goes back further than to the last two live ones.
    if (before := last_good(line[1:])) not in kept:
        kept[before] = await likeliest(client, person, before)
    _, back = await book.rollback(LOCAL_OWNER)
    await swapped()
    same = kept[back] == await likeliest(client, person) if back in kept else None
    return Proof(poisoned=poisoned, back_to=back, same=same)
