"""Training speed: a session as one tree against turn by turn, and a step against TRL's.

    python benchmarks/train.py                                     CPU, embedded model, ~3 minutes
    python benchmarks/train.py --taught                            and what a teacher costs there
    python benchmarks/train.py --device cuda --shape qwen3-4b      random weights of that size
    python benchmarks/train.py --device cuda --shape qwen3-4b --trl

A session has ten turns. Each adds `--turn` tokens, a fifth of them the person's. In a chain
each prompt extends the one before; in a comb each prompt ends with a message of the client's
own that later prompts do not have. `per turn` trains each turn as a sequence of its own, with
the same code; `plain` does so as one writes it with transformers and PEFT alone.

With --taught, a step on sixteen replies with a hinted teacher: its forward KL from the head's mean
weights (`train/linear.py`) against the same from all logits. On a CPU, where it is done so.

With --trl, the same model, sequences and adapter go through TRL's GRPOTrainer (its loss,
backward pass and optimiser step; nothing is generated). Tokens a second count every sequence
in full, for both: `group` is one prompt with eight replies, `apart` eight prompts with one each.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from instar.batch.credit import Credit, Judged
from instar.batch.merge import merge
from instar.batch.pack import pack
from instar.config import TrainingConfig
from instar.learn.memory import CPU_PASS_TOKENS
from instar.train.model import View
from instar.train.step import TorchTrainer
from instar.types import Batch, Sampling, Turn

Turns = list[tuple[Judged, Credit]]
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-4b": {
        "vocab_size": 151936,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": True,
    },
}
TURNS = 10
GROUP = 8


# --- the sessions


def turn(name: str, prompt: Sequence[int], sampled: Sequence[int]) -> tuple[Judged, Credit]:
    one = Turn(
        id=name,
        owner="bench",
        session="bench",
        parent=None,
        extends=False,
        kind="main",
        prompt_ids=tuple(prompt),
        sampled_ids=tuple(sampled),
        logprobs=(-5.0,) * len(sampled),
        settings=Sampling(),
        version="base",
        finish="stop",
        messages=(),
        reply={},
        created=0.0,
    )
    size = len(sampled)
    return Judged(turn=one), Credit(advantages=(1.0,) * size, distill_weights=(0.0,) * size)


def tokens(draw: random.Random, count: int, vocab: int) -> list[int]:
    return [draw.randrange(10, vocab) for _ in range(count)]


def session(form: str, *, prompt: int, each: int, vocab: int) -> Turns:
    """Ten turns as a chain or as a comb."""
    draw = random.Random(0)
    trunk = tokens(draw, prompt, vocab)
    asked = each // 5
    out = []
    for number in range(TURNS):
        trunk += tokens(draw, asked, vocab)
        vanishing = tokens(draw, max(4, each // 8), vocab) if form == "comb" else []
        reply = tokens(draw, each - asked, vocab)
        out.append(turn(f"{form}{number}", trunk + vanishing, reply))
        trunk += reply
    return out


def replies(form: str, *, prompt: int, reply: int, vocab: int) -> Turns:
    """Eight replies of half to all of a length: to one prompt, or each to one of its own."""
    draw = random.Random(1)
    shared = tokens(draw, prompt, vocab)
    out = []
    for number in range(GROUP):
        size = reply // 2 + reply * number // (2 * (GROUP - 1))
        start = shared if form == "group" else tokens(draw, prompt, vocab)
        out.append(turn(f"{form}{number}", start, tokens(draw, size, vocab)))
    return out


def merged(turns: Turns, budget: int) -> Batch:
    return Batch(samples=pack(merge(turns).samples, max_tokens=budget), version="base")


def apart(turns: Turns) -> Batch:
    samples = [sample for one in turns for sample in merge([one]).samples]
    return Batch(samples=tuple(samples), version="base")


# --- the models


def model_folder(shape: str, given: Path | None, home: Path, device: str) -> Path:
    if given is not None:
        return given
    if shape == "embedded":
        from instar.backends.embedded import embedded_model

        return embedded_model(Path.home() / ".instar")
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**SHAPES[shape], dtype="bfloat16" if device == "cuda" else "float32")
    with torch.device(device):
        model = Qwen3ForCausalLM._from_config(config)
    model.save_pretrained(home / shape)
    del model
    tokenizer(config.vocab_size).save_pretrained(home / shape)
    return home / shape


def tokenizer(vocab: int) -> Any:
    """One word a token: TRL wants a tokenizer, but nothing is ever tokenised."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({f"t{at}": at for at in range(vocab)}, unk_token="t0"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="t1", eos_token="t2")


def trainer_for(folder: Path, args: argparse.Namespace) -> TorchTrainer:
    training = TrainingConfig(
        lora_target_modules=["all-linear"], gradient_checkpointing=args.checkpointing
    )
    return TorchTrainer(folder, training, device=args.device)


# --- the measurements


