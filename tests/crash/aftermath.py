"""What must hold after any number of kills: looked up in the store and in the files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from kills import OWNER, Run
from safetensors.torch import load_file

from instar.learn.states import TrainerStates
from instar.publish.versions import ADAPTER, VersionFiles
from instar.record.store import TurnStore, open_store
from instar.record.versions import VersionBook
from instar.types import Version

EVER_LIVE = ("live", "retired")


async def check(run: Run) -> str:
    """Every promise; gives a line for the log."""
    home = run.fleet.home
    left = run.fleet.alive()
    assert not left, f"still running: {[one.cmdline() for one in left]}"
    assert set(run.codes.values()) == {0}, run.codes
    async with open_store(f"sqlite:///{home / 'instar.db'}") as store:
        book = VersionBook(store)
        versions = await book.versions(OWNER)
        await no_answered_turn_is_lost(run, store)
        await no_turn_trains_twice(book, versions)
        whatever_was_live_is_whole(home, versions)
        nobody_was_served_by_anything_else(run, versions)
        line = await book.line(OWNER, await book.live_name(OWNER))
    the_optimiser_goes_on(home, line)
    nothing_is_left_half_written(home)
    states = Counter(one.state for one in versions)
    return f"{run.summary()}; {len(line)} versions in the live line, states {dict(states)}"


async def no_answered_turn_is_lost(run: Run, store: TurnStore) -> None:
    for name, answer in run.client.answered.items():
        turn = await store.turn(OWNER, name)
        assert turn is not None, f"turn {name} was answered and is lost"
        assert (turn.session, turn.version) == (answer["session"], answer["version"])
        assert (turn.reply["content"] or "") == (answer["content"] or "")
        assert len(turn.sampled_ids) == len(turn.logprobs) > 0
        if answer["follows"] is not None:
            before = await store.turn(OWNER, answer["follows"])
            assert before is not None and before.next_state is not None
            assert before.verdict is not None, f"turn {before.id} was never judged"


async def no_turn_trains_twice(book: VersionBook, versions: list[Version]) -> None:
    for version in versions:
        counts = Counter(await book.turns(OWNER, version.name))
        twice = [turn for turn, count in counts.items() if count > 1]
        assert not twice, f"{version.name} was trained twice on {twice}"


def whatever_was_live_is_whole(home: Path, versions: list[Version]) -> None:
    files = VersionFiles.of_home(home)
    for version in versions:
        if version.state in EVER_LIVE:
            assert version.gate is not None and version.gate["accepted"], version.name
            manifest = files.read(OWNER, version.name).version
            assert manifest.gate == version.gate
            assert (manifest.parent, manifest.turns) == (version.parent, version.turns)


def nobody_was_served_by_anything_else(run: Run, versions: list[Version]) -> None:
    served = {answer["version"] for answer in run.client.answered.values()}
    live = {one.name for one in versions if one.state in EVER_LIVE}
    assert served <= live | {"base"}, served - live


def the_optimiser_goes_on(home: Path, line: list[Version]) -> None:
    """One step a version of the line, in the count, in the moments and in the weights."""
    assert line, "nothing was learned: the run shows nothing"
    state = TrainerStates(home / "training").load(OWNER, line[0].name)
    assert state is not None
    assert state["steps"] == len(line)
    assert {float(one["step"]) for one in state["optimizer"]["state"].values()} == {len(line)}
    file = VersionFiles.of_home(home).folder(OWNER, line[0].name) / ADAPTER[1]
    saved = load_file(file)
    for name, value in state["weights"].items():
        assert value.equal(saved[name.replace(".default.", ".")]), name


def nothing_is_left_half_written(home: Path) -> None:
    folder, training = home / "versions" / OWNER, home / "training" / OWNER
    assert not [*folder.glob(".*"), *folder.glob("*/.*"), *training.glob("*.part")]
