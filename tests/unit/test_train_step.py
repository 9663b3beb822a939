"""The trainer: trees against turns on their own, resuming, and what is served afterwards.

S sampled tokens, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sampled_turns import chain, comb, earned, make, stir, tiny_llama, turn

from instar.batch.credit import Credit, Judged
from instar.batch.merge import merge, temperature_of
from instar.batch.pack import pack
from instar.errors import ModelError
from instar.threads import at_most
from instar.train.step import TorchTrainer
from instar.types import Batch

Turns = Sequence[tuple[Judged, Credit]]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Products this small take longer to share out than to do."""
    with pytest.MonkeyPatch.context() as patch, at_most(1):
        patch.setattr("instar.train.model.most_threads", lambda: 1)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def trainer(folder: Path) -> TorchTrainer:
    return make(folder)


def batch_of(turns: Turns, *, max_tokens: int | None = None, budget: int = 10_000) -> Batch:
    merged = merge(turns, max_tokens=max_tokens)
    return Batch(samples=pack(merged.samples, max_tokens=budget), version="base")


def gradients(trainer: TorchTrainer, batch: Batch) -> dict[str, torch.Tensor]:
    parameters = trainer.model.trainable()
    for value in parameters.values():
        value.grad = None
    trainer.accumulate(batch)
    return {name: taken(value) for name, value in parameters.items()}


def taken(value: torch.nn.Parameter) -> torch.Tensor:
    assert value.grad is not None
    return value.grad.clone()


def naive(trainer: TorchTrainer, turns: Turns, *, share: float = 0.0) -> dict[str, torch.Tensor]:
    """Each turn alone in double precision, with transformers' own attention and all logits."""
    model = copy.deepcopy(trainer.model.peft).double()
    model.zero_grad()
    model.get_base_model().set_attn_implementation("eager")
    for judged, credit in turns:
        loss = naive_loss(model, judged, credit, share, trainer.training.teacher_temperature)
        (loss / len(turns)).backward()
    found = dict(model.named_parameters())
    return {name: taken(found[name]).float() for name in trainer.model.trainable()}


def sampled_logits(model: Any, prompt: Sequence[int], sampled: Sequence[int]) -> Any:
    ids = torch.tensor([[*prompt, *sampled]])
    return model(input_ids=ids).logits[0, len(prompt) - 1 : -1]


def naive_loss(model: Any, judged: Judged, credit: Credit, share: float, surer: float) -> Any:
    one, scale = judged.turn, temperature_of(judged.turn)
    ours_SV = (sampled_logits(model, one.prompt_ids, one.sampled_ids) / scale).log_softmax(1)
    logprobs_S = ours_SV.gather(1, torch.tensor(one.sampled_ids)[:, None])[:, 0]
    ratio_S = (logprobs_S - torch.tensor(one.logprobs)).exp()
    advantages_S = torch.tensor(credit.advantages)
    free_S = -ratio_S.clamp(max=2.0) * advantages_S
    # Above the cap the weight is constant and the log-prob carries the gradient.
    capped_S = -2.0 * advantages_S * (1 + logprobs_S - logprobs_S.detach())
    free_S = torch.where(ratio_S > 2.0, capped_S, free_S)
    loss = torch.maximum(free_S, -ratio_S.clamp(0.8, 1.28) * advantages_S).mean()
    if judged.hinted_ids is not None and any(credit.distill_weights):
        with torch.no_grad():
            own_SV = sampled_logits(model, judged.hinted_ids, one.sampled_ids)
            with model.disable_adapter():
                base_SV = sampled_logits(model, judged.hinted_ids, one.sampled_ids)
        theirs_SV = share * own_SV + (1 - share) * base_SV
        gap_SV = ours_SV - (theirs_SV / (scale * surer)).log_softmax(1)
        kl_S = (ours_SV.exp() * gap_SV).sum(1)
        kl_S = torch.where(kl_S > 10.0, kl_S * (10.0 / kl_S.detach()), kl_S)
        loss = loss + (torch.tensor(credit.distill_weights) * kl_S).mean()
    return loss


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    size = max(1.0, *(float(value.abs().max()) for value in expected.values()))
    for name, value in expected.items():
        worst = float((found[name] - value).abs().max())
        assert worst <= 1e-5 * size, f"{name} is off by {worst:.1e} of {size:.1e}"


