"""Owns the Prometheus metrics: vLLM's names under `midstream:`, and our own for tools. Measures nothing itself."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from midstream.messages import EngineStats

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_MICROSECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)
_PASSES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 64, 128)


class Metrics:
    """One set of metrics, in a registry of its own: two servers in one process do not meet."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # vLLM has none, and each would double a counter's lines
        self.registry = CollectorRegistry()
        self._define_engine()
        self._engine_totals = dict.fromkeys(self._engine_counters, 0)
        self._define_requests()
        self._define_tools()

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def observe_engine(self, stats: EngineStats) -> None:
        self.running.set(stats.num_running)
        self.waiting.set(stats.num_waiting)
        self.parked.set(stats.num_parked)
        self.kv_usage.set(1 - stats.num_free_blocks / stats.num_blocks)
        for name, counter in self._engine_counters.items():
            total = getattr(stats, name)
            # A new engine process counts from 0 again; the counters go on.
            counter.inc(max(0, total - self._engine_totals[name]))
            self._engine_totals[name] = total

    def forget_engine(self) -> None:
        """The engine process is gone: nothing runs and its totals begin anew."""
        self._engine_totals = dict.fromkeys(self._engine_totals, 0)
        for gauge in (self.running, self.waiting, self.parked, self.kv_usage):
            gauge.set(0)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"midstream:{name}", text, registry=self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"midstream:{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(f"midstream:{name}", text, labels, buckets=buckets, registry=self.registry)

    def _define_engine(self) -> None:
        self.running = self._gauge("num_requests_running", "Sequences in the running batch.")
        self.waiting = self._gauge("num_requests_waiting", "Sequences that wait for a place in the batch.")
        self.parked = self._gauge("num_requests_parked", "Sequences that wait for a tool's result.")
        self.kv_usage = self._gauge("kv_cache_usage_perc", "Share of the KV blocks in use; 1 is all.")
        self.prefix_queries = self._counter("prefix_cache_queries", "Tokens looked up in the prefix cache.")
        self.prefix_hits = self._counter("prefix_cache_hits", "Tokens whose KV the prefix cache had.")
        self.preemptions = self._counter("num_preemptions", "Times that a sequence lost its KV blocks.")
        self.drafted = self._counter("spec_decode_num_draft_tokens", "Tokens guessed and checked.")
        self.drafts_accepted = self._counter("spec_decode_num_accepted_tokens", "Guessed tokens that were right.")
        self.parked_kept = self._counter("parked_kept", "Times that a sequence parked and kept its KV blocks.")
        self.parked_released = self._counter("parked_released", "Times that a parked sequence gave its blocks back.")
        self._engine_counters = {
            "parked_kept": self.parked_kept,
            "parked_released": self.parked_released,
            "prefix_queries": self.prefix_queries,
            "prefix_hits": self.prefix_hits,
            "preemptions": self.preemptions,
            "drafted": self.drafted,
            "drafts_accepted": self.drafts_accepted,
        }
        self.engine_restarts = self._counter("engine_restarts", "Times that the engine process was started again.")

    def _define_requests(self) -> None:
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of finished requests.")
        self.generation_tokens = self._counter("generation_tokens", "Completion tokens of finished requests.")
        self.injected_tokens = self._counter("injected_tokens", "Tokens of tool results put into sequences.")
        self.computed_tokens = self._counter("computed_tokens", "Tokens that went through the model.")
        self.success = self._counter("request_success", "Requests by how they finished.", ("finished_reason",))
        self.ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token.", _SECONDS)
        self.inter_token = self._histogram("inter_token_latency_seconds", "Gap between two outputs.", _SECONDS)
        self.e2e = self._histogram("e2e_request_latency_seconds", "Arrival to end.", _SECONDS)
        self.request_prompt_tokens = self._histogram("request_prompt_tokens", "Prompt tokens a request.", _TOKENS)
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "Completion tokens a request.", _TOKENS
        )
        self.request_max_tokens = self._histogram("request_params_max_tokens", "max_tokens a request.", _TOKENS)
        self.request_n = self._histogram("request_params_n", "n a request.", (1, 2, 4, 8, 16))
        self.transcript_hits = self._counter("transcript_hits", "Turns continued on their exact tokens.")
        self.transcript_misses = self._counter("transcript_misses", "Later turns that had to be rendered anew.")

    def _define_tools(self) -> None:
        tool = ("tool",)
        self.tools_routed = self._counter("tool_calls_routed", "Server calls whose tool became known.", tool)
        self.tools_ready = self._counter("tool_calls_ready", "Server calls whose arguments were complete.", tool)
        self.tools_dispatched = self._counter("tool_calls_dispatched", "Runs started.", tool)
        self.tools_retried = self._counter("tool_calls_retried", "Runs tried again after a failure.", tool)
        self.tools_shared = self._counter("tool_calls_shared", "Calls answered by the run of an equal one.", tool)
        self.tools_finished = self._counter("tool_calls_finished", "Runs by outcome.", ("tool", "outcome"))
        self.passes_to_route = self._histogram(
            "tool_passes_to_route", "Forward passes from the turn's start to ROUTED.", _PASSES
        )
        self.passes_to_dispatch = self._histogram(
            "tool_passes_to_dispatch", "Forward passes from the turn's start to dispatch.", _PASSES
        )
        self.dispatch_overhead = self._histogram(
            "tool_dispatch_overhead_seconds",
            "From the sampling of the last token that a call needed to handing its frame to the transport.",
            _MICROSECONDS,
        )
        self.tool_overlap = self._histogram(
            "tool_overlap_seconds", "Time that a tool ran while its sequence was still decoding.", _SECONDS
        )
        self.time_to_result = self._histogram("tool_time_to_result_seconds", "Dispatch to result.", _SECONDS, tool)
