"""Owns what is measured of one request, from its arrival to its end. Changes nothing that it sees."""

import time

import structlog

from midstream.gateway.items import Ended, Item
from midstream.messages import FinishReason, ReasoningDelta, TextDelta, TokenCounts
from midstream.telemetry.metrics import Metrics

log = structlog.get_logger()


class RequestMetrics:
    """One request's clock. A request that did `begin` does `finish` once, however it ends."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._arrival_s = time.monotonic()
        self._ttft_s: float | None = None
        self._counts: list[TokenCounts] = []
        self._reasons: list[FinishReason] = []

    def begin(self, *, n: int, max_tokens: int) -> None:
        """The engine has accepted it: from here on it counts."""
        self._metrics.request_n.observe(n)
        self._metrics.request_max_tokens.observe(max_tokens)

    def see(self, item: Item) -> None:
        if self._ttft_s is None and isinstance(item, TextDelta | ReasoningDelta):
            self._ttft_s = time.monotonic() - self._arrival_s
            self._metrics.ttft.observe(self._ttft_s)
        if isinstance(item, Ended):
            self._counts.append(item.counts)
            self._reasons.append(item.reason)

    def finish(self, *, failed: bool = False) -> None:
        metrics = self._metrics
        took_s = time.monotonic() - self._arrival_s
        metrics.e2e.observe(took_s)
        for reason in self._reasons:
            metrics.success.labels(reason.value).inc()
        if not self._reasons:
            metrics.success.labels((FinishReason.ERROR if failed else FinishReason.ABORT).value).inc()
        for counts in self._counts:
            metrics.prompt_tokens.inc(counts.prompt)
            metrics.generation_tokens.inc(counts.generated)
            metrics.injected_tokens.inc(counts.injected)
            metrics.computed_tokens.inc(counts.computed)
            metrics.request_prompt_tokens.observe(counts.prompt)
            metrics.request_generation_tokens.observe(counts.generated)
        log.info(
            "request_finished",
            reasons=[reason.value for reason in self._reasons] or ("error" if failed else "abort"),
            num_prompt_tokens=sum(counts.prompt for counts in self._counts),
            num_tokens=sum(counts.generated for counts in self._counts),
            ttft_ms=round(self._ttft_s * 1000) if self._ttft_s is not None else None,
            took_ms=round(took_s * 1000),
        )
