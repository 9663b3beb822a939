"""Nothing stops learning for good: no turn, no setting, no failure, no pause."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_learning
from test_learning import TRAINING, Bench
from tiny_models import tiny_gpt2, tiny_llama

from instar.batch.credit import Credited
from instar.errors import ModelError
from instar.ids import share_of
from instar.learn import run, setbacks, troubles
from instar.learn.learner import Learner, Outcome
from instar.learn.troubles import Troubles
from instar.publish.versions import ADAPTER
from instar.record.controls import pause_learning, resume_learning
from instar.record.forget import forget_session, pending_rebuilds
from instar.record.judged import JudgedTurns
from instar.record.store import TurnStore, open_store
from instar.types import Hint, Message, NextState, Sampling, Turn, Verdict

ALL = {"holdout_share": 0.0}


class Talk(Bench):
    """Turns of any length and shape, as far as the trainer is concerned."""

    def __init__(self, home: Path, store: TurnStore, **training: Any) -> None:
        super().__init__(home, store, TRAINING.model_copy(update=ALL | training))

    async def say(self, name: str, tokens: int = 60, **changes: Any) -> Turn:
        """A corrected turn of so many tokens."""
        sampled = (*self.renderer.encode("so it goes"), *self.renderer.eos_ids[:1])
        empty = len(self.renderer.render([user("")]).ids)
        messages = (user("x" * (tokens - empty - len(sampled))),)
        verdict, hint = changes.pop("score", -1), changes.pop("hint", "Answer in one word.")
        turn = Turn(
            id=name,
            owner="ann",
            session=changes.pop("session", name),
            parent=None,
            extends=False,
            kind="main",
            prompt_ids=self.renderer.render(messages).ids,
            sampled_ids=sampled,
            logprobs=(-1.0,) * len(sampled),
            settings=Sampling(),
            version="base",
            finish="stop",
            messages=messages,
            reply={"role": "assistant", "content": "so it goes"},
            created=1e9,
        )
        turn = replace(turn, **changes)
        assert len(turn.ids) == tokens
        await self.store.record(turn)
        await self.store.saw_next(name, NextState(messages=(user("x"),)))
        if verdict is not None:
            told = Hint(text=hint) if hint else None
            await self.store.set_verdict(name, Verdict(score=verdict), told)
        return turn

    async def learn(self) -> Outcome:
        outcome = await self.learner.learn("ann")
        assert outcome is not None
        return outcome


def user(text: str) -> Message:
    return {"role": "user", "content": text}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TurnStore]:
    async with open_store(f"sqlite:///{tmp_path}/instar.db") as opened:
        yield opened


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("training", "changes", "reason"),
    [
        ({}, {"tokens": 4097}, "too_long"),
        ({}, {"score": 0, "hint": None}, "neutral"),
        ({"method": "opd"}, {"score": 1, "hint": None}, "no_hint"),
        ({}, {"messages": ({"role": "user", "content": [IMAGE]},)}, "images"),
    ],
    ids=["too long", "neutral", "praised", "images"],
)
async def test_turns_that_teach_nothing_do_not_stand_in_the_way(
    tmp_path: Path,
    store: TurnStore,
    training: dict[str, Any],
    changes: dict[str, Any],
    reason: str,
) -> None:
    bench = Talk(tmp_path, store, **training)
    for number in range(40):  # more than are looked at together
        await bench.say(f"n{number:02}", **changes)
    assert await bench.learner.learn("ann") is None
    for number in range(8):
        await bench.say(f"t{number}")
    outcome = await bench.learn()
    assert outcome.version.turns == ("t0", "t1", "t2", "t3")
    assert outcome.metrics[reason] == 40
    # Once a version was told what the person keeps asking for, that is the hint of praise.
    hinted = reason == "no_hint"
    second = (await bench.learn()).version.turns
    assert second == (("n00", "n01", "n02", "n03") if hinted else ("t4", "t5", "t6", "t7"))
    assert len(await JudgedTurns(store).waiting("ann", share=0.0)) == 40, "nothing is lost"


def tiny_mistral(folder: Path) -> Path:
    """A window of 128 tokens."""
    from transformers import MistralConfig, MistralForCausalLM

    tiny_llama(folder)
    config = MistralConfig(
        vocab_size=258,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=128,
    )
    MistralForCausalLM(config).save_pretrained(folder)
    return folder


async def test_turns_longer_than_a_models_window_are_passed_over(
    tmp_path: Path, store: TurnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_learning, "tiny_llama", tiny_mistral)
    bench = Talk(tmp_path, store, holdout_share=0.2)
    for number in range(24):
        await bench.say(f"t{number:02}", tokens=129 if number % 2 else 60)
    outcome = await bench.learn()
    assert outcome.metrics["too_long"] > 4
    assert all(int(name[1:]) % 2 == 0 for name in outcome.version.turns)
    held = (await bench.learner._gate.held_out("ann")).turns
    assert held and all(int(turn.id[1:]) % 2 == 0 for turn in held), "nor does the gate read them"


async def test_a_hint_that_does_not_fit_costs_the_teacher_and_nothing_else(
    tmp_path: Path, store: TurnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-2 has 2,048 positions, and the hint alone takes more than what is left of them."""
    monkeypatch.setattr(test_learning, "tiny_llama", tiny_gpt2)
    bench = Talk(tmp_path, store)
    for number in range(4):
        await bench.say(f"t{number}", tokens=2048 if number == 0 else 60)
    outcome = await bench.learn()
    assert outcome.metrics["turns"] == 4
    assert outcome.metrics["teacher_too_long"] == 1
    assert outcome.metrics["distill_kl"] > 0, "that of the others"
    alone = Talk(tmp_path, store, method="opd")
    await alone.say("t4", tokens=2048)
    for number in range(5, 9):
        await alone.say(f"t{number}")
    assert set((await alone.learn()).version.turns) == {"t5", "t6", "t7", "t8"}


