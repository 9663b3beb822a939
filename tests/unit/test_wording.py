"""Which of several ways to say a hint a teacher is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sampled_turns import tiny_llama
from store_turns import make_turn, user

from instar.batch.render import ChatRenderer
from instar.config import TrainingConfig
from instar.learn.batches import hint_for
from instar.learn.wording import Followed, Wordings, asked_for, best
from instar.record.judged import JudgedTurns
from instar.record.store import open_store
from instar.train.reading import Moved
from instar.train.step import TorchTrainer
from instar.types import Hint, Turn, Verdict

RENDERER = ChatRenderer.for_bytes()
WAYS = ("Be brief.", 'The user wants: "Shorter!"', "Shorter!")


def corrected(name: str, reply: str = "The sky is blue.", *, ways: tuple[str, ...] = WAYS) -> Turn:
    return make_turn(
        name,
        messages=(user("Why is the sky blue?"),),
        sampled_ids=tuple(RENDERER.encode(reply)),
        prompt_ids=tuple(RENDERER.encode("Why?")),
        logprobs=(-1.0,) * len(RENDERER.encode(reply)),
        verdict=Verdict(score=-1),
        hint=Hint(text=ways[0], ways=ways),
    )


class Teacher:
    """Moves by how often it has been told so, and tells which prompts it was shown."""

    def __init__(self, *kls: float, loses: dict[int, float] | None = None) -> None:
        self.kls, self.loses, self.asked = kls, loses or {}, 0

    def moved(
        self, prompt: Sequence[int], sampled: Sequence[int], others: Sequence[Sequence[int]]
    ) -> list[Moved]:
        self.asked += 1
        return [
            Moved(kl=self.kls[at], gains=(-self.loses.get(at, 0.0),) * len(sampled))
            for at in range(len(others))
        ]


def wordings(teacher: Teacher, longest: int = 4096) -> Wordings:
    return Wordings(
        teacher,  # type: ignore[arg-type]
        renderer=RENDERER,
        training=TrainingConfig(),
        longest=longest,
    )


def test_the_way_that_moves_much_more_is_taken_unless_it_leads_astray() -> None:
    found = [Followed(moved=kl, astray=off) for kl, off in ((0.1, 0.0), (0.3, 0.3), (0.2, 0.1))]
    assert best(("a", "b", "c"), found) == "c"
    assert best(("a", "b"), found[1:2] * 2) == "a", "where all lead astray, the first"
    assert best(("a", "b"), []) == "a", "where none could be read, too"
    found = [Followed(moved=kl, astray=off) for kl, off in ((0.2, 0.0), (0.29, 0.0), (0.31, 0.0))]
    assert best(("a", "b"), found) == "a", "a lead of less than a half again is none"
    assert best(("a", "b", "c"), found) == "c"
    astray = [Followed(moved=0.2, astray=0.3), Followed(moved=0.1, astray=0.0)]
    assert best(("a", "b"), astray) == "b"


def test_a_choice_is_made_once_and_for_all_that_say_the_same() -> None:
    teacher = Teacher(0.1, 0.3, 0.2)
    turns = [corrected("t1"), corrected("t2"), corrected("t3", ways=("Only one.",))]
    chosen = wordings(teacher).choose(turns, {})
    assert [one.hint and one.hint.told for one in chosen] == [WAYS[1], WAYS[1], "Only one."]
    assert [one.hint and one.hint.text for one in chosen] == [WAYS[0], WAYS[0], "Only one."]
    assert teacher.asked == 2, "on two replies"


def test_a_way_that_takes_the_words_of_the_request_is_not_taken() -> None:
    chosen = wordings(Teacher(0.1, 0.3, 0.2, loses={1: 0.5})).choose([corrected("t1")], {})
    assert chosen[0].hint is not None and chosen[0].hint.told == WAYS[2]


def test_what_does_not_fit_is_not_compared() -> None:
    teacher = Teacher(0.1, 0.3, 0.2)
    (chosen,) = wordings(teacher, longest=10).choose([corrected("t1")], {})
    assert chosen.hint is not None and chosen.hint.told == WAYS[0] and teacher.asked == 0


def test_tokens_of_words_that_were_asked_about() -> None:
    turn = corrected("t1", "It is caf\u00e9 BLUE, the sky; blueberry")
    turn = replace(turn, messages=(user("A blue caf\u00e9 or blues?"),))
    text = bytes(
        byte
        for at in asked_for(turn, RENDERER)
        for byte in RENDERER.token_bytes(turn.sampled_ids[at])
    )
    assert text.decode("utf-8", "ignore").replace("\u00e9", "") == "cafBLUE"


def test_the_chosen_way_is_told_and_standing_wishes_are_added_by_plain_words() -> None:
    turn = corrected("t1", ways=("Answer in one short sentence.", "Shorter, one sentence!"))
    assert turn.hint is not None
    turn = replace(turn, hint=replace(turn.hint, ways=("Shorter, one sentence!",)))
    standing = "Answer in one short sentence. Do not use lists."
    assert hint_for(turn, standing) == "Shorter, one sentence! Do not use lists."


async def test_the_choice_is_kept_unless_the_hint_is_another_by_now(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'instar.db'}") as store:
        for name in ("t1", "t2"):
            await store.record(corrected(name))
        other = Hint(text="My own words.", source="person")
        await store.set_verdict("t2", Verdict(score=-1), other)
        said = Hint(text=WAYS[0], ways=(WAYS[2],))
        await JudgedTurns(store).note_hints({"t1": said, "t2": said, "gone": said})
        found = {one.id: one.hint for one in await store.turns("anna", "s1")}
    assert found == {"t1": said, "t2": other}


def test_how_a_base_moves(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = tiny_llama(tmp_path)
    trainer = TorchTrainer(folder, TrainingConfig())
    prompt, hinted, sampled = [1, 2, 3], [9, 1, 2, 3], [4, 5]
    (found,) = trainer.moved(prompt, sampled, [hinted])
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        plain_MV, hinted_MV = (
            base(torch.tensor([[*ids, *sampled]])).logits[0, len(ids) - 1 : -1].log_softmax(1)
            for ids in (prompt, hinted)
        )
    kl_M = (hinted_MV.exp() * (hinted_MV - plain_MV)).sum(1)
    gains = (hinted_MV - plain_MV).gather(1, torch.tensor(sampled)[:, None])[:, 0]
    assert found.kl == pytest.approx(float(kl_M.mean()), rel=1e-4)
    assert found.gains == pytest.approx(gains.tolist(), abs=1e-5)