@pytest.mark.parametrize(
    "turns", [chain(), comb(), chain() + comb()], ids=["chain", "comb", "both"]
)
def test_merged_gradients_are_the_sum_of_each_turns(trainer: TorchTrainer, turns: Turns) -> None:
    batch = batch_of(turns)
    assert len(batch.samples) == 1
    expected = naive(trainer, turns)
    assert any(float(value.abs().max()) > 1e-3 for value in expected.values())
    assert_same(gradients(trainer, batch), expected)


def test_a_session_cut_in_several_trees_has_the_same_gradients(trainer: TorchTrainer) -> None:
    turns = [*chain(), *comb()]
    cut = batch_of(turns, max_tokens=14, budget=14)
    assert len(cut.samples) > 1
    assert_same(gradients(trainer, cut), naive(trainer, turns))


@st.composite
def random_turns(draw: st.DrawFn) -> list[tuple[Judged, Credit]]:
    """Turns that go on from any earlier one, retry it, or begin anew; few tokens, so that they
    often share beginnings by chance, sampled ones too."""
    tokens = st.integers(1, 3)
    some = st.lists(tokens, min_size=1, max_size=4)
    out: list[tuple[Judged, Credit]] = []
    for number in range(draw(st.integers(1, 5))):
        known = [[1, 2], *(list(one.turn.ids) for one, _ in out)]
        known += [list(one.turn.prompt_ids) for one, _ in out]
        start = draw(st.sampled_from(known))
        prompt = start[: draw(st.integers(1, len(start)))] + draw(st.lists(tokens, max_size=3))
        sampled = draw(some)
        one = turn(
            f"t{number}",
            prompt,
            sampled,
            logprobs=[draw(st.sampled_from([-0.2, -1.0, -4.0])) for _ in sampled],
            temperature=draw(st.sampled_from([0.0, 0.7, 1.0])),
        )
        distill = draw(st.sampled_from([0.0, 1.0]))
        hinted = [5, *draw(some), *prompt] if distill else None
        out.append(earned(one, draw(st.sampled_from([-1.0, 0.5])), distill=distill, hinted=hinted))
    return out


@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(turns=random_turns())
def test_random_trees_have_the_gradients_of_their_turns(
    trainer: TorchTrainer, turns: Turns
) -> None:
    assert_same(gradients(trainer, batch_of(turns)), naive(trainer, turns))


def test_identical_retries_add_their_credits(trainer: TorchTrainer) -> None:
    one = turn("a", [1, 2], [3, 4], logprobs=[-4.0, -4.0])
    again = replace(one, id="b", logprobs=(-1.0, -4.5))
    turns = [earned(one, 1.0), earned(again, -1.0)]
    batch = batch_of(turns)
    assert len(batch.samples[0].tree.ids) == 4
    assert_same(gradients(trainer, batch), naive(trainer, turns))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_distillation_is_exact_reverse_kl_to_the_hinted_ones(folder: Path, share: float) -> None:
    trainer = make(folder, teacher_share=share)
    turns = [
        earned(one.turn, 0.3 * n, distill=0.5 + n, hinted=[50, 51, *one.turn.prompt_ids])
        for n, (one, _) in enumerate(comb())
    ]
    assert_same(gradients(trainer, batch_of(turns)), naive(trainer, turns, share=share))


@pytest.mark.parametrize("divergence", ["reverse", "forward"])
def test_a_trained_head_leaves_the_base_alone_as_teacher(tmp_path: Path, divergence: str) -> None:
    """Hidden states can be mixed for one head only; with two, the policy has no part in it."""
    turns = [
        earned(one.turn, 0.3, distill=1.0, hinted=[50, 51, *one.turn.prompt_ids])
        for one, _ in comb()
    ]
    folder = tiny_llama(tmp_path, tie_word_embeddings=False)
    targets = {"lora_target_modules": ["q_proj", "lm_head"], "divergence": divergence}
    found, alone = (make(folder, teacher_share=share, **targets) for share in (0.5, 0.0))
    assert_same(gradients(found, batch_of(turns)), gradients(alone, batch_of(turns)))


