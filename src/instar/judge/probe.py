"""The embedded judge: a small head on the frozen model. No API, no GPU, about 0.1 s a turn.

Several networks vote, most of them for each vote; one that is not sure enough is none. The
person's words and each tool result are read apart: words that say nothing of the reply leave it to
the results, of which one that failed decides. Where a person has given explicit feedback, the votes
on their turns are shifted towards how they use words (`calibrate`), by little from few pairs and by
more from many.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from instar.config import ProbeJudge
from instar.errors import ConfigError
from instar.judge.encoder import Encoder
from instar.judge.features import features
from instar.judge.head import LABELS, SHIPPED, Head, load_head
from instar.judge.next_state import Case
from instar.judge.rules import plain_vote
from instar.judge.tool_results import readings

if TYPE_CHECKING:
    import torch

CALIBRATIONS = "calibration.json"
PULL = 2.0
"""How many pairs' worth of evidence holds a calibration at its start."""
SURE = 0.98
"""How likely what a tool's exit status says is made: no network has to guess at that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How one person's words differ from most people's."""

    bias: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Added to the logits of -1, 0, +1."""
    temperature: float = 1.0
    pairs: int = 0


class Probe:
    """Satisfies `panel.Voter`."""

    def __init__(
        self,
        *,
        encoder: Encoder,
        head: Head,
        min_confidence: float = 0.4,
        calibrations: Mapping[str, Calibration] | None = None,
    ) -> None:
        if encoder.width != head.info.width:
            raise ConfigError(
                f"The judge's head reads {head.info.width} features but this model gives "
                f"{encoder.width}. Train one for this model: instar judge train --model DIR"
            )
        self.calibrations = dict(calibrations or {})
        """By owner."""
        self._encoder = encoder
        self._head = head
        self._min = min_confidence
        self._one_at_a_time = asyncio.Lock()

    async def votes(self, case: Case, count: int) -> Sequence[int | None]:
        # One at a time: the judge has the cores it was given and no more.
        async with self._one_at_a_time:
            logits = await asyncio.to_thread(self.logits, [case])
        chances = self._calibrated(logits, case.owner).softmax(-1)[:, 0]
        return [_vote(one, self._min) for one in pooled(chances, count).tolist()]

    def logits(self, cases: Sequence[Case]) -> torch.Tensor:
        """(networks, cases, 3), before any person's calibration."""
        import torch

        pieces = [case.pieces() for case in cases]
        flat = [piece for one in pieces for piece in one]
        words = torch.tensor([features(piece) for piece in flat])
        chances = self._head.logits(self._encoder.encode(flat), words).softmax(-1)
        for at, piece in enumerate(flat):
            if (vote := _plain(piece)) is not None:
                chances[:, at] = (1 - SURE) / 2
                chances[:, at, LABELS.index(vote)] = SURE
        each = torch.split(chances, [len(one) for one in pieces], dim=1)
        told_of = [
            joined(one, spoken=case.role == "user") for one, case in zip(each, cases, strict=True)
        ]
        return torch.stack(told_of, dim=1).clamp_min(1e-6).log()

    def recalibrate(self, owner: str, cases: Sequence[Case], scores: Sequence[int]) -> Calibration:
        """Learn from pairs of what happened next and what the person said of it."""
        found = calibrate(self.logits(cases), scores)
        self.calibrations[owner] = found
        return found

    def _calibrated(self, logits: torch.Tensor, owner: str) -> torch.Tensor:
        import torch

        own = self.calibrations.get(owner)
        if own is None:
            return logits
        return (logits + torch.tensor(own.bias)) / own.temperature


