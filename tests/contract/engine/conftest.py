"""Each engine in turn, and an adapter for its model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import recomputed
import torch
from asking import Subject
from engines import ENGINES, engine_params
from tokenizers import Tokenizer


@pytest_asyncio.fixture(
    scope="package",
    loop_scope="package",
    params=engine_params(ENGINES),
)
async def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Subject]:
    case = ENGINES[request.param]
    folder = case.build(tmp_path_factory.mktemp("model"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    async with case.open(folder) as engine:
        yield Subject(case=case, engine=engine, folder=folder, tokenizer=tokenizer)


@pytest.fixture(scope="package")
def adapter(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LoRA adapter, saved by PEFT."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(11)
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=list(subject.case.targets),
        init_lora_weights=False,
        fan_in_fan_out="c_attn" in subject.case.targets,
        task_type="CAUSAL_LM",
    )
    folder = tmp_path_factory.mktemp("adapter")
    get_peft_model(recomputed.load_model(subject.folder), config).save_pretrained(folder)
    return folder