def seconds(work: Callable[[], object], *, rounds: int, device: str) -> float:
    """The quickest of some rounds."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return min(found)


def measure_sessions(
    folder: Path, args: argparse.Namespace, plain: dict[str, float]
) -> list[dict[str, Any]]:
    trainer = trainer_for(folder, args)
    vocab = trainer.model.vocab
    trainer.step(merged(session("comb", prompt=64, each=20, vocab=vocab), 10_000))
    rows = []
    for form in ("chain", "comb"):
        turns = session(form, prompt=args.prompt, each=args.turn, vocab=vocab)
        whole, each = merged(turns, 1 << 30), apart(turns)
        if args.device == "cuda":  # the first time around, kernels are chosen
            trainer.step(whole)
            trainer.step(each)
        one = seconds(partial(trainer.step, whole), rounds=args.rounds, device=args.device)
        many = seconds(partial(trainer.step, each), rounds=args.rounds, device=args.device)
        rows.append(
            {
                "form": form,
                "merged_tokens": count(whole),
                "per_turn_tokens": count(each),
                "merged_s": one,
                "per_turn_s": many,
                "times": many / one,
                **({"plain_s": plain[form], "times_plain": plain[form] / one} if plain else {}),
            }
        )
    if args.device == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", file=sys.stderr)
    return rows


def measure_taught(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All of a batch's three steps, with its teacher's one reading."""
    trainer = trainer_for(folder, args)
    draw, vocab = random.Random(2), trainer.model.vocab
    turns = []
    for number in range(16):
        judged, credit = turn(f"t{number}", tokens(draw, 40, vocab), tokens(draw, 128, vocab))
        judged = replace(judged, hinted_ids=tuple(tokens(draw, 70, vocab)))
        turns.append((judged, replace(credit, distill_weights=(1.0,) * 128)))
    batch = merged(turns, CPU_PASS_TOKENS)

    def took() -> float:
        return seconds(lambda: trainer.steps_on(batch, 3), rounds=args.rounds, device=args.device)

    short = took()
    with patch.object(View, "product", None):
        long = took()
    row = {"form": "16 replies, 3 steps", "from_means_s": short, "from_all_logits_s": long}
    return [{**row, "times": long / short}]


def plain_seconds(folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Each turn by itself with transformers' and PEFT's own layers; before ours are loaded."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(args.device)
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, lora)
    if args.checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
    found = {}
    for form in ("chain", "comb"):
        turns = session(form, prompt=args.prompt, each=args.turn, vocab=base.config.vocab_size)

        def step(turns: Turns = turns) -> None:
            for one, _ in turns:
                plain_backward(model, one.turn, args.device)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        if args.device == "cuda":
            step()
        found[form] = seconds(step, rounds=args.rounds, device=args.device)
    return found


def plain_backward(model: Any, turn: Turn, device: str) -> None:
    first = len(turn.prompt_ids)
    ids = torch.tensor([[*turn.prompt_ids, *turn.sampled_ids]], device=device)
    logits = model(input_ids=ids).logits[0, first - 1 : -1].float()
    logprobs = logits.log_softmax(-1).gather(1, ids[0, first:, None])[:, 0]
    recorded = torch.tensor(turn.logprobs, device=device)
    ratio = (logprobs - recorded).exp()
    loss = -torch.minimum(ratio, ratio.clamp(0.8, 1.28)).mean() / TURNS
    loss.backward()  # type: ignore[no-untyped-call]


def count(batch: Batch) -> int:
    return sum(len(sample.tree.ids) for sample in batch.samples)


