"""How well the ways to say a hint are obeyed, and which of them the trainer would choose.

    python benchmarks/hints.py [--personas brief,student] [--texts 4] [--replies 32] [--json]

A simulated person corrects replies of the embedded model. Each thing they say is made a hint in
several ways (`judge/hints.py`). `obeyed` is the share of replies of the hinted model that please
them; `moved` and `astray` are what `learn/wording.py` chooses by, which draws no reply.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from instar.backends.embedded import embedded_model
from instar.batch.render import ChatRenderer
from instar.config import TrainingConfig
from instar.demo.person import Person, load_person
from instar.judge.hints import candidates, teacher_system
from instar.judge.next_state import Case
from instar.learn.wording import REPLIES, Wordings, best
from instar.train.step import TorchTrainer
from instar.types import Hint, Message, Sampling, Turn, Verdict

ASKED = 16
"""Prompts that the person's corrections are gathered from."""
TOKENS = 128
TEMPERATURE = 0.7


Drawn = tuple[tuple[int, ...], tuple[int, ...], str]
"""Prompt ids, sampled ids and text of a reply."""


class Model:
    """The embedded model, drawn from in one batch."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.renderer = ChatRenderer.from_folder(folder)

    def draw(
        self, talks: list[list[Message]]
    ) -> list[tuple[tuple[int, ...], tuple[int, ...], str]]:
        """Prompt ids, sampled ids and text of a reply to each."""
        prompts = [self.renderer.render(talk).ids for talk in talks]
        longest = max(map(len, prompts))
        end = self.renderer.eos_ids[0]
        ids = torch.tensor([[end] * (longest - len(one)) + list(one) for one in prompts])
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
        with torch.inference_mode():
            out = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=TEMPERATURE,
                top_k=0,
                max_new_tokens=TOKENS,
                pad_token_id=end,
            )
        drawn = [self._upto(row[longest:].tolist(), end) for row in out]
        texts = [self.renderer.tokenizer.decode(list(one)) for one in drawn]
        return list(zip(prompts, drawn, texts, strict=True))

    @staticmethod
    def _upto(ids: list[int], end: int) -> tuple[int, ...]:
        return tuple(ids[: ids.index(end) + 1] if end in ids else ids)


def corrected(model: Model, person: Person) -> list[Turn]:
    """Turns that the person was not content with, with all ways to say why."""
    talks: list[list[Message]] = [
        [{"role": "user", "content": prompt}] for prompt in person.asked[:ASKED]
    ]
    out = []
    for at, (talk, drawn) in enumerate(zip(talks, model.draw(talks), strict=True)):
        prompt_ids, sampled, text = drawn
        prompt = str(talk[0]["content"])
        if person.score(prompt, text) >= 1.0:
            continue
        said = person.respond(prompt, text)
        ways = tuple(candidates(Case(request=prompt, response=text, next=said)))
        if len(ways) > 1:
            out.append(turn(f"t{at}", prompt_ids, sampled, talk, ways))
    return out


def turn(
    name: str,
    prompt_ids: tuple[int, ...],
    sampled: tuple[int, ...],
    talk: list[Message],
    ways: tuple[str, ...],
) -> Turn:
    return Turn(
        id=name,
        owner="bench",
        session=name,
        parent=None,
        extends=False,
        kind="main",
        prompt_ids=prompt_ids,
        sampled_ids=sampled,
        logprobs=(-1.0,) * len(sampled),
        settings=Sampling(temperature=TEMPERATURE),
        version="base",
        finish="stop",
        messages=tuple(talk),
        reply={"role": "assistant", "content": ""},
        created=0.0,
        verdict=Verdict(score=-1),
        hint=Hint(text=ways[0], ways=ways),
    )


def obeyed(model: Model, person: Person, way: str, replies: int) -> float:
    prompts = [person.asked[at % len(person.asked)] for at in range(replies)]
    system: Message = {"role": "system", "content": teacher_system(way)}
    talks: list[list[Message]] = [[system, {"role": "user", "content": one}] for one in prompts]
    drawn = model.draw(talks)
    return fmean(
        float(person.score(prompt, text))
        for prompt, (_, _, text) in zip(prompts, drawn, strict=True)
    )


def rows_of(
    model: Model, wordings: Wordings, person: Person, args: argparse.Namespace
) -> list[dict[str, Any]]:
    turns = corrected(model, person)
    distinct = {one.hint.ways: one for one in reversed(turns) if one.hint is not None}
    rows = []
    for ways, one in list(distinct.items())[: args.texts]:
        others = [other for other in turns if other.id != one.id]
        found = wordings.compared(ways, [one, *others][:REPLIES], {})
        chosen = best(ways, found)
        for way, followed in zip(ways, found, strict=True):
            share = obeyed(model, person, way, args.replies)
            row = {"persona": person.name, "way": way, "obeyed": share, "chosen": way == chosen}
            rows.append({**row, "moved": followed.moved, "astray": followed.astray, "of": ways[0]})
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The share obeyed with the first way of each, with the chosen one, with the best."""
    sets = [[one for one in rows if one["of"] == of] for of in dict.fromkeys(r["of"] for r in rows)]
    return {
        "first": fmean(one[0]["obeyed"] for one in sets),
        "chosen": fmean(next(r["obeyed"] for r in one if r["chosen"]) for one in sets),
        "best": fmean(max(r["obeyed"] for r in one) for one in sets),
    }


def show(rows: list[dict[str, Any]], found: dict[str, float]) -> None:
    table = Table("persona", "hint", "obeyed", "moved", "astray", "chosen")
    for row in rows:
        numbers = (f"{row[name]:.2f}" for name in ("obeyed", "moved", "astray"))
        table.add_row(row["persona"], row["way"][:90], *numbers, "x" if row["chosen"] else "")
    Console().print(table)
    print("  ".join(f"{name} {share:.2f}" for name, share in found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--personas", default="brief,student,teacher")
    parser.add_argument("--texts", type=int, default=4, help="Corrections of each person.")
    parser.add_argument("--replies", type=int, default=32, help="Replies to each wording.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = embedded_model(Path.home() / ".instar")
    model, training = Model(folder), TrainingConfig()
    reader = TorchTrainer(folder, training, device="cpu")
    wordings = Wordings(reader, renderer=model.renderer, training=training, longest=4096)
    rows: list[dict[str, Any]] = []
    for name in args.personas.split(","):
        torch.manual_seed(args.seed)
        random.seed(args.seed)
        rows += rows_of(model, wordings, load_person(name, seed=args.seed), args)
    found = summary(rows)
    if args.json:
        print(json.dumps({"rows": rows, "obeyed": found}))
    else:
        show(rows, found)


if __name__ == "__main__":
    main()
