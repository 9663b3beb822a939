"""The embedded judge: its head, its fit to a person, and its commands; accuracy on the model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from instar.backends.embedded import embedded_model
from instar.cli import app
from instar.errors import ConfigError, ModelError
from instar.judge.encoder import Encoder
from instar.judge.features import NAMES, features
from instar.judge.fit import BLIND, CASES, Labelled, Recipe, fit_features, read_cases
from instar.judge.head import SHIPPED, load_head
from instar.judge.hints import WordHinter
from instar.judge.next_state import Case, ToolResult
from instar.judge.panel import PanelJudge, tally
from instar.judge.probe import (
    Calibration,
    Probe,
    calibrate,
    joined,
    load_calibrations,
    pooled,
    save_calibrations,
    set_damaged_aside,
)
from instar.judge.report import agreement

SMALL = Recipe(components=4, networks=3, units=8, steps=60, folds=2, dropout=0.1)


def labelled(text: str, label: int, split: str = "train") -> Labelled:
    return Labelled(case=Case(request="q", response="a", next=text), label=label, split=split)


def toy() -> tuple[list[Labelled], torch.Tensor, torch.Tensor]:
    """Cases whose label can be read off the words."""
    texts = {1: "Thanks, perfect!", 0: "What is the capital?", -1: "No, that is wrong."}
    cases = [
        labelled(text, label, "test" if at % 5 == 0 else "train")
        for at in range(30)
        for label, text in texts.items()
    ]
    words = torch.tensor([features(one.case) for one in cases])
    return cases, torch.randn(len(cases), 16, generator=torch.Generator().manual_seed(0)), words


def test_a_head_learns_and_comes_back_from_disk(tmp_path: Path) -> None:
    cases, hidden, words = toy()
    fitted = fit_features(cases, hidden, words, SMALL)
    assert fitted.agreement.accuracy == 1.0
    fitted.head.save(tmp_path)
    loaded = load_head(tmp_path)
    assert loaded.info == fitted.head.info
    torch.testing.assert_close(
        loaded.logits(hidden, words), fitted.head.logits(hidden, words), atol=0.05, rtol=0.05
    )


def test_training_is_repeatable() -> None:
    one, two = (fit_features(*toy(), SMALL).head.tensors for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_all_labels_are_needed() -> None:
    cases, hidden, words = toy()
    kept = [at for at, one in enumerate(cases) if one.label != 0]
    with pytest.raises(ConfigError, match="all of the labels"):
        fit_features([cases[at] for at in kept], hidden[kept], words[kept], SMALL)


def test_a_damaged_head_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no readable head"):
        load_head(tmp_path)
    for name in ("head.json", "head.safetensors"):
        (tmp_path / name).write_bytes((SHIPPED / name).read_bytes()[:100])
    with pytest.raises(ModelError, match=str(tmp_path)):
        load_head(tmp_path)


def test_the_shipped_head_is_small_and_fits_the_features() -> None:
    assert (SHIPPED / "head.safetensors").stat().st_size < 2_000_000
    assert load_head(SHIPPED).info.words == NAMES


def test_the_shipped_cases_are_many_varied_and_apart() -> None:
    cases = read_cases(CASES)
    assert len(cases) >= 1200
    counts = Counter(one.label for one in cases)
    assert min(counts.values()) > len(cases) / 5
    spoken = {one.lang for one in cases}
    assert spoken >= {"de", "fr", "es", "it", "pt", "nl", "pl", "tr", "ru", "zh", "ja", "ar", "hi"}
    split = {
        name: {one.case.next for one in cases if one.split == name} for name in ("train", "test")
    }
    assert len(split["test"]) >= 150
    # What a tool gave may be nothing at all, whatever was asked of it.
    assert split["train"] & split["test"] <= {""}
    blind = Counter(one.label for one in cases if one.kind == "tone_blind")
    assert sum(blind.values()) >= 80
    assert min(blind.values()) >= 20
    assert {one.split for one in cases if one.kind == "tone_blind"} == {"test"}


def test_features_are_finite_for_any_text() -> None:
    for text in ("", " ", "?" * 5000, "\x00", "👍", "[]", "a" * 100_000):
        for role in ("user", "tool"):
            found = features(Case(request="", response="", next=text, role=role))
            assert len(found) == len(NAMES)
            assert all(abs(one) < 100 for one in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # orders, asks, praise first, praise later, blame first, blame and then a wish
        ("Too neat. I want plain text, one paragraph.", (2, 1, 1, 0, 1, 1)),
        ("Cold. Write a friendly line that says what was good.", (1, 1, 0, 1, 0, 0)),
        ("Nice and short, thanks!", (0, 0, 1, 0, 0, 0)),
        ("", (0, 0, 0, 0, 0, 0)),
    ],
)
def test_where_praise_and_wishes_stand(text: str, expected: tuple[int, ...]) -> None:
    found = features(Case(request="q", response="a", next=text))
    assert tuple(found[NAMES.index("orders") :]) == expected


def test_an_error_at_the_end_of_a_long_result_counts() -> None:
    text = "line\n" * 20_000 + "Traceback (most recent call last):"
    found = dict(
        zip(NAMES, features(Case(request="", response="", next=text, role="tool")), strict=True)
    )
    assert found["tool:exception"] == 1.0


def test_calibration_moves_little_for_few_pairs_and_more_for_many() -> None:
    # This person says "ok" where they are content; the head takes it for neutral.
    logits = torch.tensor([[[0.0, 1.0, 0.0]]]).repeat(3, 1, 1)
    few = calibrate(logits.repeat(1, 2, 1), [1, 1])
    many = calibrate(logits.repeat(1, 40, 1), [1] * 40)
    assert 0 < few.bias[2] < many.bias[2]
    chances = ((logits[0] + torch.tensor(many.bias)) / many.temperature).softmax(-1)
    assert int(chances.argmax()) == 2
    assert calibrate(logits, []) == Calibration()


def test_calibrations_come_back_from_disk(tmp_path: Path) -> None:
    found = {"ann": Calibration(bias=(0.1, 0.0, -0.1), temperature=1.2, pairs=3)}
    save_calibrations(found, tmp_path)
    assert load_calibrations(tmp_path) == found
    assert load_calibrations(tmp_path / "none") == {}
    for damaged in (
        "[",
        "[]",
        '{"ann": {}}',
        '{"ann": {"bias": [1], "temperature": 1, "pairs": 1}}',
    ):
        (tmp_path / "calibration.json").write_text(damaged)
        with pytest.raises(ConfigError, match="instar judge calibrate"):
            load_calibrations(tmp_path)


def test_a_damaged_calibration_is_put_aside_for_a_new_one(tmp_path: Path) -> None:
    assert set_damaged_aside(tmp_path) is None
    save_calibrations({"ann": Calibration(pairs=3)}, tmp_path)
    assert set_damaged_aside(tmp_path) is None
    (tmp_path / "calibration.json").write_text("{")
    aside = set_damaged_aside(tmp_path)
    assert aside is not None
    assert aside.read_text() == "{"
    assert load_calibrations(tmp_path) == {}


def test_bad_cases_are_named(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text('{"request":"a","response":"b","next":"c","role":"user","label":2}\nno\n')
    with pytest.raises(ConfigError, match=r"line 1: .*label is 2.*line 2"):
        read_cases(file)
    with pytest.raises(ConfigError, match=r"missing\.jsonl cannot be read"):
        read_cases(tmp_path / "missing.jsonl")


def test_scoring_reports_bad_lines_and_loses_nothing(tmp_path: Path) -> None:
    good = {"request": "r", "response": "s", "next": "exit code: 1", "role": "tool"}
    lines = [json.dumps(good), "{", json.dumps({**good, "role": "dog"}), json.dumps(good)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    rules = ["--set", "evaluation.judge.type=rules", "--home", str(tmp_path)]
    found = CliRunner().invoke(
        app,
        ["judge", "score", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "o"), *rules],
    )
    assert found.exit_code == 1
    rows = [json.loads(line) for line in (tmp_path / "o").read_text().splitlines()]
    assert [row["label"] for row in rows] == [-1, None, None, -1]
    assert rows[0] == {"label": -1, "hint": None, "votes": [-1]}
    assert "in.jsonl:2:" in found.stderr
    assert "expected user or tool" in found.stderr


CASE = {"request": "r", "response": "s", "next": "exit code: 1", "role": "tool"}


def test_only_a_newline_ends_a_line_and_a_blank_last_one_is_none(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    odd = json.dumps({**CASE, "request": "a\u2028b\u0085c", "label": -1}, ensure_ascii=False)
    file.write_bytes(f"{odd}\r\n{odd}\n\n".encode())
    rules = ["--set", "evaluation.judge.type=rules", "--home", str(tmp_path)]
    found = CliRunner().invoke(app, ["judge", "score", str(file), *rules])
    assert found.exit_code == 0, found.output
    assert [json.loads(line)["label"] for line in found.stdout.splitlines()] == [-1, -1]
    assert [one.case.request for one in read_cases(file)] == ["a\u2028b\u0085c"] * 2


def test_a_file_of_windows_and_half_a_character_are_read(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    half = json.dumps({**CASE, "next": "exit code: 1 \ud83d", "label": -1})
    file.write_bytes(b"\xef\xbb\xbf" + half.encode() + b"\r\n")
    (found,) = read_cases(file)
    assert found.case.next.startswith("exit code: 1 ")
    found.case.next.encode()


def test_scoring_says_so_where_the_judge_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Down:
        async def votes(self, case: Case, count: int) -> list[int | None]:
            raise ConnectionError("nobody is there")

    monkeypatch.setattr(
        "instar.commands.judge.open_judge", lambda *_: PanelJudge(voter=Down(), hinter=WordHinter())
    )
    file, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text(json.dumps(CASE))
    found = CliRunner().invoke(
        app, ["judge", "score", str(file), "--output", str(output), "--home", str(tmp_path)]
    )
    assert found.exit_code == 1
    assert (
        "in.jsonl:1: the judge could not be asked: ConnectionError: nobody is there" in found.stderr
    )
    row = json.loads(output.read_text())
    assert (row["label"], row["votes"]) == (None, [None])


@pytest.mark.parametrize(
    ("place", "problem"), [("none/x.jsonl", "there is no folder"), (".", "it is a folder")]
)
def test_scoring_says_before_it_begins_that_its_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, problem: str
) -> None:
    def opened(*_: object) -> None:
        raise AssertionError("it began")

    monkeypatch.setattr("instar.commands.judge.open_judge", opened)
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps(CASE))
    output = ["--output", str(tmp_path / place)]
    found = CliRunner().invoke(app, ["judge", "score", str(file), *output, "--home", str(tmp_path)])
    assert found.exit_code == 2
    assert "cannot be written" in found.stderr
    assert problem in " ".join(found.stderr.split())


def test_report_of_an_empty_home(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["judge", "report", "--home", str(tmp_path), "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout) == {
        "judged": 0,
        "pairs": 0,
        "accuracy": None,
        "macro_f1": None,
        "confusion": [],
        "alarms": [],
    }


def _set(one: Labelled) -> str:
    if one.kind == "tone_blind":
        return one.kind
    return "others_blind" if BLIND in one.kind else "mixed"


@pytest.fixture(scope="module")
def probe() -> Probe:
    head = load_head(SHIPPED)
    folder = embedded_model(Path.home() / ".instar")
    encoder = Encoder(folder, layers=head.info.layers, context=head.info.context)
    return Probe(encoder=encoder, head=head)


@pytest.mark.model
@pytest.mark.parametrize("which", ["mixed", "tone_blind", "others_blind"])
async def test_the_probe_is_right_on_cases_it_never_saw(probe: Probe, which: str) -> None:
    """`blind` ones come from people who knew neither the judge nor its other cases."""
    held_out = [one for one in read_cases(CASES) if one.split == "test" and which == _set(one)]
    held_out = held_out[:: max(1, len(held_out) // 200)]
    chances = probe.logits([one.case for one in held_out]).softmax(-1).mean(0)
    found = [int(best) - 1 for best in chances.argmax(-1)]
    table = agreement([(one.label, label) for one, label in zip(held_out, found, strict=True)])
    assert table.accuracy is not None
    assert table.macro_f1 is not None
    assert table.accuracy >= 0.85
    assert table.macro_f1 >= 0.85


@pytest.mark.model
@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Too neat. I want plain text, one paragraph, like a person would write it.", -1),
        ("That sounds stern. Write a friendly comment that says what was good, with names.", -1),
        ("Great, that is warm and to the point.", 1),
        ("Yes, that's the tone I like.", 1),
        ("Write a warm comment on Ben's drawing, please.", 0),
    ],
)
async def test_nice_words_in_a_wish_are_no_praise(probe: Probe, text: str, label: int) -> None:
    case = Case(request="Comment on Mia's text.", response="The text was read.", next=text)
    assert tally(await probe.votes(case, 3)) == label


def test_most_networks_have_a_part_in_each_vote_and_each_in_about_as_many() -> None:
    chances = torch.arange(15.0).reshape(5, 3)  # of network k: 3k, 3k + 1, 3k + 2
    assert pooled(chances, 1)[:, 0].tolist() == [6.0]
    # 0 1 2; 2 3 4; 3 4 0
    assert pooled(chances, 3)[:, 0].tolist() == [3.0, 9.0, 7.0]
    assert len(pooled(chances, 5)) == len(pooled(chances, 99)) == 5
    assert pooled(chances[:1], 3).tolist() == chances[:1].tolist()


@pytest.mark.model
async def test_the_probe_votes(probe: Probe) -> None:
    thanks = Case(request="Name a river.", response="The Rhine.", next="Perfect, thank you!")
    votes = await probe.votes(thanks, 3)
    assert len(votes) == 3
    assert tally(votes) == 1
    assert await probe.votes(thanks, 1) == [1]


SHAPES = [
    ('{"output":"tests/test_a.py ..F\\n","metadata":{"exit_code":1,"duration_seconds":0.6}}', -1),
    ("exit code: 0\nall ok\n\nexit code: 2\nmake: *** Error", -1),
    ("5 passed in 0.2s\n\nmake: *** [all] Error 2", -1),
    ("main.c:12:5: error: expected ';' before 'return'\n  12 | return 0;", -1),
    ('Traceback (most recent call last):\n  File "a.py", line 3\n    return 1\nKeyError: 1', -1),
    ('{"output":"3 passed\\n","metadata":{"exit_code":0}}', 1),
    ("exit code: 0\nworker 3 failed with an error, retried", 1),
]  # fmt: skip


@pytest.mark.model
@pytest.mark.parametrize(("text", "label"), SHAPES)
async def test_the_probe_believes_what_cannot_be_mistaken(
    probe: Probe, text: str, label: int
) -> None:
    case = Case(request="Run it.", response='bash({"command": "make"})', next=text, role="tool")
    assert await probe.votes(case, 3) == [label] * 3


@pytest.mark.model
@pytest.mark.parametrize(
    ("words", "results", "label"),
    [
        ("hm, stop, what happened?", ("exit code: 0", "exit code: 2\nmake: *** Error"), -1),
        ("hm, stop, what happened?", ("exit code: 2\nmake: *** Error", "exit code: 0"), -1),
        ("And what is the weather?", ("exit code: 0",), 1),
        ("And what is the weather?", (), 0),
        ("That's fine, thank you!", ("exit code: 2",), 1),
        ("No, that's wrong, I said Rust.", ("exit code: 0",), -1),
    ],
)
async def test_tools_speak_where_the_words_do_not(
    probe: Probe, words: str, results: tuple[str, ...], label: int
) -> None:
    told = tuple(ToolResult(text=one) for one in results)
    case = Case(request="Build it.", response="make({})", next=words, results=told)
    assert tally(await probe.votes(case, 3)) == label


def test_one_failure_among_results_decides_and_words_that_say_something_win() -> None:
    good, bad, open_ = [0.1, 0.1, 0.8], [0.9, 0.05, 0.05], [0.2, 0.7, 0.1]
    one = joined(torch.tensor([[good, bad]]), spoken=False)
    torch.testing.assert_close(one, torch.tensor([bad]))
    # No failure: the mean of both.
    two = joined(torch.tensor([[good, open_]]), spoken=False)
    torch.testing.assert_close(two, torch.tensor([[0.15, 0.4, 0.45]]))
    # 0.7 of the words is open: 0.2 + 0.7 * 0.9, 0.7 * 0.05, 0.1 + 0.7 * 0.05
    three = joined(torch.tensor([[good, bad, open_]]), spoken=True)
    torch.testing.assert_close(three, torch.tensor([[0.83, 0.035, 0.135]]))
    torch.testing.assert_close(joined(torch.tensor([[open_]]), spoken=True), torch.tensor([open_]))
