"""The nouns of instar: frozen values that every stage reads and none may change.

Nothing here imports another module of the package. Stages meet in these values and in the
store, nowhere else. `None` means unknown; 0 means zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Message = dict[str, Any]
"""One chat message in OpenAI's form: role, content, and tool_calls / tool_call_id where due."""

Tool = dict[str, Any]
"""One tool in OpenAI's form: {"type": "function", "function": {...}}."""

Kind = Literal["main", "side"]
"""`main` turns are trained; `side` turns (titles, summaries, heartbeats) are only recorded."""

Finish = Literal["stop", "length", "tool_calls", "cancelled"]
"""Why a reply ended. `length` is a truncated reply; `cancelled` one whose client hung up."""

FINISHES: tuple[Finish, ...] = get_args(Finish)

BASE_VERSION = "base"
"""The version name of the model as it was before any training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a reply is drawn. Recorded with each turn, since log-probs mean nothing without it."""

    temperature: float = 1.0
    """0 is greedy; the recorded log-probs are then those of the unscaled distribution."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    seed: int | None = None
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    """The reply ends with the token that completes one of these strings."""
    stop_ids: tuple[int, ...] = ()
    """The reply ends with one of these tokens; it is part of the sampled ids."""
    top_logprobs: int = 0
    """How many alternatives a token to report to the client; they are not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an engine is asked for: token ids in, token ids out."""

    id: str
    prompt_ids: Sequence[int]
    sampling: Sampling
    session: str = ""
    """A hint for cache reuse; an engine may ignore it."""
    version: str | None = None
    """None means the version that is live when the request starts."""
    stream: bool = True
    """False: nobody watches the reply grow, so an engine may answer in one piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One step of a reply: some sampled tokens, each with its log-prob."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: str
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per token the `top_logprobs` likeliest (id, log-prob) pairs; empty where none were asked."""
    finish: Finish | None = None
    """Set on the last piece of a reply and on no other."""
    cached: int = 0
    """On the first piece: how many prompt tokens came from a cache."""

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise ValueError(f"{len(self.ids)} ids but {len(self.logprobs)} log-probs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A part of a reply that a client can be shown at once."""

    kind: Literal["content", "reasoning", "tool_call"]
    text: str = ""
    index: int = 0
    """Of a tool call: its place among the reply's calls."""
    call: dict[str, Any] = field(default_factory=dict)
    """A whole tool call in OpenAI's form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What an engine says of itself."""

    model: str
    context: int
    """The longest prompt plus reply, in tokens."""
    live: str = BASE_VERSION
    versions: tuple[str, ...] = (BASE_VERSION,)
    """Versions that can be asked for by name now."""
    device: str = "cpu"
    logprobs_scaled: bool = True
    """False where the engine can only give log-probs at temperature 1 (a foreign vLLM server)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextState:
    """Everything that followed a turn before the model's next call."""

    messages: tuple[Message, ...]
    turn: str | None = None
    """The turn whose prompt showed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a turn fared: +1, 0 or -1. A turn that could not be judged has no Verdict at all."""

    score: Literal[-1, 0, 1]
    votes: tuple[int | None, ...] = ()
    source: str = "judge"
    """`judge`, or `person` for explicit feedback, which wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """One to three sentences that say what the turn should have done."""

    text: str
    source: str = "judge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call, exactly as the engine was asked and as it answered."""

    id: str
    owner: str
    session: str
    parent: str | None
    """The turn that this one continues, or None at the root of a branch."""
    extends: bool
    """Whether prompt_ids starts with the parent's prompt_ids + sampled_ids."""
    kind: Kind
    kind_reason: str = ""
    prompt_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """One a sampled token, of the full distribution at the sampling temperature."""
    settings: Sampling
    version: str
    finish: Finish
    messages: tuple[Message, ...]
    """The messages of the request, without the reply."""
    reply: Message
    """The reply as the client was given it."""
    tools: tuple[Tool, ...] = ()
    replies: tuple[tuple[int, str], ...] = ()
    """(position in messages, turn id) of each earlier reply whose sampled ids the prompt reuses."""
    anchors: tuple[int, ...] = ()
    """Signed 64-bit hashes of the history with this reply; a resent history is found by them."""
    no_train: bool = False
    logprobs_scaled: bool = True
    """False: the log-probs are of temperature 1, whatever the settings say."""
    created: float
    next_state: NextState | None = None
    verdict: Verdict | None = None
    hint: Hint | None = None

    def __post_init__(self) -> None:
        if len(self.sampled_ids) != len(self.logprobs):
            raise ValueError(
                f"turn {self.id}: {len(self.sampled_ids)} sampled ids but "
                f"{len(self.logprobs)} log-probs; a missing log-prob is never filled in"
            )

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.sampled_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One conversation, as listed; its turns form a tree."""

    id: str
    owner: str
    created: float
    updated: float
    turns: int = 0
    side_turns: int = 0
    sampled_tokens: int = 0
    closed: bool = False
    title: str = ""
    """The first words the person said, for people who look at a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One training sequence: ids and streams of the same length."""

    ids: tuple[int, ...]
    trainable: tuple[bool, ...]
    logprobs: tuple[float, ...]
    """As recorded at sampling; 0.0 only where a token is not trainable."""
    advantages: tuple[float, ...]
    distill_weights: tuple[float, ...]
    turns: tuple[str, ...]

    def __post_init__(self) -> None:
        streams = ("trainable", "logprobs", "advantages", "distill_weights")
        for name in streams:
            if (found := len(getattr(self, name))) != len(self.ids):
                raise ValueError(f"stream {name} has {found} entries for {len(self.ids)} ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one optimiser step is made of."""

    samples: tuple[Sample, ...]
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One published set of weights."""

    name: str
    owner: str
    parent: str
    state: Literal["candidate", "live", "retired", "rejected"]
    folder: str
    turns: tuple[str, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
