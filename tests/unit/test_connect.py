"""`instar connect`: what people wrote stays, twice is once, and --remove undoes exactly."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from instar.cli import app
from instar.connect import CLIENTS
from instar.connect.json_text import get, prune, put, put_item, take, take_item
from instar.errors import ConfigError

OPENCLAW = """\
// my OpenClaw
{
  agents: { defaults: { workspace: '~/ws', model: { primary: "x/y" } } }, // main
  "models": {
    /* mine */
    "providers": {
      "x": { "baseUrl": "http://x/v1" },
    },
  },
  "plugins": { "allow": ["telegram"], "load": { "paths": ["/own"] } },
}
"""


class Connect:
    """Runs the command on a client's folder."""

    def __init__(self, tmp_path: Path) -> None:
        self.home = tmp_path / "home"
        self.folder = tmp_path / "client"
        self.folder.mkdir()

    def __call__(self, client: str, *options: str, code: int = 0, answer: str = "") -> Result:
        yes = [] if answer else ["--yes"]
        command = ["connect", client, "--home", str(self.home), "--dir", str(self.folder), *yes]
        result = CliRunner().invoke(app, [*command, *options], input=answer)
        assert result.exit_code == code, result.output
        return result

    def files(self) -> dict[str, bytes]:
        found = (one for one in self.folder.rglob("*") if one.is_file())
        return {str(one.relative_to(self.folder)): one.read_bytes() for one in found}

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(text, "utf-8")
        return file


@pytest.fixture
def connect(tmp_path: Path) -> Connect:
    return Connect(tmp_path)


def plain(text: str) -> Any:
    """Commented JSON as this repository can read it: good enough for these texts."""
    lines = [line.split(" //")[0] for line in text.splitlines() if not line.startswith("//")]
    return yaml.safe_load("\n".join(lines).replace("/* mine */", ""))


def test_openclaw_gets_a_provider_and_the_plugin(connect: Connect) -> None:
    file = connect.write("openclaw.json", OPENCLAW)
    shown = connect("openclaw", "--url", "http://h:1/v1", "--key", "k", "--context", "9000").output
    assert '+      "instar": {' in shown and "openclaw models set instar/" in shown
    text = file.read_text("utf-8")
    for kept in ("// my OpenClaw", "}, // main", "/* mine */", "workspace: '~/ws'"):
        assert kept in text
    config = plain(text)
    provider = config["models"]["providers"]["instar"]
    assert (provider["baseUrl"], provider["apiKey"]) == ("http://h:1/v1", "k")
    assert provider["models"][0]["contextWindow"] == 9000
    assert provider["models"][0]["compat"] == {"sendSessionAffinityHeaders": True}
    plugin = connect.folder / "instar" / "rl-training-headers"
    assert config["plugins"]["load"]["paths"] == [str(plugin), "/own"]
    assert config["plugins"]["allow"] == ["rl-training-headers", "telegram"]
    entry = config["plugins"]["entries"]["rl-training-headers"]
    assert entry["config"]["rollout_endpoint"] == "http://h:1/v1"
    source = Path(__file__).parents[2] / "extensions" / "rl-training-headers"
    installed = {str(one.relative_to(plugin)) for one in plugin.rglob("*") if one.is_file()}
    assert installed == {
        *("index.js", "package.json", "openclaw.plugin.json", "lib/settings.js", "lib/turns.js")
    }
    assert all((plugin / name).read_text() == (source / name).read_text() for name in installed)


WRITERS = {
    "openclaw": ("openclaw.json", OPENCLAW),
    "opencode": ("opencode.jsonc", '{\n  // mine\n  "theme": "x",\n}\n'),
    "llm": ("extra-openai-models.yaml", "# mine\n- model_id: a\n  model_name: b"),
    "codex": ("config.toml", '# mine\nmodel = "x"\n'),
}


@pytest.mark.parametrize("client", WRITERS)
@pytest.mark.parametrize("existing", [True, False])
def test_remove_undoes_exactly(connect: Connect, client: str, existing: bool) -> None:
    if existing:
        connect.write(*WRITERS[client])
    before = connect.files()
    connect(client)
    once = connect.files()
    assert once != before
    connect(client)
    assert connect.files() == once, "twice is once"
    connect(client, "--context", "5000", "--url", "http://elsewhere:1")
    told = connect(client, "--remove").output
    assert ("openclaw models set" in told) is (client == "openclaw"), "it cannot undo that choice"
    assert connect.files() == before
    assert [one for one in connect.folder.rglob("*") if one.is_dir()] == []
    assert "Found nothing" in connect(client, "--remove").output