def test_a_part_of_a_step_is_a_shorter_one(folder: Path) -> None:
    batch = batch_of([earned(one.turn, 0.5) for one, _ in comb()])
    half, several, whole = make(folder), make(folder), make(folder)
    rate = whole.step(batch)["lr"]
    assert half.steps_on(batch, 0.5)["lr"] == pytest.approx(rate / 2)
    assert several.steps_on(batch, 2.5)["lr"] == pytest.approx(rate * 5 / 6)
    assert (half.steps, several.steps) == (1, 3)


def test_several_steps_on_a_batch_are_single_steps_with_one_teacher(folder: Path) -> None:
    """The base does not change, so that reading it once is the same as reading it each time."""
    turns = [
        earned(one.turn, 0.3 * n, distill=float(n > 0), hinted=[50, *one.turn.prompt_ids])
        for n, (one, _) in enumerate(comb())
    ]
    batch = batch_of(turns)
    once, each = make(folder, dissent=0.5), make(folder, dissent=0.5)
    metrics = [each.step(batch) for _ in range(3)]
    assert once.steps_on(batch, 3) == pytest.approx(metrics[-1], nan_ok=True)
    assert metrics[0]["loss"] > metrics[-1]["loss"]
    assert_same(once.state()["weights"], each.state()["weights"])


def test_a_praised_token_is_not_pulled_down_by_its_teacher(folder: Path) -> None:
    """A verdict overrules the teacher; where both want the same, both count."""
    prompt, hinted = [1, 2, 3], [9, 1, 2, 3]
    plain = make(folder)
    for token in range(4, 10):
        one = turn("a", prompt, [token])
        ours = plain.logprobs(prompt, [token])[0]
        theirs = plain.logprobs(hinted, [token], weights="base")[0]
        for advantage in (1.0, -1.0):
            batch = batch_of([earned(one, advantage, distill=1.0, hinted=hinted)])
            alone = batch_of([earned(one, advantage)])
            opposed = advantage * (theirs - ours) < 0
            assert_same(
                gradients(make(folder, dissent=0.0), batch),
                gradients(plain, alone if opposed else batch),
            )


def test_a_correction_does_not_push_down_what_its_teacher_would_say(folder: Path) -> None:
    prompt, hinted = [1, 2, 3], [9, 1, 2, 3]
    plain, seen = make(folder), set()
    for token in range(4, 10):
        one = turn("a", prompt, [token])
        ours = plain.logprobs(prompt, [token])[0]
        theirs = plain.logprobs(hinted, [token], weights="base")[0]
        seen.add(theirs > ours)
        for advantage in (1.0, -1.0):
            spared = advantage < 0 and theirs > ours
            batch = batch_of([earned(one, advantage, distill=1.0, hinted=hinted)])
            heard = batch_of(
                [earned(one, 0.0 if spared else advantage, distill=1.0, hinted=hinted)]
            )
            assert_same(gradients(make(folder, blame=0.0), batch), gradients(plain, heard))
    assert seen == {True, False}


def test_gradient_checkpointing_changes_nothing(folder: Path, trainer: TorchTrainer) -> None:
    batch = batch_of(comb())
    saving = make(folder, gradient_checkpointing=True)
    assert_same(gradients(saving, batch), gradients(trainer, batch))


def test_the_combined_loss_is_the_weighted_sum_of_its_parts(trainer: TorchTrainer) -> None:
    hinted = [50, *chain()[0][0].turn.prompt_ids]
    one = chain()[0][0].turn
    parts = [
        gradients(trainer, batch_of([earned(one, 1.0)])),
        gradients(trainer, batch_of([earned(one, 0.0, distill=1.0, hinted=hinted)])),
    ]
    both = gradients(trainer, batch_of([earned(one, 0.3, distill=2.0, hinted=hinted)]))
    assert_same(both, {name: 0.3 * parts[0][name] + 2.0 * parts[1][name] for name in both})


