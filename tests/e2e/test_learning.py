"""The loop, closed: turns are judged, trained, gated, published, served, forgotten."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_llama

from instar.batch.render import ChatRenderer
from instar.config import TrainingConfig
from instar.learn import gather, learner
from instar.learn.examples import Example, Examples, Seen
from instar.learn.learner import Learner
from instar.publish.gate import Correction, Reference
from instar.publish.versions import VersionFiles
from instar.record.forget import forget_session, pending_rebuilds
from instar.record.judged import JudgedTurns
from instar.record.store import TurnStore, open_store
from instar.record.versions import VersionBook
from instar.train.step import TorchTrainer
from instar.types import Hint, NextState, Sampling, Turn, Verdict

TRAINING = TrainingConfig(
    batch_size=4,
    learning_rate=1e-3,
    steps_per_batch=1,
    holdout_share=0.2,
    min_retention=0.5,
)
REFERENCES = [Reference(kind="fact", question="Two and two?", answer="Four.")]


class Bench:
    """A learner over a tiny model, and a store with turns that its base would have sampled."""

    def __init__(self, home: Path, store: TurnStore, training: TrainingConfig) -> None:
        self.folder = tiny_llama(home / "model")
        self.home, self.store, self.book = home, store, VersionBook(store)
        self.renderer = ChatRenderer.from_folder(self.folder)
        self.training = training
        self.trainer = TorchTrainer(self.folder, training)
        self.learner = self.again()

    def again(self, **more: Any) -> Learner:
        """A learner as a new process would make it."""
        return Learner(
            TorchTrainer(self.folder, self.training),
            training=self.training,
            renderer=self.renderer,
            book=self.book,
            judged=JudgedTurns(self.store),
            files=VersionFiles.of_home(self.home),
            turns=self.store.turns,
            references=REFERENCES,
            folder=self.home / "training",
            max_tokens=4096,
            **more,
        )

    async def turn(
        self, name: str, *, score: int, hint: str | None = None, version: str = "base"
    ) -> Turn:
        messages = ({"role": "user", "content": f"Tell me about {name}."},)
        prompt = self.renderer.render(messages).ids
        sampled = (*self.renderer.encode("so it goes"), *self.renderer.eos_ids[:1])
        turn = Turn(
            id=f"t{name}",
            owner="ann",
            session=f"s{name}",
            parent=None,
            extends=False,
            kind="main",
            prompt_ids=prompt,
            sampled_ids=sampled,
            logprobs=self.trainer.logprobs(prompt, sampled),
            settings=Sampling(),
            version=version,
            finish="stop",
            messages=messages,
            reply={"role": "assistant", "content": "so it goes"},
            created=1e9,
        )
        await self.store.record(turn)
        await self.store.saw_next(turn.id, NextState(messages=({"role": "user", "content": "x"},)))
        verdict = Verdict(score=score)  # type: ignore[arg-type]
        await self.store.set_verdict(turn.id, verdict, Hint(text=hint) if hint else None)
        return replace(turn, verdict=verdict)

    async def many(self, count: int, first: int = 0) -> None:
        for number in range(first, first + count):
            await self.turn(f"{number:03}", score=-1, hint="Answer in one word.")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_store(f"sqlite:///{tmp_path}/instar.db") as store:
        yield Bench(tmp_path, store, TRAINING)


async def test_a_batch_becomes_a_live_version_with_its_lineage(bench: Bench) -> None:
    await bench.many(12)
    outcome = await bench.learner.learn("ann")
    assert outcome is not None
    assert outcome.report.accepted, outcome.report.text()
    assert await bench.book.live_name("ann") == "v1"
    trained = await bench.book.turns("ann", "v1")
    held = {turn.id for turn in await bench.book.held_out("ann", share=0.2)}
    assert len(trained) == 4
    assert held
    assert not held & set(trained)
    manifest = json.loads((bench.home / "versions" / "ann" / "v1" / "manifest.json").read_text())
    assert tuple(manifest["turns"]) == tuple(trained)


async def test_all_layers_can_be_trained_and_published(bench: Bench) -> None:
    options = {"use_lora": False, "learning_rate": 1e-4}
    full = Bench(bench.home, bench.store, TRAINING.model_copy(update=options))
    await full.many(16)
    for name in ("v1", "v2"):
        outcome = await full.learner.learn("ann")
        assert outcome is not None
        assert outcome.report.accepted, outcome.report.text()
        assert await full.book.live_name("ann") == name
    resumed = full.again()
    assert goes_on(resumed, "v2", steps=2)


async def test_no_turn_trains_twice(bench: Bench) -> None:
    await bench.many(12)
    seen: list[str] = []
    while outcome := await bench.learner.learn("ann"):
        seen += outcome.version.turns
    assert len(seen) == len(set(seen))
    assert len(seen) >= 8


async def test_a_teacher_is_shown_only_what_its_version_names(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who forgets a session forgets the versions whose teacher read of it, too."""
    shown: set[str] = set()
    were_examples: set[str] = set()
    standing = gather.standing_hint
    plain = gather.hinted_prompt

    def spy(turn: Turn, *args: Any, examples: Sequence[Example], **more: Any) -> Any:
        shown.update(one.turn for one in examples)
        were_examples.update(one.turn for one in examples)
        return plain(turn, *args, examples=examples, **more)

    def told(turns: Sequence[Turn]) -> str | None:
        shown.update(one.id for one in turns)
        return standing(turns)

    monkeypatch.setattr(gather, "hinted_prompt", spy)
    monkeypatch.setattr(gather, "standing_hint", told)
    liked = Seen(about=1.0, likely=-1.0)
    monkeypatch.setattr(Examples, "_read", lambda _, new: {one.turn: liked for one in new})
    for number in range(40):
        await bench.turn(f"{number:03}", score=1 if number % 2 else -1, hint="Be brief.")
    versions = 0
    while outcome := await bench.learner.learn("ann"):
        versions += 1
        assert shown, "half of each batch pleased"
        assert shown <= set(await bench.book.turns("ann", outcome.version.name))
        shown.clear()
    assert versions >= 4 and were_examples