@pytest.mark.parametrize("client", ["openclaw", "opencode", "llm"])
def test_edits_since_then_are_kept(connect: Connect, client: str) -> None:
    name, text = WRITERS[client]
    file = connect.write(name, text)
    connect(client)
    file.write_text(file.read_text().replace("mine", "edited"))
    connect(client, "--remove")
    assert file.read_text().rstrip() == text.replace("mine", "edited").rstrip()


def test_what_was_empty_before_is_still_there(connect: Connect) -> None:
    text = '{"plugins": {"load": {"paths": []}}, "models": {}}'
    file = connect.write("openclaw.json", text)
    connect("openclaw")
    connect("openclaw", "--remove")
    assert file.read_text() == text


def test_a_backup_is_kept_and_nothing_is_written_unasked(connect: Connect) -> None:
    file = connect.write("openclaw.json", OPENCLAW)
    file.chmod(0o640)
    before = connect.files()
    shown = connect("openclaw", answer="n\n", code=1)
    assert "Write this?" in shown.output and connect.files() == before
    diffs = json.loads(connect("openclaw", "--json").stdout)["diffs"]
    assert any("+++" in one for one in diffs) and connect.files() == before
    connect("openclaw", answer="y\n")
    assert connect.files()["openclaw.json.before-instar"] == OPENCLAW.encode()
    modes = {one.stat().st_mode & 0o777 for one in connect.folder.glob("openclaw.json*")}
    assert modes == {0o640}


def test_a_config_that_is_a_link_stays_one(connect: Connect, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.json"
    real.write_text("{}\n")
    link = connect.folder / "openclaw.json"
    link.symlink_to(real)
    connect("openclaw")
    assert link.is_symlink() and "instar" in real.read_text()
    connect("openclaw", "--remove")
    assert link.is_symlink() and real.read_text() == "{}\n"


def test_codex_gets_a_profile_of_its_own(connect: Connect) -> None:
    connect.write("config.toml", '# mine\nmodel = "x"\n')
    connect("codex", "--url", "http://h:1", "--key", 'k"1')
    profile = tomllib.loads((connect.folder / "instar.config.toml").read_text())
    provider = profile["model_providers"][profile["model_provider"]]
    assert (provider["base_url"], provider["wire_api"]) == ("http://h:1/v1", "responses")
    assert provider["experimental_bearer_token"] == 'k"1'
    assert (connect.folder / "config.toml").read_text() == '# mine\nmodel = "x"\n'


def test_a_profile_that_somebody_else_wrote_comes_back(connect: Connect) -> None:
    file = connect.write("instar.config.toml", 'model = "theirs"\n')
    connect("codex")
    connect("codex", "--remove")
    assert connect.files() == {file.name: b'model = "theirs"\n'}


def test_llm_gets_one_more_model(connect: Connect) -> None:
    file = connect.write(*WRITERS["llm"])
    connect("llm")
    assert [one["model_id"] for one in yaml.safe_load(file.read_text())] == ["a", "instar"]


def test_opencode_gets_a_provider(connect: Connect) -> None:
    connect("opencode", "--context", "9000")
    config = json.loads((connect.folder / "opencode.json").read_text())
    (model,) = config["provider"]["instar"]["models"].values()
    assert model["limit"] == {"context": 9000, "output": 1024}


@pytest.mark.parametrize("engine", ["fake", "vllm"])
@pytest.mark.parametrize("sees", [True, False])
def test_clients_are_told_whether_the_model_sees(
    connect: Connect, tmp_path: Path, engine: str, sees: bool
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    vision = {"vision_config": {}} if sees and engine == "vllm" else {}
    (model / "config.json").write_text(json.dumps(vision))
    sets = ["--set", f"engine.type={engine}", "--set", f"model.checkpoint_path={model}"]
    sets += ["--set", f"engine.sees={str(sees).lower()}"] if engine == "fake" else []
    connect("opencode", *sets)
    connect("openclaw", *sets)
    config = json.loads((connect.folder / "opencode.json").read_text())
    (mine,) = config["provider"]["instar"]["models"].values()
    assert mine.get("attachment", False) is sees
    assert mine.get("modalities", {}).get("input", ["text"]) == ["text", "image"][: 1 + sees]
    config = json.loads((connect.folder / "openclaw.json").read_text())
    (mine,) = config["models"]["providers"]["instar"]["models"]
    assert mine["input"] == ["text", "image"][: 1 + sees]


@pytest.mark.parametrize("client", ["claude-code", "aider", "litellm", "openai"])
def test_lines_to_copy(connect: Connect, client: str) -> None:
    shown = connect(client, "--url", "http://h:1/v1", "--key", "k-9").output
    assert "http://h:1" in shown and "k-9" in shown and "smollm2-135m-instruct" in shown
    assert ("http://h:1/v1" in shown) is (client != "claude-code"), "it adds /v1 by itself"
    assert connect.files() == {}
    assert "nothing" in connect(client, "--remove").output


def test_all_clients_are_listed(connect: Connect) -> None:
    shown = CliRunner().invoke(app, ["connect"]).output
    assert all(name in shown for name in CLIENTS)
    assert (
        json.loads(CliRunner().invoke(app, ["connect", "--json"]).output).keys() == CLIENTS.keys()
    )


def test_what_cannot_be_done_is_said(connect: Connect) -> None:
    assert "known are openclaw" in connect("emacs", code=2).stderr
    connect.write("openclaw.json", '{"models": [1]}')
    assert "found no object at models" in connect("openclaw", code=2).stderr
    connect.write("openclaw.json", '{"models": {')
    assert "line 1: found 'the end'" in connect("openclaw", code=2).stderr
    connect.write("openclaw.json", '{"plugins": {"load": {"paths": "x"}}}')
    assert "found no array at plugins.load.paths" in connect("openclaw", code=2).stderr
    connect.folder = connect.folder / "no"
    assert "found no OpenClaw" in connect("openclaw", code=2).stderr


# The text of a config.


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("", ["a"], '{\n  "a": 1\n}\n'),
        ("{}", ["a", "b"], '{\n  "a": {\n    "b": 1\n  }\n}'),
        ('{"x":2}', ["a"], '{"a": 1,"x":2}'),
        ("{ // mine\n}", ["a"], '{ // mine\n  "a": 1\n}'),
        ("{\n\tx: 2, // two\n}", ["a"], '{\n\t"a": 1,\n\tx: 2, // two\n}'),
        ("{a: {b: 2}, c: [1,]}", ["a", "b"], "{a: {b: 1}, c: [1,]}"),
        ("{'a' : {/* b: 2 */}}", ["a", "b"], "{'a' : {\n  \"b\": 1\n/* b: 2 */}}"),
        ('{"a//b": "/* */ \\" {", c: 0x1f}', ["c"], '{"a//b": "/* */ \\" {", c: 1}'),
    ],
)
def test_a_member_is_put_in(text: str, path: list[str], expected: str) -> None:
    assert put(text, path, 1) == expected
    assert put(expected, path, 1) == expected