def test_a_step_makes_praised_tokens_likelier_and_blamed_ones_less_likely(folder: Path) -> None:
    trainer = make(folder)
    good, bad = turn("g", [1, 2], [3, 4]), turn("b", [1, 9], [10, 11])
    turns = []
    for one, advantage in ((good, 1.0), (bad, -1.0)):
        recorded = trainer.logprobs(one.prompt_ids, one.sampled_ids)
        turns.append(earned(replace(one, logprobs=recorded), advantage))
    before = [sum(trainer.logprobs(one.turn.prompt_ids, one.turn.sampled_ids)) for one, _ in turns]
    metrics = trainer.step(replace(batch_of(turns), rewards=(1.0, -1.0), counts={"stale": 2}))
    after = [sum(trainer.logprobs(one.turn.prompt_ids, one.turn.sampled_ids)) for one, _ in turns]
    assert after[0] > before[0]
    assert after[1] < before[1]
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["reward_mean"] == 0.0
    assert metrics["reward_std"] == 1.0
    assert metrics["stale"] == 2
    assert metrics["turns"] == 2
    assert metrics["tokens"] == 7
    assert metrics["trained_tokens"] == 4
    assert metrics["grad_norm"] > 0
    assert metrics["lr"] == pytest.approx(5e-4)


def test_the_base_stays_what_it_was(folder: Path) -> None:
    trainer = make(folder)
    before = trainer.logprobs([1, 2], [3, 4], weights="base")
    trainer.step(batch_of(chain()))
    assert trainer.logprobs([1, 2], [3, 4], weights="base") == before
    assert trainer.logprobs([1, 2], [3, 4]) != before