@pytest.mark.parametrize(
    "changes",
    [
        {"lora_rank": 20},
        {"lora_alpha": 8.0},
        {"use_lora": False, "learning_rate": 1e-4},
        {"value_head": True, "method": "binary", "advantage": "gae"},
        {"dtype": "bfloat16"},
        {"weight_decay": 0.1},
    ],
)
async def test_settings_may_change_after_a_version(
    tmp_path: Path, store: TurnStore, changes: dict[str, Any]
) -> None:
    bench = Talk(tmp_path, store)
    for number in range(8):
        await bench.say(f"t{number}")
    await bench.learn()
    before = bench.learner._trainer.logprobs((1, 2, 3), (4, 5))
    bench.training = bench.training.model_copy(update=changes)
    later = bench.again()
    later._holder.hold("ann", "v1")
    exact = 0.1 if "dtype" in changes else 1e-4
    assert later._trainer.logprobs((1, 2, 3), (4, 5)) == pytest.approx(before, abs=exact)
    outcome = await later.learn("ann")
    assert outcome is not None and outcome.version.parent == "v1"


async def test_a_version_that_does_not_fit_any_more_is_named_and_kept(
    tmp_path: Path, store: TurnStore
) -> None:
    bench = Talk(tmp_path, store)
    for number in range(8):
        await bench.say(f"t{number}")
    await bench.learn()
    bench.training = bench.training.model_copy(update={"lora_rank": 8})
    with pytest.raises(ModelError, match=r"v1 has an adapter of rank 16 .* at most the 8 of"):
        await bench.again().learn("ann")
    assert len(await JudgedTurns(store).waiting("ann", share=0.0)) == 4, "they wait"


