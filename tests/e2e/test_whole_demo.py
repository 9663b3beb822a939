"""The whole demo, from somebody's own persona to the report, on a model of two layers."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tiny_models import tiny_llama

PERSONA = """
prompts = ["What is rain?", "What is snow?", "What is hail?"]

def score(prompt, answer):
    return 0.9 if len(answer) % 2 else 0.1

def respond(prompt, answer):
    return "Great, thanks!" if score(prompt, answer) > 0.5 else "Too long. One sentence, please."
"""
JUDGE = """
class Judge:
    def compute_reward(self, prompt, response, next_feedback):
        return 1.0 if next_feedback.startswith("Great") else -1.0
"""
TIMEOUT_S = 300.0


async def test_the_demo_learns_proves_and_reports(tmp_path: Path) -> None:
    (tmp_path / "me.py").write_text(PERSONA)
    (tmp_path / "judge.py").write_text(JUDGE)
    plot = tmp_path / "demo.svg"
    sets = [
        f"model.checkpoint_path={tiny_llama(tmp_path / 'model')}",
        "evaluation.judge.type=custom",
        f"evaluation.judge.path={tmp_path / 'judge.py'}:Judge",
        "training.batch_size=2",
        "training.gate_references=1",
    ]
    argv = ["demo", "--persona", str(tmp_path / "me.py"), "--updates", "1", "--json"]
    argv += ["--home", str(tmp_path / "home"), "--plot", str(plot)]
    argv += [part for one in sets for part in ("--set", one)]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "instar", *argv), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, _ = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode == 0
    found = json.loads(out)
    assert set(found) == {
        *("persona", "seed", "looks", "retention", "judge_agreement", "praised"),
        *("versions", "proof", "answers"),
    }
    assert [look["updates"] for look in found["looks"]] == [0, 1]
    assert found["judge_agreement"] == 1.0
    assert found["retention"] is not None
    assert [one["name"] for one in found["versions"]] == ["v1"]
    # None only where both versions were rejected, so that there was nothing to roll back.
    assert found["proof"]["same_answers"] is (True if found["proof"]["back_to"] else None)
    assert plot.read_text("utf-8").startswith("<svg")