def test_warm_up_raises_the_rate(folder: Path) -> None:
    trainer = make(folder, warmup_steps=3, learning_rate=0.4)
    rates = [trainer.step(batch_of(chain()))["lr"] for _ in range(5)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def test_training_resumes_exactly(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    whole = make(folder, lora_dropout=0.1)
    batches = [batch_of(chain()), batch_of(comb()), batch_of(chain())]
    whole.step(batches[0])
    torch.save(whole.state(), tmp_path / "state.pt")
    expected = [whole.step(batch) for batch in batches[1:]]
    resumed = make(folder, lora_dropout=0.1)
    resumed.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    found = [resumed.step(batch) for batch in batches[1:]]
    assert resumed.steps == 3
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, nan_ok=True, rel=0, abs=0)
    for name, value in whole.model.trainable().items():
        assert torch.equal(value, resumed.model.trainable()[name])


def test_a_state_of_another_shape_is_refused(folder: Path) -> None:
    state = make(folder).state()
    other = make(folder, lora_target_modules=["q_proj"])
    with pytest.raises(ModelError, match="other parameters"):
        other.load_state(state)


def test_a_value_head_that_is_turned_on_later_begins_at_its_beginning(folder: Path) -> None:
    plain = make(folder)
    plain.step(batch_of(chain()))
    valued = make(folder, value_head=True, learning_rate=0.05)
    judged, credit = earned(turn("v", [1, 2, 3], [4, 5]), 0.0)
    lesson = batch_of([(judged, replace(credit, value=0.0, target=1.0))])
    valued.step(lesson)  # as for another owner, before
    assert valued.value([1, 2, 3]) != 0.0
    valued.load_state(plain.state())
    assert valued.value([1, 2, 3]) == 0.0
    assert valued.logprobs([1], [2, 3]) == plain.logprobs([1], [2, 3])
    ages = [float(one["step"]) for one in valued.state()["optimizer"]["state"].values()]
    assert set(ages) == {1.0} and len(ages) == len(plain.model.trainable())
    assert valued.step(lesson)["value_loss"] == pytest.approx(0.5)
    plain.load_state(valued.state())
    assert plain.logprobs([1], [2, 3]) == valued.logprobs([1], [2, 3]), "and turned off again"


def test_settings_of_the_optimiser_are_those_of_now(folder: Path) -> None:
    first = make(folder, weight_decay=0.0)
    first.step(batch_of(chain()))
    later = make(folder, weight_decay=0.25)
    later.load_state(first.state())
    (group,) = later.state()["optimizer"]["param_groups"]
    assert group["weight_decay"] == 0.25


def test_a_broken_gradient_changes_no_weight(folder: Path) -> None:
    trainer = make(folder)
    before = {name: value.clone() for name, value in trainer.model.trainable().items()}
    judged, credit = chain()[0]
    broken = replace(credit, advantages=(float("inf"), float("inf")))
    assert trainer.step(batch_of([(judged, broken)]))["skipped"] == 1
    for name, value in trainer.model.trainable().items():
        assert torch.equal(value, before[name])


def test_an_empty_batch_is_refused(trainer: TorchTrainer) -> None:
    with pytest.raises(ValueError, match="no turn with credit"):
        trainer.step(Batch(samples=(), version="base"))


def test_the_value_head_learns_returns_and_leaves_the_policy_alone(folder: Path) -> None:
    trainer = make(folder, value_head=True, learning_rate=0.05)
    judged, credit = earned(turn("v", [1, 2, 3], [4, 5]), 0.0)
    batch = batch_of([(judged, replace(credit, value=0.0, target=1.0))])
    spoken = trainer.logprobs([1, 2, 3], [4, 5])
    found = [trainer.step(batch)["value_loss"] for _ in range(20)]
    assert found[0] == pytest.approx(0.5)
    assert found[-1] < 0.1
    assert trainer.value([1, 2, 3]) == pytest.approx(1.0, abs=0.5)
    assert trainer.logprobs([1, 2, 3], [4, 5]) == spoken


def test_full_fine_tuning_keeps_a_frozen_teacher_and_is_an_adapter_of_full_rank(
    folder: Path, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    trainer = make(folder, use_lora=False, learning_rate=1e-3, divergence="forward")
    base = trainer.logprobs([1, 2], [3, 4], weights="base")
    one = turn("f", [1, 2], [3, 4])
    trainer.step(batch_of([earned(one, 1.0, distill=1.0, hinted=[9, 1, 2])]))
    assert trainer.logprobs([1, 2], [3, 4], weights="base") == base
    learned = trainer.logprobs([1, 2], [3, 4])
    assert learned != pytest.approx(base, abs=1e-3)
    trainer.save_adapter(tmp_path)
    again = make(folder, use_lora=False)
    again.load_adapter(tmp_path)
    assert again.logprobs([1, 2], [3, 4]) == pytest.approx(learned, abs=1e-5)
    # And PEFT reads it as it reads any adapter.
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    read = PeftModel.from_pretrained(plain, tmp_path)
    with torch.no_grad():
        logprobs_TV = read(torch.tensor([[1, 2, 3, 4]])).logits[0].log_softmax(1)
    found = [float(logprobs_TV[at, token]) for at, token in ((1, 3), (2, 4))]
    assert found == pytest.approx(learned, abs=1e-4)
    with pytest.raises(ModelError, match=r"rank 32 .* at most the 4 of training.lora_rank"):
        make(folder).load_adapter(tmp_path)


@pytest.mark.parametrize("use_lora", [True, False])
def test_a_saved_adapter_is_served_as_it_was_trained(
    folder: Path, tmp_path: Path, use_lora: bool
) -> None:
    from instar.backends.torch_lora import read_adapter
    from instar.backends.torch_model import Work, open_model

    trainer = make(folder, learning_rate=0.01 if use_lora else 1e-3, use_lora=use_lora)
    for _ in range(3):
        trainer.step(batch_of(chain()))
    trainer.save_adapter(tmp_path)
    served = open_model(folder, device="cpu", dtype="float32", context=None)
    weights = served.merge(read_adapter(tmp_path))
    ids = [1, 2, 3, 4, 5, 6]
    memory = served.begin(None, shared=0, length=16)
    logprobs = []
    for at, token in enumerate(ids[:-1]):
        work = Work(memory=memory, ids=[token], decoding=at > 0)
        logits = served.forward("new", weights, [work])[0]
        logprobs.append(float(logits.log_softmax(0)[ids[at + 1]]))
    assert trainer.logprobs(ids[:1], ids[1:]) == pytest.approx(logprobs, abs=1e-4)


def test_training_goes_on_from_a_saved_adapter(folder: Path, tmp_path: Path) -> None:
    trainer = make(folder)
    trainer.save_adapter(tmp_path)
    other = TorchTrainer(folder, trainer.training, device="cpu", seed=9)
    other.load_adapter(tmp_path)
    assert other.logprobs([1], [2, 3]) == trainer.logprobs([1], [2, 3])


@pytest.mark.parametrize(
    "shape",
    [
        {"lora_rank": 6},
        {"lora_alpha": 2},
        {"lora_rank": 8, "lora_alpha": 40, "lora_target_modules": ["all-linear"]},
        {"use_lora": False},
    ],
)
def test_a_version_goes_on_in_a_shape_that_holds_it(
    folder: Path, tmp_path: Path, shape: dict[str, Any]
) -> None:
    small = make(folder, lora_target_modules=["q_proj", "v_proj"])
    small.save_adapter(tmp_path)
    prompt, said = [1, 2, 3], [4, 5, 6]
    wanted = small.logprobs(prompt, said)
    other = make(folder, **({"lora_target_modules": ["q_proj", "v_proj"]} | shape))
    assert other.logprobs(prompt, said) != pytest.approx(wanted, abs=1e-2)
    other.load_adapter(tmp_path)
    assert other.logprobs(prompt, said) == pytest.approx(wanted, abs=1e-5)
    before = other.logprobs(prompt, said)
    other.step(batch_of([earned(turn("a", prompt, said, logprobs=wanted), 1.0)]))
    assert sum(other.logprobs(prompt, said)) > sum(before), "and it can be trained further"


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ({"lora_rank": 2}, r"rank 4 on .* at most the 2 of training.lora_rank"),
        ({"lora_target_modules": ["q_proj"]}, r"Set training.lora_target_modules as it was"),
    ],
)
def test_a_version_is_not_cut_to_a_shape_that_does_not_hold_it(
    folder: Path, tmp_path: Path, shape: dict[str, Any], why: str
) -> None:
    make(folder).save_adapter(tmp_path)
    with pytest.raises(ModelError, match=why):
        make(folder, **shape).load_adapter(tmp_path)