@pytest.mark.parametrize("bad", [RuntimeError("no kernel"), ValueError("odd")])
async def test_a_batch_that_fails_is_set_aside_after_some_tries(
    tmp_path: Path, store: TurnStore, caplog: pytest.LogCaptureFixture, bad: Exception
) -> None:
    bench = Talk(tmp_path, store)
    for number in range(8):
        await bench.say(f"t{number}")
    step, weights = bench.learner._trainer.step, bench.learner._trainer.logprobs((1, 2), (3, 4))

    def fails(batch: Any, *more: Any, **options: Any) -> Any:
        found = step(batch, *more, **options)
        if "t2" in batch.turns:
            raise bad
        return found

    bench.learner._trainer.step = fails  # type: ignore[method-assign]
    for number in range(setbacks.TRIES):
        with pytest.raises(type(bad)) as caught:
            await bench.learner.learn("ann")
        note = f"learning from t0, t1, t2, t3: try {number + 1} of {setbacks.TRIES}"
        assert note in caught.value.__notes__[-1]
    assert "t0, t1, t2, t3" in caplog.text
    bench.learner._holder.hold("ann", "base")
    assert bench.learner._trainer.logprobs((1, 2), (3, 4)) == weights, "half a step is undone"
    outcome = await bench.learn()
    assert outcome.version.turns == ("t4", "t5", "t6", "t7")
    assert outcome.metrics["failed"] == 4
    again = await bench.again().learn("ann")
    assert again is not None and again.version.turns == ("t0", "t1", "t2", "t3")


