"""The nouns of instar: frozen values that every stage reads and none may change.

Nothing here imports another module of the package. Stages meet in these values and in the
store, nowhere else. `None` means unknown; 0 means zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Message = dict[str, Any]
"""One chat message in OpenAI's form: role, content, and tool_calls / tool_call_id where due."""

Tool = dict[str, Any]
"""One tool in OpenAI's form: {"type": "function", "function": {...}}."""

Kind = Literal["main", "side"]
"""`main` turns are trained; `side` turns (titles, summaries, heartbeats) are only recorded."""

Finish = Literal["stop", "length", "tool_calls", "cancelled"]
"""Why a reply ended. `length` is a truncated reply; `cancelled` one whose client hung up."""

VersionState = Literal["candidate", "live", "retired", "rejected"]

AttemptStatus = Literal["completed", "truncated", "model_error", "environment_error"]
"""How an attempt ended. After `environment_error` nothing is known of the model: no reward."""

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
    images: tuple[bytes, ...] = ()
    """PNG, JPEG, GIF or WebP files, one for each place that the prompt has for an image.

    The prompt has one token a place; how many an image takes is the engine's business.
    """
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
    ready: bool = True
    """False while the engine is being started again after it died."""
    logprobs_scaled: bool = True
    """False where the engine can only give log-probs at temperature 1 (a foreign vLLM server)."""
    sees: bool = False
    """Whether a request may carry images."""


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
    ways: tuple[str, ...] = ()
    """How a teacher may be told, where there are several ways; one, once the trainer has chosen."""

    @property
    def told(self) -> str:
        return self.ways[0] if self.ways else self.text


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
    group: str | None = None
    """Set where the turn is part of an attempt at a task: attempts of one group are compared."""
    run: str | None = None
    """What its client calls the run that made this call; the calls of one tool loop share it."""
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

    @property
    def has_images(self) -> bool:
        """Whether the model was shown more than the prompt's tokens."""
        contents = (message.get("content") for message in self.messages)
        parts = (part for content in contents if isinstance(content, list) for part in content)
        return any(part.get("type") == "image_url" for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at a task of an environment, played as one session, once it is over."""

    owner: str
    session: str
    environment: str
    run: str
    """Attempts that were played together; a run that was stopped goes on under its name."""
    task: str
    group: str
    number: int
    """Its place in the group, from 0; a group has one attempt of each number and no more."""
    size: int
    """How many attempts the group has when it is complete."""
    status: AttemptStatus
    reward: float | None
    """0 to 1; None, and only then, after `environment_error`."""
    turns: tuple[str, ...] = ()
    """The replies that were acted on, in order; one that never arrived is not among them."""
    details: dict[str, Any] = field(default_factory=dict)
    """What the reward is made of, and what the attempt cost."""
    created: float = 0.0
    used: str | None = None
    """What became of it: a version's name, or why it trains none; None while it waits."""

    def __post_init__(self) -> None:
        if (self.reward is None) != (self.status == "environment_error"):
            raise ValueError(
                f"attempt {self.session} is {self.status} with the reward {self.reward}; "
                "there is none after environment_error, and one after all else"
            )
        if self.reward is not None and not 0 <= self.reward <= 1:
            raise ValueError(f"attempt {self.session} has the reward {self.reward}; not 0 to 1")
        if not 0 <= self.number < self.size:
            raise ValueError(
                f"attempt {self.session} is number {self.number} of {self.size}; numbers start at 0"
            )


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


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens without a branch in it."""

    start: int
    length: int
    parent: int
    """Index of the segment whose last token comes before this one's first; -1 at a root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Token sequences that share beginnings, each token once; several roots make a forest.

    Example: 1 2 3 and 1 2 4 are ids 1 2 3 4, positions 0 1 2 2, segments (0, 2, -1), (2, 1, 0)
    and (3, 1, 0).
    """

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    """Depth of each token along its own path."""
    segments: tuple[Segment, ...]
    """In depth-first order, one after the other over all of `ids`."""

    def __post_init__(self) -> None:
        if len(self.positions) != len(self.ids):
            raise ValueError(f"{len(self.ids)} ids but {len(self.positions)} positions")
        end = 0
        for at, (start, length, parent) in enumerate(_plain(self.segments)):
            if start != end or length < 1 or not -1 <= parent < at:
                raise ValueError(
                    f"segment {at} is {(start, length, parent)}; expected start {end}, at least "
                    "one token and an earlier parent"
                )
            end = start + length
            before = self.segments[parent] if parent >= 0 else None
            depth = 0 if before is None else self.positions[before.start + before.length - 1] + 1
            if self.positions[start:end] != tuple(range(depth, depth + length)):
                raise ValueError(f"segment {at} has positions that do not count on from {depth}")
        if end != len(self.ids):
            raise ValueError(f"the segments cover {end} of {len(self.ids)} ids")

    @classmethod
    def joined(cls, trees: Sequence[Tree]) -> Tree:
        """Trees side by side as one forest."""
        segments: list[Segment] = []
        tokens = 0
        for tree in trees:
            first = len(segments)
            segments += [
                Segment(start + tokens, length, parent + first if parent >= 0 else -1)
                for start, length, parent in _plain(tree.segments)
            ]
            tokens += len(tree.ids)
        return cls(
            ids=tuple(value for tree in trees for value in tree.ids),
            positions=tuple(value for tree in trees for value in tree.positions),
            segments=tuple(segments),
        )

    def previous(self) -> tuple[int, ...]:
        """Index of the token before each one along its path; -1 at a root."""
        out = list(range(-1, len(self.ids) - 1))
        for start, _, parent in _plain(self.segments):
            before = self.segments[parent] if parent >= 0 else None
            out[start] = -1 if before is None else before.start + before.length - 1
        return tuple(out)


def _plain(segments: Sequence[Segment]) -> list[tuple[int, int, int]]:
    return [(one.start, one.length, one.parent) for one in segments]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One training sequence: a tree of tokens, and streams over its trained tokens.

    The streams have one entry a token and turn that sampled it: a token that two turns
    sampled alike (a retry that began with the same words) has two, so that their credits add.
    """

    tree: Tree
    turns: tuple[str, ...]
    """Ids of the turns that are trained."""
    at: tuple[int, ...]
    """Where in the tree each trained token is."""
    turn_index: tuple[int, ...]
    """Which of `turns` sampled it."""
    logprobs: tuple[float, ...]
    """As recorded at sampling."""
    advantages: tuple[float, ...]
    distill_weights: tuple[float, ...]
    temperatures: tuple[float, ...]
    """At which the recorded log-probs are."""
    hinted: Tree | None = None
    """What the teacher reads: the hinted prompts with the same sampled tokens."""
    hinted_at: tuple[int, ...] = ()
    """Where in `hinted` each trained token is; -1 where it has no teacher. Empty: none has one."""
    values: tuple[float | None, ...] = ()
    """Value estimates of the turns when credit was given; empty without a value head."""
    returns: tuple[float | None, ...] = ()
    """What the value estimates should have been; None where that is unknown."""

    def __post_init__(self) -> None:
        streams = ("turn_index", "logprobs", "advantages", "distill_weights", "temperatures")
        for name in (*streams, *(("hinted_at",) if self.hinted_at else ())):
            if (found := len(getattr(self, name))) != len(self.at):
                raise ValueError(
                    f"stream {name} has {found} entries for {len(self.at)} trained tokens"
                )
        for name in ("values", "returns"):
            if (found := len(getattr(self, name))) not in (0, len(self.turns)):
                raise ValueError(f"{name} has {found} entries for {len(self.turns)} turns")
        if len(self.values) != len(self.returns):
            raise ValueError(f"{len(self.values)} values but {len(self.returns)} returns")
        self._check_tokens()

    def _check_tokens(self) -> None:
        for entry, at in enumerate(self.at):
            if not 0 <= at < len(self.tree.ids) or self.tree.positions[at] == 0:
                raise ValueError(f"trained token {entry} is at {at}, where nothing comes before it")
            if not -1e6 < self.logprobs[entry] <= 1e-3:
                raise ValueError(
                    f"trained token {entry} has the log-prob {self.logprobs[entry]}; expected the "
                    "one it was sampled with, which is never missing and never above 0"
                )
            if self.distill_weights[entry] and (
                not self.hinted_at or self.hinted is None or self.hinted_at[entry] < 1
            ):
                raise ValueError(f"trained token {entry} has a distillation weight but no teacher")

    @property
    def trainable(self) -> tuple[bool, ...]:
        """Whether each token of the tree is trained."""
        trained = set(self.at)
        return tuple(at in trained for at in range(len(self.tree.ids)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one optimiser step is made of."""

    samples: tuple[Sample, ...]
    """Each is one forward pass."""
    version: str
    """The version that is trained further."""
    rewards: tuple[float, ...] = ()
    """Verdicts of its turns, for the metrics."""
    counts: dict[str, int] = field(default_factory=dict)
    """Turns left out, by reason, and what else was counted on the way."""

    @property
    def turns(self) -> tuple[str, ...]:
        return tuple(turn for sample in self.samples for turn in sample.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One published set of weights."""

    name: str
    """`v1`, `v2`, ...: each owner counts their own, and no number comes twice."""
    owner: str
    parent: str
    """The version it was trained from: one of the same owner, or `base`."""
    state: VersionState
    folder: str
    """Where its files are, below the folder of all versions."""
    turns: tuple[str, ...] = ()
    """The turns that trained it directly; its ancestors have theirs."""
    metrics: dict[str, float] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    """The settings it was trained with."""
    gate: dict[str, Any] | None = None
    """The gate's report, once there is one."""
    created: float = 0.0
    tainted: bool = False
    """A session that trained it, or one of its ancestors, was forgotten: it never goes live."""
    kept: bool = False
    """A person named it, so it is never pruned."""
    pruned: bool = False
    """Its files are gone; its lineage is not."""
