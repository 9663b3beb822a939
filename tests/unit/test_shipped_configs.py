"""Every file in configs/ loads; the two of OpenClaw-RL's guide hold what it has, key for key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from instar.config_load import load_config

CONFIGS = Path(__file__).parents[2] / "configs"
TRAINING = {
    "model.name": "qwen3.5-4b",
    "model.checkpoint_path": Path("/path/to/checkpoint"),
    "model.tokenizer_path": Path("/path/to/tokenizer"),
    "training.method": "combine",
    "training.batch_size": 32,
    "training.gradient_accumulation_steps": 4,
    "training.learning_rate": 1e-6,
    "training.warmup_steps": 100,
    "training.max_steps": 10000,
    "training.ppo_clip_ratio": 0.2,
    "training.value_clip_ratio": 0.2,
    "training.gae_lambda": 0.95,
    "training.teacher_temperature": 1.0,
    "training.hint_extraction_model": "gpt-4",
    "training.binary_weight": 0.5,
    "training.opd_weight": 0.5,
    "rollout.num_workers": 4,
    "rollout.max_turns": 10,
    "rollout.session_aware": True,
    "rollout.parallel_envs": 16,
    "evaluation.judge_model": "gpt-4",
    "evaluation.majority_voting": True,
    "evaluation.num_judges": 3,
    "evaluation.eval_frequency": 100,
}
ROLLOUT = {
    "rollout_config.collection_mode": "async",
    "rollout_config.max_concurrent_sessions": 100,
    "rollout_config.session_timeout": 3600,
    "rollout_config.trajectory_format": "multi_turn",
    "rollout_config.message_classification.main_line": ["user", "assistant"],
    "rollout_config.message_classification.side": ["system", "tool"],
    "rollout_config.reward_computation.type": "next_state_feedback",
    "rollout_config.reward_computation.aggregation": "majority",
    "rollout_config.reward_computation.num_samples": 3,
}


@pytest.mark.parametrize("file", sorted(CONFIGS.iterdir()), ids=lambda file: file.name)
def test_every_shipped_file_loads(file: Path) -> None:
    resolved = load_config(file)
    assert any(source.startswith(str(file)) for source in resolved.sources.values())


@pytest.mark.parametrize(
    ("name", "expected"),
    [("training_config.yaml", TRAINING), ("rollout_config.json", ROLLOUT)],
)
def test_files_of_the_guide_key_for_key(name: str, expected: dict[str, object]) -> None:
    file = CONFIGS / name
    found = {path: value for path, value, source in load_config(file).rows() if source != "default"}
    assert found == expected


def test_files_of_the_guide_are_not_padded() -> None:
    """The files hold the keys above and no others, by a reader that knows nothing of us."""
    training = yaml.safe_load((CONFIGS / "training_config.yaml").read_text())
    assert {f"{a}.{b}" for a, keys in training.items() for b in keys} == set(TRAINING)
    rollout = json.loads((CONFIGS / "rollout_config.json").read_text())["rollout_config"]
    flat = {f"rollout_config.{a}" for a, value in rollout.items() if not isinstance(value, dict)}
    for a, inner in rollout.items():
        flat |= {f"rollout_config.{a}.{b}" for b in inner} if isinstance(inner, dict) else set()
    assert flat == set(ROLLOUT)
