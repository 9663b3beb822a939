"""Trains the probe's head: labelled cases in, a `Head` and its scores out.

The frozen model reads each case once, which takes minutes; the rest takes seconds. The networks
learn from its states and from word counts; each on its own random weighting of the cases, so that
their votes differ where the cases do not settle the matter. The temperature is fitted on cases a
network was not shown.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from instar.errors import ConfigError
from instar.judge.encoder import Encoder
from instar.judge.features import features
from instar.judge.head import CLAMP, LABELS, Head, HeadInfo
from instar.judge.next_state import Case
from instar.judge.report import Agreement, agreement
from instar.threads import at_most

if TYPE_CHECKING:
    import torch

CASES = Path(__file__).parent / "data" / "cases.jsonl"
BLIND = "blind"
"""In the kind of cases that somebody wrote who knew neither the judge nor its other cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """One case of a labelled set."""

    case: Case
    label: int
    kind: str = ""
    lang: str = ""
    split: str = "train"
    """`train`, or `test` for those that are only measured on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the networks are trained."""

    layers: int = 16
    context: bool = True
    components: int = 256
    """Directions kept of the hidden states."""
    networks: int = 5
    units: int = 24
    steps: int = 250
    learning_rate: float = 5e-3
    weight_decay: float = 1.0
    dropout: float = 0.4
    folds: int = 4
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A head and how it did on the cases it never saw."""

    head: Head
    agreement: Agreement
    missed: tuple[tuple[Labelled, int | None], ...]
    sets: dict[str, Agreement]
    """The same for each set that was written after a head, and for the others."""


def read_cases(file: Path) -> list[Labelled]:
    """A labelled set, one JSON object a line; every bad line is named."""
    found: list[Labelled] = []
    problems: list[str] = []
    try:
        lines = json_lines(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(_labelled(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"line {number}: {error!r}")
    if problems or not found:
        listed = "; ".join(problems[:5]) or "no cases"
        raise ConfigError(
            f"{file}: {listed}. Expected lines with request, response, next, "
            "role (user or tool) and label (1, 0 or -1)"
        )
    return found


def json_lines(file: Path) -> list[str]:
    """The lines of a file, without blank ones at its end. Raises OSError or UnicodeDecodeError.

    Only "\\n" ends one: what else Python takes for the end of a line (U+2028, U+0085) may stand
    in a JSON string. A mark of the byte order, as Windows writes it, is no part of the first.
    """
    lines = file.read_bytes().decode("utf-8-sig").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _labelled(row: dict[str, Any]) -> Labelled:
    if row["label"] not in LABELS or isinstance(row["label"], bool):
        raise ValueError(f"label is {row['label']!r}, expected 1, 0 or -1")
    return Labelled(
        case=case_from(row),
        label=row["label"],
        kind=str(row.get("kind", "")),
        lang=str(row.get("lang", "")),
        split=str(row.get("split", "train")),
    )


def case_from(row: dict[str, Any]) -> Case:
    """A case from one line's object. Raises ValueError that says what is missing."""
    from instar.synthetic import strip

    texts = {}
    for name in ("request", "response", "next"):
        if not isinstance(row.get(name), str):
            raise ValueError(f'"{name}" is {row.get(name)!r}, expected a string')
        # JSON may hold half of a character, which no tokenizer reads.
        texts[name] = strip(row[name].encode("utf-8", "surrogatepass").decode("utf-8", "replace"))
    role = row.get("role", "user")
    if role not in ("user", "tool"):
        raise ValueError(f'"role" is {role!r}, expected user or tool')
    return Case(request=texts["request"], response=texts["response"], next=texts["next"], role=role)


