"""The model that is trained: a base folder, with a LoRA adapter or all its linear layers.

It reads token trees and gives hidden states; the head that makes logits of them is applied by
the losses, a chunk at a time. The base as it was before any training stays at hand as `frozen`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from instar.config import TrainingConfig
from instar.errors import ModelError
from instar.threads import Pace, most_threads, read_usage
from instar.train import adapters, attention, fused, lora, whole
from instar.train.copying import sent
from instar.train.limits import Limit, limit_of
from instar.types import Tree

WEIGHTS_FILE = "adapter_model.safetensors"

_NOISE = re.compile("drop|jitter")
"""Settings of models that make training random."""

_AFTER_PRODUCT = ("final_logit_softcapping", "logits_scaling", "logit_scale")
"""Settings of models that do something to the logits after the last product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One set of weights to read trees with."""

    body: Any
    lm_head: Any
    config: Any

    @property
    def product(self) -> Tensor | None:
        """The head's weights where logits are nothing but a product with them, in float32."""
        plain = type(self.lm_head) is nn.Linear and self.lm_head.bias is None
        if not plain or any(getattr(self.config, name, None) for name in _AFTER_PRODUCT):
            return None
        weight_VD: Tensor = self.lm_head.weight
        trained = weight_VD.requires_grad
        return None if trained or weight_VD.dtype != torch.float32 else weight_VD

    def head(self, hidden_CD: Tensor) -> Tensor:
        """Logits, with what a few model families do to them after the last product."""
        logits_CV: Tensor = self.lm_head(hidden_CD)
        if cap := getattr(self.config, "final_logit_softcapping", None):
            logits_CV = torch.tanh(logits_CV / cap) * cap
        if scaling := getattr(self.config, "logits_scaling", None):
            logits_CV = logits_CV / scaling
        if scale := getattr(self.config, "logit_scale", None):
            logits_CV = logits_CV * scale
        return logits_CV