MEMBERS = st.dictionaries(st.sampled_from("abcd"), st.integers() | st.text(max_size=3), max_size=3)
OBJECTS = st.recursive(
    MEMBERS, lambda one: st.dictionaries(st.sampled_from("abcd"), one, max_size=3)
)


@given(OBJECTS, st.sampled_from([None, 1, 2, "\t"]), st.lists(st.sampled_from("abcx"), min_size=1))
def test_putting_in_is_what_json_would_be_and_taking_out_undoes_it(
    value: dict[str, Any], indent: Any, path: list[str]
) -> None:
    text = json.dumps(value, indent=indent)
    inner: Any = value
    for name in path[:-1]:
        inner = inner.get(name, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or any(
        not isinstance(get_in(value, path[:n]), dict | None) for n in range(1, len(path))
    ):
        return
    done = put(text, path, {"new": [1]})
    expected = json.loads(text)
    set_in(expected, path, {"new": [1]})
    assert json.loads(done) == expected
    if path[-1] not in inner:
        undone = take(done, path)
        for n in range(len(path) - 1, 0, -1):
            if get_in(value, path[:n]) is None:
                undone = prune(undone, path[:n])
        assert json.loads(undone) == value
        assert undone == text or indent is None or "{}" in text or text == "{}"


def get_in(value: Any, path: list[str]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def set_in(value: Any, path: list[str], new: Any) -> None:
    for name in path[:-1]:
        value = value.setdefault(name, {})
    value[path[-1]] = new


def test_items_of_an_array() -> None:
    assert put_item("{}", ["a"], "x") == '{\n  "a": [\n    "x"\n  ]\n}'
    assert put_item('{"a": []}', ["a"], "x") == '{"a": [\n  "x"\n]}'
    two = put_item("{\n  a: [\n    'y', // why\n  ],\n}", ["a"], "x")
    assert two == "{\n  a: [\n    \"x\",\n    'y', // why\n  ],\n}"
    assert put_item(two, ["a"], "y") == two
    assert take_item(two, ["a"], "x") == "{\n  a: [\n    'y', // why\n  ],\n}"
    assert get(take_item(take_item(two, ["a"], "x"), ["a"], "y"), ["a"]) == []
    assert take_item("{}", ["a"], "x") == "{}" and take_item("", ["a"], "x") == ""


@pytest.mark.parametrize(
    "text", ["[]", "x", "{", "{a}", "{a 1}", "{a: }", "{a: 1 b: 2}", '{"a: 1}']
)
def test_what_is_no_config_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="line 1"):
        put(text, ["x"], 1)