async def test_a_turn_that_cannot_be_rendered_is_set_aside_alone(
    tmp_path: Path, store: TurnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Talk(tmp_path, store)
    for number in range(8):
        await bench.say(f"t{number}")
    hinted = bench.learner._gatherer._hinted

    def fails(one: Any, *more: Any) -> Any:
        if one.turn.id == "t2":
            raise KeyError("content")
        return hinted(one, *more)

    monkeypatch.setattr(bench.learner._gatherer, "_hinted", fails)
    for _ in range(setbacks.TRIES):
        with pytest.raises(KeyError):
            await bench.learner.learn("ann")
    assert (await bench.learn()).version.turns == ("t0", "t1", "t3", "t4")


async def test_what_is_nobodys_fault_sets_nothing_aside(
    tmp_path: Path, store: TurnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Talk(tmp_path, store)
    for number in range(4):
        await bench.say(f"t{number}")

    def full(*_: Any) -> None:
        raise OSError("disk full")

    def damaged(*_: Any) -> None:
        raise ModelError("v1 is damaged")

    for what, fails in ((bench.learner._files, full), (bench.learner._holder, damaged)):
        name = "_seal" if fails is full else "hold"
        with monkeypatch.context() as patched:
            patched.setattr(what, name, fails)
            for _ in range(2 * setbacks.TRIES):
                with pytest.raises(ModelError, match=r"disk full|damaged"):
                    await bench.learner.learn("ann")
    assert (await bench.learn()).version.turns == ("t0", "t1", "t2", "t3")


@pytest.mark.parametrize("adapter_fits", [False, True])
async def test_a_full_disk_sets_nothing_aside_and_is_not_filled_further(
    tmp_path: Path, store: TurnStore, monkeypatch: pytest.MonkeyPatch, adapter_fits: bool
) -> None:
    """No file may be larger, as if the disk were full: the adapter's, or the optimiser's state."""
    bench = Talk(tmp_path, store)
    for number in range(4):
        await bench.say(f"t{number}")
    written: list[object] = []
    trainer, files = bench.learner._trainer, bench.learner._holder._states
    save_adapter, save_state = trainer.save_adapter, files.save
    save_adapter(tmp_path / "whole")
    size = (tmp_path / "whole" / ADAPTER[1]).stat().st_size - (not adapter_fits)

    def narrow(call: Callable[..., None], *args: Any) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            call(*args)
            written.append(call)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    with monkeypatch.context() as patched:
        patched.setattr(trainer, "save_adapter", lambda *args: narrow(save_adapter, *args))
        patched.setattr(files, "save", lambda *args: narrow(save_state, *args))
        for _ in range(2 * setbacks.TRIES):
            with pytest.raises((ModelError, OSError), match="cannot be written"):
                await bench.learner.learn("ann")
    assert bool(written) == adapter_fits and save_state not in written
    left = [*(tmp_path / "versions" / "ann").iterdir(), *(tmp_path / "training").rglob("*")]
    assert [one for one in left if one.is_file() or one.parent.name == "versions"] == []
    assert (await bench.learn()).version.turns == ("t0", "t1", "t2", "t3")


async def test_one_owners_failure_ends_nothing(
    tmp_path: Path,
    store: TurnStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither the process nor the training of others, and it is tried again."""
    bench = Talk(tmp_path, store)
    for number in range(4):
        await bench.say(f"a{number}")
        await bench.say(f"b{number}", owner="ben")
    monkeypatch.setattr(troubles, "_AGAIN_S", 0.05)
    monkeypatch.setattr(run, "_IDLE_S", 0.01)
    stop, tries = asyncio.Event(), 0
    learn = bench.learner.learn

    async def fails(owner: str) -> Any:
        nonlocal tries
        if owner == "ben":
            return await learn(owner)
        tries += 1
        raise RuntimeError("odd")

    monkeypatch.setattr(bench.learner, "learn", fails)
    found: list[Outcome] = []
    job = asyncio.ensure_future(run._train(bench.learner, store, stop, found.append))
    async with asyncio.timeout(30):
        while tries < 3 or not found:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    stop.set()
    await job
    assert [one.version.owner for one in found] == ["ben"]
    assert "training of ann failed" in caplog.text and "RuntimeError: odd" in caplog.text


def test_a_trouble_is_said_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    seen = Troubles(clock=lambda: now)
    for _ in range(3):
        seen.note("ann", ModelError("v1 is damaged"))
        assert seen.waits("ann") and not seen.waits("ben")
        now += 10
        assert not seen.waits("ann")
    assert len(caplog.records) == 1
    seen.note("ann", ModelError("v1 is gone"))
    assert len(caplog.records) == 2
    now += 600
    seen.note("ann", ModelError("v1 is gone"))
    assert len(caplog.records) == 3
    seen.is_over("ann")
    assert not seen.waits("ann")


async def credited(bench: Talk) -> Credited:
    marks = await bench.learner._look("ann", "base")
    turns = await JudgedTurns(bench.store).turns([mark.seq for mark in marks])
    return await bench.learner._credited("ann", "base", turns)


@pytest.mark.parametrize(
    "middle", [{"score": None}, {"no_train": True}, {"id": "held out"}, {"kind": "side"}]
)
async def test_sessions_go_on_behind_turns_that_are_not_trained(
    tmp_path: Path, store: TurnStore, middle: dict[str, Any]
) -> None:
    options = {"method": "binary", "advantage": "gae", "gamma": 0.5, "gae_lambda": 1.0}
    bench = Talk(tmp_path, store, **options, holdout_share=0.2)
    out = next(f"h{n}" for n in range(99) if share_of(f"h{n}") < 0.2)
    names = [f"k{n}" for n in range(99) if share_of(f"k{n}") >= 0.2][:2]
    between = out if middle.pop("id", None) else "between"
    chain = {"session": "s", "hint": None}
    await bench.say(names[0], score=0, **chain)
    await bench.say(between, **({"score": 1} | chain | middle), parent=names[0])
    await bench.say(names[1], score=-1, **chain, parent=between)
    found = {one.turn.id: got.advantages[0] for one, got in (await credited(bench)).turns}
    # The one between is passed over: 0 + 0.5 * -1, as if the last one followed the first.
    assert found == {names[0]: -0.5, names[1]: -1.0}


async def test_the_teacher_is_compared_at_the_temperature_of_the_recorded_logprobs(
    tmp_path: Path, store: TurnStore
) -> None:
    """An engine that only knows log-probs at temperature 1 says so of its turns."""
    bench = Talk(tmp_path, store, method="opd", opd="sampled", opd_clip=100.0)
    cool = Sampling(temperature=0.5)
    scaled = await bench.say("scaled", settings=cool)
    plain = await bench.say("plain", settings=cool, logprobs_scaled=False)
    found = {one.turn.id: (one, got) for one, got in (await credited(bench)).turns}
    for turn, temperature in ((scaled, 0.5), (plain, 1.0)):
        one, got = found[turn.id]
        assert one.hinted_ids is not None
        teacher = bench.trainer.logprobs(
            one.hinted_ids, turn.sampled_ids, temperature=temperature, weights="base"
        )
        gaps = [a - b for a, b in zip(teacher, turn.logprobs, strict=True)]
        assert got.advantages == pytest.approx(gaps, abs=1e-5)


def while_stepping(learner: Learner, pause: Callable[[], None]) -> None:
    steps = learner._steps

    def paused(*more: Any) -> Any:
        pause()
        return steps(*more)

    learner._steps = paused  # type: ignore[method-assign]


async def test_a_candidate_that_ends_while_paused_waits_and_is_finished_on_resume(
    tmp_path: Path, store: TurnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Talk(tmp_path, store)
    for number in range(8):
        await bench.say(f"t{number}")
    loop = asyncio.get_running_loop()

    def pause() -> None:
        asyncio.run_coroutine_threadsafe(pause_learning(store), loop).result()

    while_stepping(bench.learner, pause)
    begun = {"ann"}
    (outcome,) = await run._step(bench.learner, store, "ann", begun)
    assert outcome.report.accepted and outcome.held_back
    assert await bench.book.live_name("ann") == "base"
    assert begun == set()
    assert await run._step(bench.learner, store, "ann", begun) == []
    assert [one.state for one in await bench.book.versions("ann")] == ["candidate"]
    await resume_learning(store)
    monkeypatch.undo()
    learner = bench.again()
    await run._step(learner, store, "ann", begun)
    assert await bench.book.live_name("ann") == "v1"
    assert test_learning.goes_on(learner, "v1", steps=1), "its optimiser's state was kept"
    (second,) = await run._step(learner, store, "ann", begun)
    assert second.version.turns == ("t4", "t5", "t6", "t7"), "nothing is trained twice"


async def test_a_rebuild_stops_at_a_pause_and_goes_on_in_its_line(
    tmp_path: Path, store: TurnStore
) -> None:
    bench = Talk(tmp_path, store)
    for number in range(12):
        await bench.say(f"t{number:02}")
    for _ in range(3):
        await bench.learn()
    await forget_session(store, "ann", "t00")
    loop = asyncio.get_running_loop()
    learner = bench.again()

    def pause() -> None:
        asyncio.run_coroutine_threadsafe(pause_learning(store), loop).result()

    steps = learner._steps
    while_stepping(learner, pause)
    begun = {"ann"}
    (first,) = await run._step(learner, store, "ann", begun)
    assert first.held_back and await bench.book.live_name("ann") == "base"
    assert await pending_rebuilds(store, "ann"), "it is not over"
    learner._steps = steps  # type: ignore[method-assign]
    await resume_learning(store)
    assert await run._step(learner, store, "ann", begun) == []
    assert await bench.book.live_name("ann") == first.version.name
    rest = await run._step(learner, store, "ann", begun)
    assert [one.version.parent for one in rest] == [first.version.name, rest[0].version.name]
    assert await pending_rebuilds(store, "ann") == []
    learned = await bench.book.turns("ann", await bench.book.live_name("ann"))
    assert sorted(learned) == [f"t{number:02}" for number in range(1, 12)]


async def test_a_candidate_that_cannot_be_measured_is_left_alone_after_some_tries(
    tmp_path: Path,
    store: TurnStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    bench = Talk(tmp_path, store)
    for number in range(8):
        await bench.say(f"t{number}")

    async def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench.learner, "_publish", dies)
    with pytest.raises(KeyboardInterrupt):
        await bench.learner.learn("ann")

    async def fails(*_: Any) -> None:
        raise RuntimeError("odd")

    learner = bench.again()
    monkeypatch.setattr(learner, "_gate_again", fails)
    begun: set[str] = set()
    for _ in range(setbacks.TRIES):
        with pytest.raises(RuntimeError):
            await run._step(learner, store, "ann", begun)
    assert "v1 of ann" in caplog.text
    assert await run._step(learner, store, "ann", begun) == []
    (outcome,) = await run._step(learner, store, "ann", begun)
    assert outcome.version.turns == ("t4", "t5", "t6", "t7")
