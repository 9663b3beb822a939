"""Loading the config: what wins, where it came from, and what a mistake says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.config import (
    SECRETS,
    Config,
    FakeEngine,
    TorchLocalEngine,
    VllmEngine,
    check_bind,
    is_loopback,
    secret,
)
from instar.config_load import keys, load_config, sections
from instar.config_nearest import nearest
from instar.errors import ConfigError


def mistakes(text: str | None = None, *sets: str, tmp_path: Path | None = None) -> str:
    """The message that loading this text and these overrides gives."""
    file = None
    if text is not None:
        assert tmp_path is not None
        file = tmp_path / "c.yaml"
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file, sets)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_defaults_are_the_tree() -> None:
    resolved = load_config()
    assert resolved.config == Config()
    assert set(resolved.sources.values()) == {"default"}
    assert isinstance(resolved.config.engine, TorchLocalEngine)
    assert (resolved.config.gateway.host, resolved.config.gateway.port) == ("127.0.0.1", 30000)


def test_later_wins_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("gateway:\n  port: 1\n  max_queue: 7\n  host: ::1\ntraining:\n  gamma: 0.5\n")
    resolved = load_config(
        file, ["gateway.max_queue=8", "gateway.port=2"], flags={"gateway.port": 3}
    )
    rows = {path: (value, source) for path, value, source in resolved.rows()}
    assert rows["gateway.port"] == (3, "--port")
    assert rows["gateway.max_queue"] == (8, "--set")
    assert rows["gateway.host"] == ("::1", f"{file}:4")
    assert rows["training.gamma"] == (0.5, f"{file}:6")
    assert rows["gateway.top_p"] == (1.0, "default")


def test_a_flag_that_is_not_given_changes_nothing() -> None:
    assert load_config(flags={"gateway.port": None}).sources["gateway.port"] == "default"


def test_last_override_wins() -> None:
    resolved = load_config(None, ["training.batch_size=2", "training.batch_size=3"])
    assert resolved.config.training.batch_size == 3


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("training.learning_rate=1e-6", "learning_rate", 1e-6),
        ("training.learning_rate=5E-7", "learning_rate", 5e-7),
        ("training.value_clip=yes", "value_clip", True),
        ("training.value_clip=false", "value_clip", False),
        ("training.max_steps=null", "max_steps", None),
        ("training.max_steps=", "max_steps", None),
        ("training.lora_target_modules=[q_proj, no]", "lora_target_modules", ["q_proj", "no"]),
        ("training.hint_extraction_model=7", "hint_extraction_model", "7"),
        ("training.hint_extraction_model=a=b", "hint_extraction_model", "a=b"),
        ("training={gamma: 0.5, gae_lambda: 1}", "gae_lambda", 1.0),
    ],
)
def test_override_values_are_yaml(override: str, path: str, value: object) -> None:
    assert getattr(load_config(None, [override]).config.training, path) == value


def test_sections_may_be_empty_and_lines_shared(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("training:\n# nothing yet\nrollout: &r\n  max_turns: 3\n")
    assert load_config(file).config.rollout.max_turns == 3
    file.write_text("")
    assert load_config(file).config == Config()


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("training.lerning_rate", "training.learning_rate"),
        ("batch_size", "training.batch_size"),
        ("trainig.batch_size", "training.batch_size"),
        ("gateway.prot", "gateway.port"),
        ("sesion_timeout", "rollout_config.session_timeout"),
        ("rollout_config.message_clasification", "rollout_config.message_classification"),
        ("lora_rnk", "training.lora_rank"),
        ("evaluation.judge_mode", "evaluation.judge_model"),
        ("engine.gpu_memroy", "engine.gpu_memory"),
        # Not the section that it stands in, which looks more like it.
        ("training.lr", "training.learning_rate"),
        ("lr", "training.learning_rate"),
        ("training.optimizer.lr", "training.learning_rate"),
        ("training.rank", "training.lora_rank"),
        ("training.alpha", "training.lora_alpha"),
        ("training.batch", "training.batch_size"),
        ("training.epochs", "training.steps_per_batch"),
        ("training.warmup", "training.warmup_steps"),
        ("training.LearningRate", "training.learning_rate"),
        ("rollout.batchsize", "rollout.batch_size"),
        # Of the same section, though another one has it by that very name.
        ("model.path", "model.checkpoint_path"),
        ("evaluation.judge.url", "evaluation.judge.base_url"),
        ("model.port", "gateway.port"),
        ("judge", "evaluation.judge"),
        ("trainng", "training"),
    ],
)
def test_unknown_key_names_the_nearest(key: str, near: str, tmp_path: Path) -> None:
    assert mistakes(None, f"{key}=1") == f"{key} (--set): unknown key; did you mean {near}?"
    *above, name = key.split(".")
    nested: Any = {name: 1}
    for part in reversed(above):
        nested = {part: nested}
    said = mistakes(json.dumps(nested), tmp_path=tmp_path)
    assert key.split(".")[0] in said and "c.yaml:1" in said and "unknown key" in said


KNOWN = {key.path for key in keys()} | sections()


@pytest.mark.parametrize("key", ["zzzzzz", "zzz.q", "foo", "5", "gateway.x.y"])
def test_a_key_like_no_other_names_one_and_points_to_the_list(key: str) -> None:
    said = mistakes(None, f"{key}=1")
    assert said.startswith(f"{key} (--set): unknown key; did you mean ")
    near, more = said.removesuffix(".").split(" did you mean ")[1].split("? ")
    assert near in KNOWN and "instar config show" in more


@given(st.text(min_size=1), st.sampled_from(["", *sorted(sections())]))
def test_there_is_always_a_nearest_key_and_never_the_section_around_it(
    name: str, section: str
) -> None:
    path = f"{section}.{name}" if section else name
    near, _ = nearest(path, sorted(KNOWN))
    assert near in KNOWN and not path.startswith(f"{near}.")


@pytest.mark.parametrize("path", sorted(KNOWN))
def test_a_known_key_is_its_own_nearest_one(path: str) -> None:
    assert nearest(path, sorted(KNOWN)) == (path, True)
    *_, name = path.split(".")
    assert nearest(name, sorted(KNOWN))[0].split(".")[-1] == name


def test_every_mistake_is_listed(tmp_path: Path) -> None:
    text = "training:\n  method: ppo\n  batch_size: 0\n  gamma: x\ngatway:\n  port: 1\n"
    said = mistakes(text, "rollout.max_turns=true", "nonsense", tmp_path=tmp_path).splitlines()
    assert said[0] == "6 mistakes in the config:"
    assert [line.strip() for line in said[1:]] == [
        "gatway (c.yaml:5): unknown key; did you mean gateway?",
        '--set: found "nonsense", expected a.b=c, such as training.method=opd',
        "rollout.max_turns (--set): found true, expected a number",
        "training.method (c.yaml:2): found \"ppo\" (a string), expected 'binary', 'opd' or "
        "'combine'",
        "training.batch_size (c.yaml:3): found 0 (an integer), expected at least 1",
        'training.gamma (c.yaml:4): found "x" (a string), expected a number',
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("training: [\n", "c.yaml line 2 column 1: this is not YAML"),
        ("a: 1\n  b: 2\n", "c.yaml line 2 column 4: this is not YAML"),
        ("- a\n", "found ['a'] (a list) at the top"),
        ("training: 3\n", "training (c.yaml:1): found 3 (an integer), but training is a section"),
        ("store:\n  backlog: 1\n  backlog: 2\n", 'line 3: the key "backlog" stands here a second'),
        ("training:\n  ? [a]\n  : 1\n", "c.yaml line 2: a key is a list or a section"),
        ("? {a: 1}\n: 1\n", "c.yaml line 1: a key is a list or a section"),
        ("model: &m\n  x: *m\n", "contains itself"),
        (
            f"gateway:\n  port: {'9' * 5000}\n",
            "line 2 column 9: this is not YAML: a number of 5000",
        ),
        ("store:\n  url: mysql://a:b@c/d\n", "found 'mysql' before ://"),
        (
            "store:\n  url: ann:secret@host\n",
            "store.url: found no ://; expected sqlite:///path/to/instar.db",
        ),
        ("gateway:\n  port: 70000\n", "found 70000 (an integer), expected at most 65535"),
        ("gateway:\n  temperature: .nan\n", "expected a finite number"),
        ("gateway:\n  model_aliases: gpt-4\n", 'found "gpt-4" (a string), expected a list'),
        ("gateway:\n  model_aliases: [1]\n", "gateway.model_aliases.0 (c.yaml:2): found 1"),
        ("rollout_config:\n  message_classification:\n    side: [user]\n", "user is in main_line"),
        ("training:\n  binary_weight: 0\n  opd_weight: 0\n", "learns nothing"),
    ],
)
def test_mistakes_in_a_file(text: str, said: str, tmp_path: Path) -> None:
    assert said in mistakes(text, tmp_path=tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "engine:\n  args: " + "[" * 3000 + "]" * 3000,
        "engine:\n  args: " + "[" * 3000,
        "".join(f"{' ' * at}a:\n" for at in range(300)),
        '{"a":' * 3000 + "1" + "}" * 3000,
        "- " * 3000,
    ],
    ids=["brackets", "open", "sections", "json", "dashes"],
)
def test_what_is_nested_too_deep_is_an_error_with_its_place(text: str, tmp_path: Path) -> None:
    said = mistakes(text, tmp_path=tmp_path)
    assert said.startswith("c.yaml line ") and "nested more than 100 deep" in said


def test_a_value_that_is_nested_too_deep_is_an_error() -> None:
    deep = "[" * 3000 + "]" * 3000
    assert mistakes(None, f"engine.args={deep}").startswith("--set engine.args line 1 column 101: ")
    # As deep as may be is only no list of strings.
    most = "[" * 100 + "]" * 100
    assert "expected a string" in mistakes(None, "engine.type=vllm", f"engine.args={most}")


def test_what_is_nested_too_deep_by_names_is_an_error(tmp_path: Path) -> None:
    within = [("&n0 x", "&n0 {b: 1}")]
    for at in range(1, 40):
        lists = f"&n{at} {'[' * 90}*n{at - 1}{']' * 90}"
        within.append((lists, f"&n{at} {'{a: ' * 90}*n{at - 1}{'}' * 90}"))
    lists, parts = (", ".join(one) for one in zip(*within, strict=True))
    said = mistakes(None, f"engine.args=[{lists}]", "engine.type=vllm")
    assert "found [[[[[[[...]]]]]]] (a list), expected a string" in said
    keys = "\n".join(f"k{at}: {one}" for at, one in enumerate(parts.split(", ")))
    assert mistakes(keys, tmp_path=tmp_path).startswith("c.yaml: found lists or sections nested")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no config file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"model:\n  name: caf\xe9\n")
    with pytest.raises(ConfigError, match="byte 18 is not UTF-8"):
        load_config(tmp_path / "latin.yaml")


def test_engine_is_chosen_by_its_type(tmp_path: Path) -> None:
    assert isinstance(load_config(None, ["engine.type=fake"]).config.engine, FakeEngine)
    resolved = load_config(
        None, ["engine.type=vllm", "engine.env.A=1", "engine.env.B=x", "engine.context=64"]
    )
    engine = resolved.config.engine
    assert isinstance(engine, VllmEngine)
    assert (engine.env, engine.context) == ({"A": "1", "B": "x"}, 64)
    assert "engine.script" not in resolved.sources
    assert "expected torch_local or vllm or fake" in mistakes(None, "engine.type=vlm")
    assert "engine.type" in mistakes(None, "engine=vllm")


def test_keys_of_another_engine_are_refused(tmp_path: Path) -> None:
    text = "engine:\n  type: vllm\n  gpu_memory: 0.5\n  context: 64\n"
    assert mistakes(text, "engine.type=fake", tmp_path=tmp_path) == (
        "engine.gpu_memory (c.yaml:3): this is a key of engine vllm, but engine.type is fake "
        "(--set); set engine.type to vllm or remove the key"
    )
    assert "engine.type is torch_local (by default)" in mistakes(None, "engine.url=http://x")


def test_paths_know_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = load_config(None, ["model.checkpoint_path=~/model"]).config
    assert config.model.checkpoint_path == tmp_path / "model"


def test_every_setting_is_documented() -> None:
    assert [key.path for key in keys() if not key.info.description] == []


def test_the_tree_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().gateway.port = 1  # type: ignore[misc]


def _values(key: Any) -> st.SearchStrategy[object]:
    if key.takes(bool):
        return st.booleans()
    if key.takes(int):
        return st.integers(64, 60000)
    if key.takes(float):
        return st.floats(0.01, 0.9)
    if key.takes(str):
        return st.text(st.characters(categories=["L", "N", "P", "S", "Z"]), min_size=1)
    return st.nothing()


FREE = [
    key
    for key in keys()
    if key.kind is None
    and any(key.takes(kind) for kind in (bool, int, float, str))
    and key.path not in ("evaluation.consensus_threshold", "store.url")
]


@given(st.data())
def test_overrides_round_trip(data: st.DataObject) -> None:
    """Whatever is set by an override is the value, says so, and leaves all else alone."""
    key = data.draw(st.sampled_from(FREE))
    value = data.draw(_values(key))
    resolved = load_config(None, [f"{key.path}={json.dumps(value, ensure_ascii=False)}"])
    for path, found, source in resolved.rows():
        if path == key.path:
            assert (found, source) == (value, "--set")
        else:
            assert source == "default"


@given(st.text())
def test_no_override_breaks_the_loader(text: str) -> None:
    for override in (text, f"training.method={text}", f"{text}=1"):
        try:
            load_config(None, [override])
        except ConfigError as error:
            assert str(error)


def test_secrets_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert secret("HF_TOKEN") is None
    monkeypatch.setenv("HF_TOKEN", "abc")
    assert secret("HF_TOKEN") == "abc"
    with pytest.raises(ConfigError, match="HOME is no secret"):
        secret("HOME")
    assert "INSTAR_API_KEY" in SECRETS


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_key(host: str) -> None:
    assert is_loopback(host)
    check_bind(host, has_keys=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "10.0.0.1", ""])
def test_any_other_address_needs_one(host: str) -> None:
    with pytest.raises(ConfigError, match="instar keys create --owner NAME"):
        check_bind(host, has_keys=False)
    check_bind(host, has_keys=True)
