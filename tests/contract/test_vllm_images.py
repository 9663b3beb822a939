"""Images on a real vLLM: what it samples after one is what transformers makes of the same image."""

from __future__ import annotations

import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import recomputed
import torch
from tiny_models import IMAGE, SHOWN, tiny_idefics3
from tokenizers import Tokenizer
from vllm_engine import TOLERANCE, vllm_config

from instar.backends.vllm import VersionedEngine, open_engine
from instar.errors import RequestError
from instar.types import Request, Sampling

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIDE = 28


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_idefics3(tmp_path_factory.mktemp("idefics3"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model: Path) -> AsyncIterator[VersionedEngine]:
    async with open_engine(vllm_config(), model=model, name="test") as opened:
        yield opened


def pixels(seed: int) -> torch.Tensor:
    """Rows, columns, colours; 0 to 255."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (SIDE, SIDE, 3), generator=generator, dtype=torch.uint8)


def png(image_RCK: torch.Tensor) -> bytes:
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in image_RCK)
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def request(model: Path, *seeds: int, places: int | None = None) -> Request:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    text = "Look: " + IMAGE * (len(seeds) if places is None else places) + " What?"
    return Request(
        id=f"seen-{seeds}",
        prompt_ids=tokenizer.encode(text, add_special_tokens=False).ids,
        sampling=Sampling(temperature=1.0, seed=5, max_tokens=16),
        images=tuple(png(pixels(seed)) for seed in seeds),
    )


@pytest.mark.parametrize("seeds", [(1,), (2,), (1, 2)])
async def test_log_probs_are_those_of_the_image(
    model: Path, engine: VersionedEngine, seeds: tuple[int, ...]
) -> None:
    assert engine.info.sees
    found = await recomputed.reply(engine, request(model, *seeds))
    gaps = {}
    for shown in (seeds, (3,) * len(seeds)):
        expected_S = _expected(model, found, shown)
        gaps[shown] = float((expected_S - torch.tensor(found.logprobs)).abs().max())
    assert gaps[seeds] < TOLERANCE
    assert gaps[(3,) * len(seeds)] > 0.1, "another image would have been noticed"


def _expected(model: Path, found: recomputed.Reply, seeds: tuple[int, ...]) -> torch.Tensor:
    """Log-probs of the sampled tokens, had these images been shown."""
    from transformers import Idefics3ForConditionalGeneration

    sees = Idefics3ForConditionalGeneration.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    place, shown = tokenizer.token_to_id(IMAGE), [tokenizer.token_to_id(one) for one in SHOWN]
    prompt = [i for token in found.prompt_ids for i in (shown if token == place else [token])]
    ids_T = torch.tensor([*prompt, *found.sampled_ids])
    images_NKRC = torch.stack([pixels(seed).permute(2, 0, 1) for seed in seeds]) / 127.5 - 1
    with torch.inference_mode():
        logits_TV = sees(ids_T[None], pixel_values=images_NKRC[None]).logits[0]
    logits_SV = logits_TV[len(prompt) - 1 : -1]
    return logits_SV.log_softmax(-1).gather(1, ids_T[len(prompt) :, None])[:, 0]


async def test_text_alone_is_read_as_before(model: Path, engine: VersionedEngine) -> None:
    one = await recomputed.reply(engine, request(model))
    assert len(one.sampled_ids) == 16


async def test_what_does_not_fit_is_refused(model: Path, engine: VersionedEngine) -> None:
    with pytest.raises(RequestError, match="do not fit"):
        await recomputed.reply(engine, request(model, 1, places=0))
    broken = request(model, 1)
    broken = Request(
        id="broken",
        prompt_ids=broken.prompt_ids,
        sampling=broken.sampling,
        images=(b"\x89PNG\r\n\x1a\nnothing",),
    )
    with pytest.raises(RequestError, match="cannot be read"):
        await recomputed.reply(engine, broken)
    await recomputed.reply(engine, request(model, 1))
