"""docs/coming_from_openclaw_rl.md names only commands and settings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import typer.main

from instar.cli import app
from instar.config import SECRETS
from instar.config_load import keys

TEXT = (Path(__file__).parents[2] / "docs" / "coming_from_openclaw_rl.md").read_text("utf-8")
HERE = [line.split(" | ", 1)[1] for line in TEXT.splitlines() if re.match(r"\| .* \| ", line)]

WORDS = """
run_binary_rl.sh run_opd_training.sh run_combine_training.sh serve_model.py
collect_rollouts.py train_async.py test_rollout inspect_sessions deploy_to_tinker.sh
deploy_to_fireworks.sh OPENCLAW_API_KEY WANDB_API_KEY HF_TOKEN MASTER_ADDR NNODES
NODE_RANK GPUS_PER_NODE USE_LORA LORA_RANK LORA_ALPHA LORA_DROPOUT BATCH_SIZE
GRAD_ACCUM_STEPS USE_GRADIENT_CHECKPOINTING LEARNING_RATE CLIP_GRAD_NORM PPO_CLIP_RATIO
VALUE_CLIP OPENCLAW_DEBUG ROLLOUT_LOG_LEVEL TASK_TYPE MAX_STEPS TOOLS_CONFIG
TINKER_PROJECT_ID compute_opd_loss collect_opd_trajectory compute_hybrid_loss
compute_gae SessionAwareProcessor compute_reward batch_compute_rewards setup_lora_model
rl-training-headers rollout_endpoint setup_wandb_logging run_terminal_agent.sh
run_gui_agent.sh run_swe_agent.sh run_toolcall_agent.sh --custom-rm-path --rm-checkpoint
--reward-aggregation --lr-warmup-samples --num-epochs --parallel-envs --async-collection
trainable_agents.py Status InteractionResult call_to_action_sglang TOOL_INSTRUCTION
TrainableAgentMixin _reformulate_tool_call _call_llm _parse_tool _execute_tool
_initialize_environment _build_initial_messages _prepare_prompt_tokens asolve _get_token_delta
_build_final_result TrainableToolCallingAgent agent_factory create_openai_adapter GenerateState
"""


def test_every_command_it_names_exists() -> None:
    named = set(re.findall(r"`instar ([a-z]+)(?: ([a-z][a-z-]*))?", "\n".join(HERE)))
    root = typer.main.get_command(app)
    assert len(named) > 8
    for group, inner in named:
        command = root.commands[group]  # type: ignore[attr-defined]
        if inner and hasattr(command, "commands"):
            assert inner in command.commands, f"instar {group} {inner}"


def test_every_setting_it_names_exists() -> None:
    known = {key.path for key in keys()} | set(SECRETS)
    sections = r"(?:model|engine|training|rollout|evaluation|rollout_config)"
    named = set(re.findall(rf"[`\s](?:--set )?({sections}\.[a-z_.]+[a-z])[`=]", "\n".join(HERE)))
    assert len(named) > 25
    assert named - known == set()
    assert {"INSTAR_API_KEY", "HF_TOKEN"} <= set(SECRETS)


def test_every_word_of_the_guide_has_a_row() -> None:
    """Its commands, variables, settings and functions, as a person would search for them."""
    for word in WORDS.split():
        assert word in TEXT, word