def pooled(chances: torch.Tensor, count: int) -> torch.Tensor:
    """(networks, 3) as (votes, 3), at most one vote a network.

    One network is wrong more often than the mean of some, so most of them have a part in each
    vote, and each in about as many.
    """
    import torch

    networks = len(chances)
    if count == 1:
        return chances.mean(0, keepdim=True)
    votes = min(count, networks)
    starts = [round(at * networks / votes) for at in range(votes)]
    return torch.stack([chances.roll(-at, 0)[: networks // 2 + 1].mean(0) for at in starts])


def _plain(piece: Case) -> int | None:
    """What needs no network: a lone thumb or its like, a result that cannot be mistaken."""
    if piece.role == "user":
        return plain_vote(piece)
    (told,) = readings(piece)
    return told.vote if told.sure else None


def joined(pieces: torch.Tensor, *, spoken: bool) -> torch.Tensor:
    """(networks, pieces, 3) as one: what the words leave open is for the results to say."""
    if not spoken:
        return _of_results(pieces)
    words, results = pieces[:, -1], pieces[:, :-1]
    if not results.shape[1]:
        return words
    neutral = LABELS.index(0)
    told = words.clone()
    told[:, neutral] = 0
    return told + words[:, neutral, None] * _of_results(results)


def _of_results(results: torch.Tensor) -> torch.Tensor:
    """The likeliest failure of parallel calls if it is one, else what they say in the mean."""
    import torch

    worst = results[:, :, LABELS.index(-1)].argmax(1)
    failed = results[torch.arange(len(results)), worst]
    is_failure = failed.argmax(-1) == LABELS.index(-1)
    return torch.where(is_failure[:, None], failed, results.mean(1))


def _vote(chances: Sequence[float], least: float) -> int | None:
    best = max(range(len(chances)), key=lambda at: chances[at])
    return LABELS[best] if chances[best] >= least else None


def calibrate(logits: torch.Tensor, scores: Sequence[int]) -> Calibration:
    """A bias and a temperature that make explicit feedback likelier, held near none at all."""
    import torch

    if not scores:
        return Calibration()
    labels = torch.tensor([LABELS.index(score) for score in scores])
    shown = logits.mean(0).detach()
    free = torch.zeros(4, requires_grad=True)  # three biases and the log of the temperature
    optimiser = torch.optim.LBFGS([free], max_iter=60)

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        scaled = (shown + free[:3]) * torch.exp(-free[3])
        missed = torch.nn.functional.cross_entropy(scaled, labels, reduction="sum")
        total = missed + PULL * free[:3].square().sum() + 2 * PULL * free[3].square()
        torch.autograd.backward(total)
        return total

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    a, b, c, log_temperature = free.tolist()
    temperature = min(4.0, max(0.25, float(torch.tensor(log_temperature).exp())))
    return Calibration(bias=(a, b, c), temperature=temperature, pairs=len(scores))


def load_probe(
    settings: ProbeJudge, *, folder: Callable[[], Path], home: Path | None = None
) -> Probe:
    """The probe of the config: the named head, else the one trained in home, else the shipped."""
    own = None if home is None else home / "judge"
    trained = own if own is not None and (own / "head.json").is_file() else SHIPPED
    head = load_head(settings.head or trained)
    encoder = Encoder(
        settings.model or folder(),
        layers=head.info.layers,
        context=head.info.context,
        threads=settings.threads,
    )
    return Probe(
        encoder=encoder,
        head=head,
        min_confidence=settings.min_confidence,
        calibrations=load_calibrations(own) if own is not None else {},
    )


def save_calibrations(found: Mapping[str, Calibration], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{CALIBRATIONS}.part"
    text = json.dumps({owner: asdict(one) for owner, one in found.items()}, indent=1)
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(folder / CALIBRATIONS)


def set_damaged_aside(folder: Path) -> Path | None:
    """Put a file that cannot be read out of the way of a new one; returns where it is then."""
    file = folder / CALIBRATIONS
    try:
        load_calibrations(folder)
    except ConfigError:
        return file.replace(file.with_name(f"{CALIBRATIONS}.damaged"))
    return None


def load_calibrations(folder: Path) -> dict[str, Calibration]:
    """What people's feedback taught; empty where there is none yet."""
    file = folder / CALIBRATIONS
    if not file.is_file():
        return {}
    try:
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return {owner: _calibration(one) for owner, one in kept.items()}
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error!r}. Write it again: instar judge calibrate"
        ) from error


def _calibration(kept: Mapping[str, Any]) -> Calibration:
    below, neutral, above = map(float, kept["bias"])
    temperature = float(kept["temperature"])
    return Calibration(
        bias=(below, neutral, above), temperature=temperature, pairs=int(kept["pairs"])
    )
