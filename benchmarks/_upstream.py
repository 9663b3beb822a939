"""A server that gives every chat request the same short reply at once: what proxies are put before.

python benchmarks/_upstream.py PORT
"""

from __future__ import annotations

import asyncio
import json
import re
import sys

REPLY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "smollm2-135m-instruct",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "well so now then"},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 100, "completion_tokens": 16, "total_tokens": 116},
}
BODY = json.dumps(REPLY).encode()
RESPONSE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)
) + BODY


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            if length:
                await reader.readexactly(int(length[1]))
            elif b"chunked" in head.lower():
                await reader.readuntil(b"0\r\n\r\n")
            writer.write(RESPONSE)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
