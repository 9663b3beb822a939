"""The embedded judge: a small head on the frozen model. No API, no GPU, about 0.1 s a turn.

Several networks vote; one that is not sure enough gives no vote. Where a person has given
explicit feedback, the votes on their turns are shifted towards how they use words
(`calibrate`), by little from few pairs and by more from many.
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

if TYPE_CHECKING:
    import torch

CALIBRATIONS = "calibration.json"
PULL = 2.0
"""How many pairs' worth of evidence holds a calibration at its start."""


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
        if count == 1:
            chances = chances.mean(0, keepdim=True)
        return [_vote(one, self._min) for one in chances[:count].tolist()]

    def logits(self, cases: Sequence[Case]) -> torch.Tensor:
        """(networks, cases, 3), before any person's calibration."""
        import torch

        words = torch.tensor([features(case) for case in cases])
        return self._head.logits(self._encoder.encode(cases), words)

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


def load_calibrations(folder: Path) -> dict[str, Calibration]:
    """What people's feedback taught; empty where there is none yet."""
    file = folder / CALIBRATIONS
    if not file.is_file():
        return {}
    try:
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return {
            owner: Calibration(**{**one, "bias": tuple(one["bias"])}) for owner, one in kept.items()
        }
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error!r}. Write it again: instar judge calibrate"
        ) from error