class Model:
    """A causal LM with something to train in it."""

    def __init__(
        self, folder: Path, training: TrainingConfig, *, device: str, dtype: str, seed: int
    ) -> None:
        attention.register()
        self.folder = folder
        self.device = _device(device)
        self.dtype = _dtype(dtype, self.device)
        # On a GPU the threads hardly matter: one reading, and nothing changes.
        limit = most_threads() if self.device.type == "cpu" else 1
        self._pace = Pace(limit, read=read_usage)
        self._frozen_copy: Any = None
        base = self._open()
        self.peft: Any = _with_adapter(base, training, seed) if training.use_lora else None
        if self.peft is None:
            whole.choose(base)
        self._base = base
        self.limit: Limit | None = limit_of(base)
        self._lean = (
            [] if self.peft is None else lora.make_lean(self.peft, dropout=training.lora_dropout)
        )
        if training.gradient_checkpointing:
            base.gradient_checkpointing_enable({"use_reentrant": False})
            base.config.use_cache = False
        base.train()

    @property
    def policy(self) -> View:
        return _view(self._base)

    @property
    def trains_head(self) -> bool:
        return any(one.requires_grad for one in self.policy.lm_head.parameters())

    @property
    def hidden_size(self) -> int:
        return int(self._base.get_input_embeddings().weight.shape[1])

    @property
    def vocab(self) -> int:
        return int(self._base.get_input_embeddings().weight.shape[0])

    @property
    def memory(self) -> int:
        """Bytes that the device has for itself; a CPU has none."""
        if self.device.type != "cuda":
            return 0
        return int(torch.cuda.get_device_properties(self.device).total_memory)

    def trainable(self) -> dict[str, nn.Parameter]:
        root = self.peft if self.peft is not None else self._base
        return {name: one for name, one in root.named_parameters() if one.requires_grad}

    @contextmanager
    def frozen(self) -> Iterator[View]:
        """The base as it was loaded, without gradients and dropout."""
        with torch.no_grad():
            if self.peft is None:
                yield _view(self._untouched())
                return
            alone = lora.resting(self._lean) if self._lean else self.peft.disable_adapter()
            with self.reading() as view, alone:
                # The head may be used after this block ends, so it must be the plain one.
                plain = getattr(view.lm_head, "base_layer", view.lm_head)
                yield View(body=view.body, lm_head=plain, config=view.config)

    @contextmanager
    def reading(self) -> Iterator[View]:
        """The trained weights, without gradients and dropout."""
        self._base.eval()
        try:
            with torch.no_grad():
                yield self.policy
        finally:
            self._base.train()

    def hidden(self, view: View, tree: Tree) -> Tensor:
        """The last hidden state of each token, [T, D]."""
        self._keep_pace()
        layout = attention.layout_of(tree, device=self.device, dtype=self.dtype)
        if self.limit is not None and layout.depth > self.limit.tokens:
            raise ModelError(f"A sequence of {layout.depth} tokens is longer than {self.limit}.")
        with self.precision():
            out = view.body(
                input_ids=sent(tree.ids, torch.long, self.device)[None],
                position_ids=sent(tree.positions, torch.long, self.device)[None],
                use_cache=False,
                layout=layout,
            )
        hidden_TD: Tensor = out.last_hidden_state[0]
        return hidden_TD

    def _keep_pace(self) -> None:
        """Whoever else computes in this process may have set another number of threads."""
        threads = self._pace.check()
        if self.device.type == "cpu" and threads != torch.get_num_threads():
            torch.set_num_threads(threads)

    def precision(self) -> Any:
        """PEFT's own layers keep float32 adapters beside a bfloat16 base and need a cast."""
        if self.dtype == torch.float32 or self._lean:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def save(self, folder: Path) -> None:
        """PEFT's folder form of the adapter, or of what changed where all layers are trained."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.peft is None:
            whole.save(self._base, self._untouched(), folder, WEIGHTS_FILE)
            return
        from peft import get_peft_model_state_dict

        config = self.peft.peft_config["default"]
        inference, config.inference_mode = config.inference_mode, True
        config.save_pretrained(str(folder))
        config.inference_mode = inference
        tensors = get_peft_model_state_dict(self.peft, save_embedding_layers=False)
        plain = {name: one.detach().cpu().contiguous() for name, one in tensors.items()}
        adapters.write(plain, folder / WEIGHTS_FILE)

    def load_adapter(self, folder: Path) -> None:
        """Go on from an adapter that `save` wrote, perhaps for another shape of what is trained."""
        changes = adapters.read(folder, WEIGHTS_FILE)
        if self.peft is None:
            layers, before = whole.linears(self._base), whole.linears(self._untouched())
            adapters.into_weights(layers, before, changes, folder)
        else:
            adapters.into_lora(self.peft, changes, folder)

    def _untouched(self) -> Any:
        """The base beside a model whose own layers change: it has to be loaded a second time."""
        if self._frozen_copy is None:
            self._frozen_copy = self._open().eval().requires_grad_(False)
        return self._frozen_copy

    def _open(self) -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            self.folder,
            config=_without_noise(AutoConfig.from_pretrained(self.folder)),
            dtype=self.dtype,
            attn_implementation=attention.NAME,
        ).to(self.device)
        if self.device.type == "cuda":
            fused.fuse(model)
        return model


def _without_noise(config: Any) -> Any:
    """The config of a model that reads in training as it does in serving.

    With its own dropout no log-prob would be that of the recorded reply, and turns that are read
    together would not be read as each by itself. What `lora_dropout` says is not in here.
    """
    for one in {id(part): part for part in (config, config.get_text_config())}.values():
        for name, value in list(vars(one).items()):
            if isinstance(value, float) and _NOISE.search(name):
                setattr(one, name, 0.0)
    return config


def _view(base: Any) -> View:
    return View(body=base.get_decoder(), lm_head=base.get_output_embeddings(), config=base.config)


def _with_adapter(base: Any, training: TrainingConfig, seed: int) -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    targets: Any = list(training.lora_target_modules)
    config = LoraConfig(
        r=training.lora_rank,
        lora_alpha=training.lora_alpha,
        lora_dropout=training.lora_dropout,
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        task_type="CAUSAL_LM",
        fan_in_fan_out=any(isinstance(one, Conv1D) for one in base.modules()),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(base, config)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {name!r} was asked for, but PyTorch finds no CUDA GPU here.")
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
