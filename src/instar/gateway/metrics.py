"""What /metrics and the status display show."""

from __future__ import annotations

import time
from collections import deque

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_LATENCY = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """Counters of one gateway, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        make = self.registry
        self.requests = Counter(
            "instar_requests_total", "Requests by outcome", ["route", "status"], registry=make
        )
        self.turns = Counter("instar_turns_total", "Turns recorded", ["kind"], registry=make)
        self.unrecorded = Counter(
            "instar_unrecorded_replies_total",
            "Replies that were not recorded, since their calls asked for that",
            registry=make,
        )
        self.stitched = Counter(
            "instar_stitched_total",
            "Turns by how they hang on their parent",
            ["how"],
            registry=make,
        )
        self.sampled = Counter("instar_sampled_tokens_total", "Tokens sampled", registry=make)
        self.prompted = Counter("instar_prompt_tokens_total", "Prompt tokens", registry=make)
        self.cached = Counter(
            "instar_cached_tokens_total", "Prompt tokens taken from a cache", registry=make
        )
        self.undurable = Counter(
            "instar_undurable_turns_total",
            "Turns answered before they could be written to the store",
            registry=make,
        )
        self.lost = Gauge("instar_lost_turns", "Turns that the store never got", registry=make)
        self.lost_states = Gauge(
            "instar_lost_next_states", "What followed a turn and the store never got", registry=make
        )
        self.read_errors = Gauge(
            "instar_failed_lookups", "Histories that the store could not look up", registry=make
        )
        self.backlog = Gauge("instar_backlog_turns", "Turns waiting for the store", registry=make)
        self.engine_errors = Counter("instar_engine_errors_total", "Engine failures", registry=make)
        self.load_failures = Gauge(
            "instar_version_load_failures", "Versions that could not be loaded", registry=make
        )
        self.running = Gauge("instar_requests_in_progress", "Requests in progress", registry=make)
        self.sessions = Gauge("instar_sessions_in_memory", "Sessions in memory", registry=make)
        self.first_token = Histogram(
            "instar_first_token_seconds", "Time to first token", buckets=_LATENCY, registry=make
        )
        self.rate = Rate()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Rate:
    """Tokens a second over the last few seconds. Counting is one addition, no more."""

    def __init__(self, window_s: float = 5.0) -> None:
        self._window = window_s
        self._seen: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])
        self.total = 0

    def add(self, count: int) -> None:
        self.total += count

    def value(self) -> float:
        now = time.monotonic()
        while len(self._seen) > 1 and self._seen[1][0] <= now - self._window:
            self._seen.popleft()
        at, count = self._seen[0]
        self._seen.append((now, self.total))
        return (self.total - count) / max(now - at, 0.5)