def trl_seconds(folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Before anything of ours is loaded: its fused kernels would be TRL's as well."""
    try:
        from trl import GRPOConfig, GRPOTrainer
    except ImportError as error:
        print(f"TRL is not installed here ({error}); its part is left out.", file=sys.stderr)
        return {}
    trainer = trl_trainer(GRPOConfig, GRPOTrainer, folder, args)
    found = {}
    for form, turns in eight(args, trainer.model.config.vocab_size).items():
        inputs = trl_inputs(turns, trainer.accelerator.device)
        trl_step(trainer, inputs, args.trl_micro)
        found[form] = seconds(
            partial(trl_step, trainer, inputs, args.trl_micro),
            rounds=args.rounds,
            device=args.device,
        )
    return found


def against_trl(
    theirs: dict[str, float], folder: Path, args: argparse.Namespace
) -> list[dict[str, Any]]:
    trainer = trainer_for(folder, args)
    rows = []
    for form, turns in eight(args, trainer.model.vocab).items():
        batch = merged(turns, args.budget)
        trainer.step(batch)
        took = seconds(partial(trainer.step, batch), rounds=args.rounds, device=args.device)
        size = sum(len(one.turn.ids) for one, _ in turns)
        rows.append(
            {
                "form": form,
                "tokens": size,
                "instar_tokens_s": size / took,
                "trl_tokens_s": size / theirs[form],
                "times": theirs[form] / took,
            }
        )
    return rows


def eight(args: argparse.Namespace, vocab: int) -> dict[str, Turns]:
    return {
        form: replies(form, prompt=args.trl_prompt, reply=args.trl_reply, vocab=vocab)
        for form in ("group", "apart")
    }


def trl_trainer(config: Any, trainer: Any, folder: Path, args: argparse.Namespace) -> Any:
    from datasets import Dataset
    from peft import LoraConfig

    class Unread(Dataset):  # type: ignore[misc]
        """GRPOTrainer wants a Dataset; this one is never read."""

        cache_files = ()

        def __init__(self) -> None:
            pass

        def __len__(self) -> int:
            return GROUP

    on_gpu = args.device == "cuda"
    made = trainer(
        model=str(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=GROUP,
            num_generations=GROUP,
            loss_type="grpo",
            bf16=on_gpu,
            use_cpu=not on_gpu,
            gradient_checkpointing=args.checkpointing,
            use_liger_kernel=args.trl_liger,
            model_init_kwargs={"dtype": "bfloat16" if on_gpu else "float32"},
            max_steps=1,
            report_to=[],
        ),
        train_dataset=Unread(),
        processing_class=tokenizer(512),
        peft_config=LoraConfig(
            r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )
    # What is trained is given, not drawn.
    made._prepare_inputs = lambda inputs: inputs
    made.current_gradient_accumulation_steps = GROUP // args.trl_micro
    made.model.train()
    if args.checkpointing:  # which otherwise happens in train()
        made.model.gradient_checkpointing_enable({"use_reentrant": False})
    made.create_optimizer()
    return made


def trl_inputs(turns: Turns, device: torch.device) -> dict[str, torch.Tensor]:
    """Left-padded prompts and right-padded replies, as TRL makes them."""
    prompts = [one.turn.prompt_ids for one, _ in turns]
    sampled = [one.turn.sampled_ids for one, _ in turns]
    wide, long = max(map(len, prompts)), max(map(len, sampled))
    return {
        "prompt_ids": torch.tensor([(1,) * (wide - len(p)) + p for p in prompts], device=device),
        "prompt_mask": torch.tensor(
            [(0,) * (wide - len(p)) + (1,) * len(p) for p in prompts], device=device
        ),
        "completion_ids": torch.tensor(
            [s + (1,) * (long - len(s)) for s in sampled], device=device
        ),
        "completion_mask": torch.tensor(
            [(1,) * len(s) + (0,) * (long - len(s)) for s in sampled], device=device
        ),
        "advantages": torch.ones(len(turns), device=device),
        "old_per_token_logps": torch.full((len(turns), long), -5.0, device=device),
    }


def trl_step(trainer: Any, inputs: dict[str, torch.Tensor], micro: int) -> None:
    for at in range(0, GROUP, micro):
        part = {name: value[at : at + micro] for name, value in inputs.items()}
        trainer.training_step(trainer.model, part, None)
    trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), 1.0)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()


# --- the report


def show(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "form" else "right")
    for row in rows:
        table.add_row(*(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shape", choices=("embedded", *SHAPES), default="embedded")
    parser.add_argument("--model", type=Path, help="a model folder instead of --shape")
    parser.add_argument("--prompt", type=int, help="tokens before the first turn")
    parser.add_argument("--turn", type=int, help="tokens that each turn adds")
    parser.add_argument("--rounds", type=int, help="the quickest of so many counts")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--taught", action="store_true", help="steps with a teacher, too")
    parser.add_argument("--plain", action="store_true", help="per turn with PEFT alone, too")
    parser.add_argument("--trl", action="store_true", help="compare with TRL's GRPOTrainer too")
    parser.add_argument("--trl-prompt", type=int, default=2000)
    parser.add_argument("--trl-reply", type=int, default=500)
    parser.add_argument("--trl-micro", type=int, default=4, help="sequences a pass of TRL's")
    parser.add_argument("--budget", type=int, default=10_240, help="tokens a pass of instar's")
    parser.add_argument("--trl-liger", action="store_true", help="TRL with its fused kernels")
    parser.add_argument("--only-trl", action="store_true", help="leave the sessions out")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    args.prompt = args.prompt or (6000 if on_gpu else 1000)
    args.turn = args.turn or (300 if on_gpu else 40)
    args.rounds = args.rounds or (3 if on_gpu else 1)
    return args


def main() -> None:
    args = arguments()
    found: dict[str, Any] = {"device": args.device, "shape": str(args.model or args.shape)}
    with tempfile.TemporaryDirectory() as home:
        folder = model_folder(args.shape, args.model, Path(home), args.device)
        theirs = trl_seconds(folder, args) if args.trl or args.only_trl else {}
        plain = plain_seconds(folder, args) if args.plain else {}
        if not args.only_trl:
            found["sessions"] = measure_sessions(folder, args, plain)
            show(f"Ten turns over {args.prompt} tokens, {args.turn} a turn", found["sessions"])
        if args.taught:
            found["taught"] = measure_taught(folder, args)
            show("A batch with a teacher", found["taught"])
        if theirs:
            found["trl"] = against_trl(theirs, folder, args)
            show("One step of eight sequences", found["trl"])
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