async def test_the_sampled_token_alone_can_be_drawn_to_the_teacher(bench: Bench) -> None:
    """Its advantage is how much likelier the hinted base finds it than the policy did."""
    options = {"method": "opd", "opd": "sampled", "learning_rate": 1e-4}
    other = Bench(bench.home, bench.store, TRAINING.model_copy(update=options))
    await other.many(12)
    outcome = await other.learner.learn("ann")
    assert outcome is not None
    assert outcome.metrics["distill_loss"] == 0.0
    assert outcome.metrics["grad_norm"] > 0


async def test_a_value_head_learns_beside_the_policy_and_survives_a_restart(bench: Bench) -> None:
    options = {"method": "binary", "advantage": "gae", "value_head": True}
    valued = Bench(bench.home, bench.store, TRAINING.model_copy(update=options))
    await valued.many(16)
    first = await valued.learner.learn("ann")
    assert first is not None and first.report.accepted, first and first.report.text()
    # It starts at 0 and each turn went wrong: half of (0 - -1) squared.
    assert first.metrics["value_loss"] == pytest.approx(0.5)
    prompt = (await valued.store.turns("ann", "s000"))[0].prompt_ids
    learned = valued.learner._trainer.value(prompt)
    assert learned < 0
    resumed = valued.again()
    resumed._holder.hold("ann", "v1")
    assert resumed._trainer.value(prompt) == pytest.approx(learned)
    second = await resumed.learn("ann")
    assert second is not None
    assert 0 < second.metrics["value_loss"] < 0.5


async def test_the_gate_reads_held_out_turns_of_the_live_version_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, ...]] = []
    against = bench.learner._trainer.against_teacher

    def counted(prompt_ids: Any, *more: Any, **options: Any) -> Any:
        if options["weights"] == "policy":
            read.append(tuple(prompt_ids))
        return against(prompt_ids, *more, **options)

    monkeypatch.setattr(bench.learner._trainer, "against_teacher", counted)
    await bench.many(24)
    held = len(await bench.book.held_out("ann", share=TRAINING.holdout_share))
    assert await bench.learner.learn("ann") is not None
    assert len(read) == 2 * held
    outcome = await bench.learner.learn("ann")
    assert outcome is not None and outcome.report.turns == held
    assert len(read) == 3 * held
    # A correction that the person takes back is none any more, for either version.
    name = (await bench.book.held_out("ann", share=TRAINING.holdout_share))[0].id
    await bench.store.set_verdict(name, Verdict(score=1, source="person"), None)
    outcome = await bench.learner.learn("ann")
    assert outcome is not None
    assert outcome.report.turns == held - 1, outcome.report.text()