def test_a_window_shorter_than_a_path_is_refused(tmp_path: Path) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=4,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path)
    trainer = make(tmp_path)
    with pytest.raises(ModelError, match=r"5 tokens .* attention window \(4 tokens\)"):
        trainer.logprobs([1, 2, 3], [4, 5])


@pytest.mark.parametrize("dropout", [0.0, 1e-6])
def test_a_bfloat16_base_has_nearly_the_same_gradients(
    folder: Path, trainer: TorchTrainer, dropout: float
) -> None:
    """With and without PEFT's own layers; the adapter itself stays in float32."""
    training = trainer.training.model_copy(update={"lora_dropout": dropout})
    coarse = TorchTrainer(folder, training, device="cpu", dtype="bfloat16")
    stir(coarse)
    turns = [
        earned(one.turn, 1.0, distill=1.0, hinted=[50, *one.turn.prompt_ids]) for one, _ in comb()
    ]
    found, expected = gradients(coarse, batch_of(turns)), gradients(trainer, batch_of(turns))
    assert all(value.dtype == torch.float32 for value in found.values())
    ours, theirs = (torch.cat([v.flatten() for v in one.values()]) for one in (found, expected))
    assert float((ours - theirs).norm()) < 0.1 * float(theirs.norm())
    coarse.step(batch_of(turns))


@pytest.mark.model
def test_merged_gradients_on_the_embedded_model() -> None:
    from instar.backends.embedded import embedded_model

    trainer = make(embedded_model(Path.home() / ".instar"))
    turns = [*chain(), *comb()]
    assert_same(gradients(trainer, batch_of(turns)), naive(trainer, turns))