def fit(
    cases: Sequence[Labelled],
    encoder: Encoder,
    recipe: Recipe,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> Fitted:
    """Train on the cases whose split is not `test`, measure on those whose is."""
    import torch

    say(f"Reading {len(cases)} cases with the frozen model")
    hidden = encoder.encode([one.case for one in cases])
    words = torch.tensor([features(one.case) for one in cases])
    return fit_features(cases, hidden, words, recipe, say=say)


def fit_features(
    cases: Sequence[Labelled],
    hidden: torch.Tensor,
    words: torch.Tensor,
    recipe: Recipe,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> Fitted:
    """`fit`, from features that were computed before."""
    import torch

    torch.manual_seed(recipe.seed)
    labels = torch.tensor([LABELS.index(one.label) for one in cases])
    train = torch.tensor([at for at, one in enumerate(cases) if one.split != "test"])
    test = [at for at, one in enumerate(cases) if one.split == "test"]
    if Counter(labels[train].tolist()).keys() != set(range(len(LABELS))):
        raise ConfigError("The cases to train on must hold all of the labels 1, 0 and -1")
    say(f"Training {recipe.networks} networks on {len(train)} cases")
    with at_most(1):  # these matrices are too small to share: waiting would cost more
        temperature = _temperature(hidden[train], words[train], labels[train], recipe)
        tensors = _train(hidden[train], words[train], labels[train], recipe)
    info = HeadInfo(
        layers=recipe.layers,
        context=recipe.context,
        width=hidden.shape[1],
        temperature=temperature,
        cases=len(train),
    )
    measured = _measure(Head(info=info, tensors=tensors), cases, hidden, words, test)
    table = agreement([(cases[at].label, found) for at, found in measured])
    scored = replace(info, accuracy=table.accuracy, macro_f1=table.macro_f1)
    return Fitted(
        head=Head(info=scored, tensors=tensors),
        agreement=table,
        missed=tuple((cases[at], found) for at, found in measured if found != cases[at].label),
        sets=_by_set([(cases[at], found) for at, found in measured]),
    )


def _by_set(measured: Sequence[tuple[Labelled, int | None]]) -> dict[str, Agreement]:
    pairs: dict[str, list[tuple[int, int | None]]] = {}
    for one, found in measured:
        name = one.kind if BLIND in one.kind else "mixed"
        pairs.setdefault(name, []).append((one.label, found))
    return {name: agreement(some) for name, some in pairs.items()}


def _measure(
    head: Head,
    cases: Sequence[Labelled],
    hidden: torch.Tensor,
    words: torch.Tensor,
    at: list[int],
) -> list[tuple[int, int | None]]:
    """(place, label found) of each case; the networks' mean decides."""
    if not at:
        return []
    chances = head.logits(hidden[at], words[at]).softmax(-1).mean(0)
    return [(one, LABELS[best]) for one, best in zip(at, chances.argmax(-1).tolist(), strict=True)]


def _train(
    hidden: torch.Tensor, words: torch.Tensor, labels: torch.Tensor, recipe: Recipe
) -> dict[str, torch.Tensor]:
    import torch

    shared = _shared(hidden, words, recipe)
    shown = ((hidden - shared["center"]) / shared["scale"]) @ shared["basis"]
    said = (words - shared["word_center"]) / shared["word_scale"]
    x = torch.cat([shown, said], dim=1).clamp(-CLAMP, CLAMP)
    balance = 1.0 / torch.bincount(labels, minlength=len(LABELS)).float()
    nets = [_network(x, labels, balance[labels], recipe) for _ in range(recipe.networks)]
    stacked = {name: torch.stack([net[name] for net in nets]) for name in nets[0]}
    return {**shared, **stacked}


def _shared(hidden: torch.Tensor, words: torch.Tensor, recipe: Recipe) -> dict[str, torch.Tensor]:
    """Centres, scales and the directions in which the hidden states differ most."""
    import torch

    center, scale = hidden.mean(0), hidden.std(0) + 1e-3
    scaled = (hidden - center) / scale
    kept = min(recipe.components, *scaled.shape)
    _, spread, basis = torch.pca_lowrank(scaled, q=kept, center=False, niter=4)
    return {
        "center": center,
        "scale": scale,
        "basis": basis / (spread / len(hidden) ** 0.5 + 1e-3),
        "word_center": words.mean(0),
        "word_scale": words.std(0) + 0.1,
    }


def _network(
    x: torch.Tensor, labels: torch.Tensor, balance: torch.Tensor, recipe: Recipe
) -> dict[str, torch.Tensor]:
    import torch

    features_, units = x.shape[1], recipe.units
    w1 = (torch.randn(features_, units) / features_**0.5).requires_grad_()
    w2 = (torch.randn(units, len(LABELS)) / units**0.5).requires_grad_()
    b1 = torch.zeros(units, requires_grad=True)
    b2 = torch.zeros(len(LABELS), requires_grad=True)
    weights = balance * torch.empty_like(balance).exponential_()
    weights = weights / weights.sum()
    optimiser = torch.optim.AdamW(
        [w1, b1, w2, b2], lr=recipe.learning_rate, weight_decay=recipe.weight_decay
    )
    drop = torch.nn.functional.dropout
    for _ in range(recipe.steps):
        inner = torch.relu(drop(x, recipe.dropout) @ w1 + b1)
        logits = drop(inner, recipe.dropout) @ w2 + b2
        missed = torch.nn.functional.cross_entropy(
            logits, labels, reduction="none", label_smoothing=0.05
        )
        optimiser.zero_grad()
        torch.autograd.backward((missed * weights).sum())
        optimiser.step()
    named = {"w1": w1, "b1": b1, "w2": w2, "b2": b2}
    return {name: one.detach() for name, one in named.items()}


def _temperature(
    hidden: torch.Tensor, words: torch.Tensor, labels: torch.Tensor, recipe: Recipe
) -> float:
    """What the logits are divided by, so that confidence is true on cases not trained on."""
    import torch

    single = replace(recipe, networks=1)
    order = torch.randperm(len(labels))
    shown: list[torch.Tensor] = []
    truth: list[torch.Tensor] = []
    for fold in range(recipe.folds):
        held = order[fold :: recipe.folds]
        kept = torch.cat([order[at :: recipe.folds] for at in range(recipe.folds) if at != fold])
        info = HeadInfo(layers=0, context=True, width=0, temperature=1.0)
        tensors = _train(hidden[kept], words[kept], labels[kept], single)
        logits = Head(info=info, tensors=tensors).logits(hidden[held], words[held])
        shown.append(logits.mean(0))
        truth.append(labels[held])
    logits, wanted = torch.cat(shown), torch.cat(truth)
    choices = [0.5 + 0.05 * step for step in range(60)]
    return min(choices, key=lambda t: float(torch.nn.functional.cross_entropy(logits / t, wanted)))
