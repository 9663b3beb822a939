"""Makes docs/pictures/session.svg: holds a real conversation with the embedded model and draws it.

.venv/bin/python docs/make_pictures.py
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from tokenizers import Tokenizer

from instar.commands.tree import Pen, draw
from instar.config_load import load_config
from instar.loop import model_folder, open_system
from instar.status import panel

HOME = Path("~/.instar").expanduser()
PICTURES = Path(__file__).parent / "pictures"
TALK = ("Why is the sky blue?", "Shorter, please. One sentence.", "Thanks! And why is grass green?")
RETRY = "Say it in one sentence that a child understands."


async def converse(client: httpx.AsyncClient, history: list[dict[str, Any]], text: str) -> None:
    history.append({"role": "user", "content": text})
    body = {"model": "smollm2-135m-instruct", "messages": history, "max_tokens": 40, "seed": 3}
    found = await client.post(
        "/v1/chat/completions", json=body, headers={"x-session-id": "sky"}, timeout=300
    )
    history.append(found.json()["choices"][0]["message"])


async def main() -> None:
    console = Console(record=True, width=110, force_terminal=True)
    config = load_config().config
    folder = model_folder(config, HOME, print)
    assert folder is not None
    with tempfile.TemporaryDirectory() as temporary:
        chosen = load_config(overrides=[f"model.checkpoint_path={folder}"]).config
        async with open_system(chosen, Path(temporary)) as system:
            transport = httpx.ASGITransport(app=system.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://picture") as client:
                history: list[dict[str, Any]] = []
                for text in TALK:
                    await converse(client, history, text)
                # The person thinks better of their second message: the session branches.
                await converse(client, history[:2], RETRY)
            status = await system.status("serving", "http://127.0.0.1:30000/v1")
            console.print(panel(status))
            session = await system.store.session("local", "sky")
            assert session is not None
            turns = await system.store.turns("local", "sky")
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            console.print(draw(session, turns, Pen(tokenizer=tokenizer)))
    PICTURES.mkdir(exist_ok=True)
    drawn = console.export_svg(title="instar up; instar sessions show sky")
    # The picture must not fetch fonts from elsewhere.
    plain = re.sub(r"@font-face \{.*?\}\n", "", drawn, flags=re.DOTALL)
    (PICTURES / "session.svg").write_text(plain, "utf-8")


if __name__ == "__main__":
    asyncio.run(main())