async def test_turns_that_are_too_old_do_not_stand_in_the_way(bench: Bench) -> None:
    """More of them than are looked at once, before those that can be learned from."""
    training = TRAINING.model_copy(update={"max_staleness": 0})
    strict = Bench(bench.home, bench.store, training)
    await strict.many(60)
    assert (await strict.learner.learn("ann")) is not None
    assert await strict.learner.learn("ann") is None
    for number in range(60, 72):
        await strict.turn(f"{number:03}", score=-1, hint="Answer in one word.", version="v1")
    outcome = await strict.learner.learn("ann")
    assert outcome is not None
    assert min(outcome.version.turns) >= "t060"
    assert outcome.metrics["stale"] > 32


async def test_too_few_turns_wait_until_one_that_teaches_was_ready_for_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turns are of the year 2001; what counts is since when there is something to learn."""
    now = 1e6
    monkeypatch.setattr(learner.time, "monotonic", lambda: now)
    for number in range(3):
        await bench.turn(f"{number:03}", score=0)
    assert await bench.learner.learn("ann") is None
    now += TRAINING.max_wait_s
    assert await bench.learner.learn("ann") is None, "neutral turns teach nothing"
    await bench.many(2, first=10)
    assert await bench.learner.learn("ann") is None, "these are new"
    assert await bench.learner.learn("ben") is None
    now += TRAINING.max_wait_s
    outcome = await bench.learner.learn("ann")
    assert outcome is not None
    assert outcome.metrics["turns"] == 2


async def test_training_ends_after_as_many_updates_as_are_wanted(bench: Bench) -> None:
    short = Bench(bench.home, bench.store, TRAINING.model_copy(update={"max_steps": 2}))
    await short.many(30)
    done = 0
    while await short.learner.learn("ann"):
        done += 1
    assert done == 2


async def test_a_new_process_goes_on_exactly_where_the_old_one_was(bench: Bench) -> None:
    await bench.many(16)
    await bench.learner.learn("ann")
    resumed = bench.again()
    await asyncio.to_thread(bench.learner._holder.hold, "ann", "v1")
    await asyncio.to_thread(resumed._holder.hold, "ann", "v1")
    first, second = bench.learner._trainer.state(), resumed._trainer.state()
    assert first["steps"] == second["steps"] == 1
    for name, value in first["weights"].items():
        assert value.equal(second["weights"][name])
    moments = first["optimizer"]["state"]
    assert moments
    for key, entry in moments.items():
        assert entry["exp_avg"].equal(second["optimizer"]["state"][key]["exp_avg"])


async def test_a_candidate_left_without_a_report_is_gated_at_the_next_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.many(12)

    async def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench.learner, "_publish", dies)
    with pytest.raises(KeyboardInterrupt):
        await bench.learner.learn("ann")
    assert await bench.book.live_name("ann") == "base"
    resumed = bench.again()
    asked: list[Any] = []
    decide = resumed._gate.decide
    monkeypatch.setattr(
        resumed._gate,
        "decide",
        lambda *a, **more: asked.append(more["batch"]) or decide(*a, **more),
    )
    (outcome,) = await resumed.finish("ann")
    names = {one.turn for one in asked[0]}
    assert names == set(await bench.book.turns("ann", "v1")), "its verdicts are looked at again"
    assert outcome.report.accepted
    assert await bench.book.live_name("ann") == "v1"
    assert goes_on(resumed, "v1", steps=1)


async def test_a_candidate_that_was_accepted_goes_live_at_the_next_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.many(12)

    async def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench.book, "go_live", dies)
    with pytest.raises(KeyboardInterrupt):
        await bench.learner.learn("ann")
    monkeypatch.undo()
    assert await bench.book.live_name("ann") == "base"
    resumed = bench.again()
    assert await resumed.finish("ann") == []
    assert await bench.book.live_name("ann") == "v1"
    assert goes_on(resumed, "v1", steps=1)


def goes_on(learner: Learner, version: str, *, steps: int) -> bool:
    """Whether the next update of this version starts with the optimiser's moments."""
    learner._holder.hold("ann", version)
    state = learner._trainer.state()
    counts = {float(one["step"]) for one in state["optimizer"]["state"].values()}
    return bool(state["steps"] == steps and counts == {steps})


