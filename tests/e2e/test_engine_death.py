"""The engine's process dies in mid-stream: its client is told, and the next one is served."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import psutil
import pytest
from gate import Served, body, events, until, user

from instar.backends.embedded import embedded_model


@pytest.mark.model
async def test_a_killed_engine_comes_back(tmp_path: Path) -> None:
    folder = embedded_model(Path.home() / ".instar")
    sets = [f"model.checkpoint_path={folder}", "engine.cache_gb=0.1"]
    one = Served(tmp_path, sets)
    address = await one.start(timeout_s=120)
    try:
        async with httpx.AsyncClient(base_url=address.removesuffix("/v1"), timeout=120) as http:
            request = body("Tell a long story.", stream=True, max_tokens=1000, ignore_eos=True)
            async with http.stream("POST", "/v1/chat/completions", json=request) as answer:
                assert answer.status_code == 200
                lines = events(answer.aiter_lines())
                for _ in range(3):
                    await anext(lines)
                workers = psutil.Process(one.pid).children(recursive=True)
                assert workers
                for worker in workers:
                    worker.kill()
                at_once = await http.post("/v1/chat/completions", json=body("Hi.", no_train=True))
                assert at_once.status_code == 200, at_once.text
                rest = [line async for line in lines]
            assert "[DONE]" not in rest
            error = json.loads(rest[-1])["error"]
            assert (error["type"], error["code"]) == ("server_error", "engine_error")
            again = await http.post(
                "/v1/chat/completions", json=body([user("Say hi.")], max_tokens=4, session_id="s")
            )
            assert again.status_code == 200, again.text
            assert (await http.get("/readyz")).status_code == 200
            metrics = (await http.get("/metrics")).text
            assert "instar_engine_errors_total 1.0" in metrics
            await until(lambda: psutil.Process(one.pid).children(recursive=True))
        assert await one.stop(timeout_s=60) == 0
        turns = await one.export()
        answered = {turn["session"] for turn in turns}
        assert len(turns) == 2 and "s" in answered, "what failed is not the model's turn"
    finally:
        if one.process is not None:
            one.kill()
