"""How the model learns: one part of the config tree."""

from __future__ import annotations

import re
from typing import Literal, get_args

from pydantic import Field, field_validator, model_validator

from instar.config_section import Section

RedactKind = Literal["api_key", "private_key", "jwt", "email", "phone", "card", "iban"]


class TrainingConfig(Section):
    """How the model learns. Defaults are the recipe that learned without forgetting."""

    enabled: bool = True
    """Learn in the background while `instar up` runs."""
    method: Literal["binary", "opd", "combine"] = "combine"
    """`binary` learns from verdicts, `opd` from hints, `combine` from both."""
    batch_size: int = Field(default=16, ge=1)
    """Turns an update."""
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    """Parts a batch is read in; more need less memory and more time."""
    learning_rate: float = Field(default=5e-4, gt=0)
    """Step size of the optimiser. Full fine-tuning wants about a hundredth of LoRA's."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimiser steps (see `steps_per_batch`) over which the learning rate rises from zero."""
    max_steps: int | None = Field(default=None, ge=1)
    """Updates of an owner after which training ends; by default it never does."""
    max_wait_s: float = Field(default=600, ge=0)
    """Train with fewer than `batch_size` turns once one to learn from has been ready this long."""
    ppo_clip_ratio: float = Field(default=0.2, gt=0)
    """How far the probability ratio may fall below 1 before the gradient stops."""
    ppo_clip_ratio_high: float = Field(default=0.28, gt=0)
    """How far the probability ratio may rise above 1 before the gradient stops."""
    value_head: bool = False
    """Learn an estimate of how a session will go; `advantage: gae` counts from it."""
    value_weight: float = Field(default=0.5, ge=0)
    """Weight of the estimate's error beside the other terms."""
    value_clip: bool = False
    """Clip the change of value estimates too."""
    value_clip_ratio: float = Field(default=0.2, gt=0)
    """How far a value estimate may move, where `value_clip` is on."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """Lambda of generalised advantage estimation along a session."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount from one turn of a session to the next."""
    advantage: Literal["verdict", "centred", "gae"] = "centred"
    """A verdict is worth itself, itself less the mean of those that wait, or GAE in its session."""
    standing_hints: bool = True
    """Let the teacher of a praised reply read what the person asks for most often."""
    teacher_temperature: float = Field(default=0.75, gt=0)
    """Temperature of the hinted teacher: under 1 it is surer of what it would say."""
    divergence: Literal["reverse", "forward", "both"] = "forward"
    """What draws a reply to its teacher: give up what it would not say, take up what it might."""
    opd: Literal["full", "sampled"] = "full"
    """Draw to the teacher's whole distribution, or reward only the token that was said."""
    opd_top_k: int = Field(default=0, ge=0)
    """In `full`: the policy's likeliest tokens that are compared, the rest as one; 0 is all."""
    opd_clip: float = Field(default=10.0, gt=0)
    """Most that one token may be drawn to its teacher, in nats."""
    loop_tokens: int = Field(default=6, ge=0)
    """So many that were said before make a circle, in which no teacher is heard; 0 is off."""
    group_scale: Literal["none", "std"] = "none"
    """Whether rewards of a group of attempts are divided by their standard deviation."""
    truncated: Literal["no_praise", "drop", "keep"] = "no_praise"
    """What a reply that its length limit cut off may earn: nothing good, nothing, or anything."""
    dissent: float = Field(default=0.0, ge=0, le=1)
    """Weight of the teacher on tokens where it wants the opposite of the verdict, in `combine`."""
    blame: float = Field(default=0.0, ge=0, le=1)
    """Weight of a correction on tokens that the teacher would rather say too, in `combine`."""
    hint_extraction_model: str | None = None
    """The model that an `llm` judge asks for hints; by default `evaluation.judge_model`."""
    binary_weight: float = Field(default=1.5, ge=0)
    """Weight of the verdict's term in `combine`."""
    opd_weight: float = Field(default=1.0, ge=0)
    """Weight of the hint's term in `combine`."""
    step_weight: float = Field(default=0.0, ge=0)
    """Weight of the judge's verdict on a step beside the reward of the attempt it is part of."""
    use_lora: bool = True
    """Train an adapter; otherwise all linear layers, published as an adapter of full rank."""
    lora_rank: int = Field(default=16, ge=1)
    """Rank of the adapter; a version of a smaller rank goes on in it."""
    lora_alpha: float = Field(default=32, gt=0)
    """Scale of the adapter; it is applied as alpha / rank."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout in the adapter. Above 0 the trained log-probs differ from the served ones."""
    lora_target_modules: list[str] = Field(default_factory=lambda: ["all-linear"], min_length=1)
    """The layers that get an adapter, or `all-linear`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision in which the model is read: by default bfloat16 on a GPU, float32 on a CPU."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    clip_grad_norm: float = Field(default=1.0, gt=0)
    """Longest gradient; a longer one is scaled down to it."""
    weight_decay: float = Field(default=0.0, ge=0)
    """How strongly weights are drawn to zero."""
    anchors: int = Field(default=8, ge=0)
    """Answers of the retention set, none that the gate looks at, that each step is held to."""
    anchor_weight: float = Field(default=1.0, ge=0)
    """Weight of the KL from the base on those of them that have become less likely; 0 is off."""
    importance_cap: float = Field(default=2.0, gt=0)
    """Largest weight of a token that the newest version finds likelier than the one it is from."""
    loss_mean: Literal["turn", "token"] = "turn"
    """Whether each turn counts the same, or each token."""
    holdout_share: float = Field(default=0.15, ge=0, lt=1)
    """Share of corrected and praised turns never trained on: the gate measures versions there."""
    steps_per_batch: int = Field(default=3, ge=1)
    """Most optimiser steps on a batch; less where under a quarter of it was corrected."""
    teacher_share: float = Field(default=0.5, ge=0, le=1)
    """How much of the teacher is the model as trained so far, hinted like the frozen base."""
    examples: int = Field(default=2, ge=0)
    """Replies to other requests, praised or such as obey, that the teacher is shown first."""
    max_staleness: int = Field(default=4, ge=0)
    """Turns sampled by a version more than this many before the live one are left out."""
    max_tokens: int = Field(default=8192, ge=64)
    """Tokens in one forward pass: a longer session is cut between turns, a longer turn left out."""
    gate_turns: int = Field(default=32, ge=1)
    """Held-out corrections that the gate looks at, the newest ones."""
    gate_references: int = Field(default=16, ge=0)
    """Reference answers of the retention set that the gate looks at."""
    gate_tolerance: float = Field(default=0.03, ge=0)
    """How much worse than the live one, as a share, a version may do on held-out turns."""
    min_retention: float = Field(default=0.95, ge=0, le=1)
    """The least likelihood of the retention set's answers, a token, as a share of the base's."""
    keep_versions: int = Field(default=8, ge=1)
    """Versions kept on disk: so many ancestors of the live one, and so many of the latest."""
    redact: list[RedactKind] = Field(default_factory=lambda: list(get_args(RedactKind)))
    """What is never trained: tokens of a reply that spell one of these are left out of the loss."""
    redact_patterns: dict[str, str] = Field(default_factory=dict)
    """More to leave out: a name and a regular expression each."""

    @field_validator("redact_patterns")
    @classmethod
    def _patterns_compile(cls, patterns: dict[str, str]) -> dict[str, str]:
        for name, pattern in patterns.items():
            try:
                found = re.compile(pattern).match("")
            except re.error as error:
                raise ValueError(f"{name} is {pattern!r}, no regular expression: {error}") from None
            if found:
                raise ValueError(f"{name} is {pattern!r}, which also matches the empty text")
        return patterns

    @model_validator(mode="after")
    def _something_to_learn_from(self) -> TrainingConfig:
        if self.method == "combine" and self.binary_weight == self.opd_weight == 0:
            raise ValueError(
                "method combine with binary_weight 0 and opd_weight 0 learns nothing; "
                "raise one of the weights"
            )
        return self