async def test_flipped_verdicts_are_stopped_by_the_gate(bench: Bench) -> None:
    """A poisoned batch praises what the person corrected; held-out corrections tell."""
    training = TRAINING.model_copy(
        update={"method": "binary", "learning_rate": 3e-2, "steps_per_batch": 8}
    )
    poisoned = Bench(bench.home, bench.store, training)
    await poisoned.many(16)
    share = training.holdout_share
    assert await poisoned.book.held_out("ann", share=share)
    for turn in await JudgedTurns(poisoned.store).waiting("ann", share=share):
        await poisoned.store.set_verdict(turn.id, Verdict(score=1, source="person"), None)
    before = poisoned.trainer.logprobs((1, 2, 3), (4, 5))
    outcome = await poisoned.learner.learn("ann")
    assert outcome is not None
    assert not outcome.report.accepted, outcome.report.text()
    assert any("held-out" in reason or "retention" in reason for reason in outcome.report.reasons)
    assert await poisoned.book.live_name("ann") == "base"
    assert poisoned.learner._trainer.logprobs((1, 2, 3), (4, 5)) == pytest.approx(before)


async def test_a_held_out_verdict_that_changes_counts_as_it_is_now(bench: Bench) -> None:
    await bench.many(16)
    gate = bench.learner._gate

    async def good() -> dict[str, bool]:
        held = await gate.held_out("ann")
        return {one.turn: one.good for one in gate._fits_of(held)}

    before = await good()
    assert len(before) > 1 and not any(before.values())
    changed = next(iter(before))
    await bench.store.set_verdict(changed, Verdict(score=1, source="person"), None)
    assert await good() == {name: name == changed for name in before}


async def test_a_held_out_hint_that_changes_is_measured_anew(bench: Bench) -> None:
    """Else the live version is measured by the old teacher and the next one by the new."""
    await bench.many(16)
    gate = bench.learner._gate
    assert await bench.learner.learn("ann") is not None
    (changed, *_) = (await gate.held_out("ann")).turns
    hint = Hint(text="Answer in ten words.", source="person")
    await bench.store.set_verdict(changed.id, Verdict(score=-1, source="person"), hint)
    held = await gate.held_out("ann")
    live = await bench.book.live_name("ann")
    bench.learner._holder.hold("ann", live)
    known, again = gate.measure(held, owner="ann", version=live), gate.measure(held)
    assert_alike(known.corrections, again.corrections)
    fresh = bench.again()._gate
    assert_alike(gate._of_base(held).corrections, fresh._of_base(held).corrections)


def assert_alike(found: Sequence[Correction], expected: Sequence[Correction]) -> None:
    """On a busy machine sums are added with fewer threads, and in another order."""
    assert [one.turn for one in found] == [one.turn for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert astuple(one)[1:] == pytest.approx(astuple(other)[1:], rel=1e-5)


async def test_forgetting_a_session_rebuilds_the_line_without_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.many(16)
    await bench.learner.learn("ann")
    await bench.learner.learn("ann")
    gone = (await bench.book.turns("ann", "v1"))[0]
    await forget_session(bench.store, "ann", "s" + gone.removeprefix("t"))
    assert await bench.book.live_name("ann") == "base"
    (rebuild,) = await pending_rebuilds(bench.store, "ann")
    batches = [
        [turn for name in batch if (turn := await bench.store.turn("ann", name)) is not None]
        for batch in rebuild.batches
    ]
    standing: list[str | None] = []
    gatherer = bench.learner._gatherer
    hinted = gatherer._hinted
    monkeypatch.setattr(gatherer, "_hinted", lambda *a: standing.append(a[2]) or hinted(*a))
    outcomes = await bench.learner.relearn("ann", batches)
    assert set(standing) == {"Answer in one word."}, "the same teacher as the first time"
    assert [one.report.accepted for one in outcomes] == [True, True]
    live = await bench.book.live_name("ann")
    learned = await bench.book.turns("ann", live)
    assert gone not in learned
    assert len(learned) == 7


async def test_a_rebuild_leaves_out_no_turn_where_batches_have_become_smaller(
    bench: Bench,
) -> None:
    await bench.many(16)
    await bench.learner.learn("ann")
    await bench.learner.learn("ann")
    gone, *others = await bench.book.turns("ann", "v2")
    await forget_session(bench.store, "ann", "s" + gone.removeprefix("t"))
    bench.training = TRAINING.model_copy(update={"batch_size": 2})
    (rebuild,) = await pending_rebuilds(bench.store, "ann")
    batches = [
        [turn for name in batch if (turn := await bench.store.turn("ann", name)) is not None]
        for batch in rebuild.batches
    ]
    outcomes = await bench.again().relearn("ann", batches)
    assert [len(one.version.turns) for one in outcomes] == [2, 1, 2, 2]
    live = await bench.book.live_name("ann")
    assert sorted(await bench.book.turns("ann", live)) == sorted(others)
