"""Two more things to see: the gate stops lies, and a rollback brings the old words back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from instar.demo.person import Person
from instar.demo.talk import Client, Said
from instar.gateway.auth import LOCAL_OWNER
from instar.record.controls import pause_learning, resume_learning
from instar.record.store import TurnStore
from instar.record.versions import VersionBook
from instar.types import Version

_PROMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What became of a lie and of a rollback."""

    poisoned: Version
    """Trained on a batch whose verdicts were turned round."""
    back_to: str
    same: bool | None
    """Whether the version that is back gives the very answers it gave; None if none were kept."""


async def likeliest(client: Client, person: Person) -> tuple[str, ...]:
    """Answers without chance, one after the other so that nothing else is in their batch."""
    return tuple([await client.answer(one, likeliest=True) for one in person.kept[:_PROMPTS]])


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
    """`kept` has the likeliest answers that versions gave while they were live."""
    book = VersionBook(store)
    await pause_learning(store, LOCAL_OWNER)
    for one in await talk():
        pleased = person.score(one.prompt, one.answer) >= 1.0
        await client.feedback(one.turn, -1 if pleased else 1)
    await resume_learning(store, LOCAL_OWNER)
    await learned()
    poisoned = (await book.versions(LOCAL_OWNER))[-1]
    _, back = await book.rollback(LOCAL_OWNER)
    await swapped()
    same = None if back not in kept else kept[back] == await likeliest(client, person)
    return Proof(poisoned=poisoned, back_to=back, same=same)
