"""A cheap load generator: HTTP/1.1 over raw asyncio streams, so that it is not what is measured.

    results = run(url, bodies, concurrency=64, processes=1)

Each worker keeps one connection and sends one body after the other. A result says when the first
and the last bytes of the reply's body came and how many tokens the reply's usage counted.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')
_KEEP = 4096
"""Bytes of a reply's end that are kept: usage stands there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One request, in seconds since it was sent."""

    status: int
    first: float
    last: float
    gaps: tuple[float, ...]
    """Between two arrivals of body bytes."""
    tokens: int


def run(
    url: str,
    bodies: Sequence[bytes],
    *,
    concurrency: int,
    processes: int = 1,
    key: str = "bench",
    spread_s: float = 0.0,
) -> tuple[list[Result], float]:
    """Send all bodies; give the results and how long it took.

    With `spread_s`, clients begin at different times within so many seconds: people do not all
    press a key in the same instant.
    """
    if processes == 1:
        return asyncio.run(_run(url, list(bodies), concurrency, key, spread_s))
    parts = [list(bodies[n::processes]) for n in range(processes)]
    start = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        jobs = [(url, part, max(1, concurrency // processes), key) for part in parts]
        found = pool.starmap(_run_part, jobs)
    spent = max(seconds for _, seconds in found) if found else time.perf_counter() - start
    return [result for results, _ in found for result in results], spent


def _run_part(
    url: str, bodies: list[bytes], concurrency: int, key: str
) -> tuple[list[Result], float]:
    return asyncio.run(_run(url, bodies, concurrency, key))


async def _run(
    url: str, bodies: list[bytes], concurrency: int, key: str, spread_s: float = 0.0
) -> tuple[list[Result], float]:
    results: list[Result] = []
    waiting = iter(bodies)
    count = min(concurrency, len(bodies))

    async def worker(number: int) -> None:
        await asyncio.sleep(spread_s * number / count)
        connection = await _Connection.open(url, key)
        for body in waiting:
            results.append(await connection.post(body))
        connection.close()

    start = time.perf_counter()
    await asyncio.gather(*(worker(number) for number in range(count)))
    return results, time.perf_counter() - start


class _Connection:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._head = head

    @classmethod
    async def open(cls, url: str, key: str) -> _Connection:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**22)
        head = (
            f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        )
        return cls(reader, writer, head.encode())

    async def post(self, body: bytes) -> Result:
        start = time.perf_counter()
        self._writer.write(self._head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        status, length = await self._read_head()
        times: list[float] = []
        tail = b""
        if length is not None:
            tail = await self._reader.readexactly(length)
            times.append(time.perf_counter())
        else:
            while size := int((await self._reader.readline()).split(b";")[0], 16):
                part = await self._reader.readexactly(size + 2)
                times.append(time.perf_counter())
                tail = (tail + part[:-2])[-_KEEP:]
            await self._reader.readline()
        counted = _TOKENS.findall(tail)
        return Result(
            status=status,
            first=times[0] - start,
            last=times[-1] - start,
            gaps=tuple(b - a for a, b in itertools.pairwise(times)),
            tokens=int(counted[-1]) if counted else 0,
        )

    async def _read_head(self) -> tuple[int, int | None]:
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        return int(head.split(b" ", 2)[1]), int(length[1]) if length else None

    def close(self) -> None:
        self._writer.close()


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed."""
    if len(values) < 2:
        return values[0] if values else float("nan")
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]
