"""Metrics: vLLM's names, and the right values right after known requests."""

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from midstream.messages import EngineStats
from midstream.modelfile.tokenizer import Tokenizer
from midstream.telemetry.metrics import Metrics
from tests.gateway.serving import COMPLETE, Serving, completion_body, serving, wait_for

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def served(tokenizer: Tokenizer) -> Iterator[Serving]:
    with serving(tokenizer) as served:
        yield served


def scrape(served: Serving) -> Samples:
    """What Prometheus reads."""
    response = served.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(response.text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"midstream:{name}", frozenset(labels.items())]


# https://docs.vllm.ai/en/latest/usage/metrics.html, with our prefix.
VLLM_NAMES = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_count",
    "e2e_request_latency_seconds_count",
    "request_prompt_tokens_count",
    "request_generation_tokens_count",
    "request_params_max_tokens_count",
    "request_params_n_count",
]


@pytest.mark.parametrize("name", VLLM_NAMES)
def test_a_dashboard_for_vllm_finds_its_names(name: str) -> None:
    registry = Metrics().registry
    assert registry.get_sample_value(f"midstream:{name}") == 0


def test_requests_and_tokens_are_counted(served: Serving) -> None:
    usages = [served.chat().json()["usage"], served.chat("long", max_tokens=7, n=2).json()["usage"]]
    usages.append(served.post(COMPLETE, completion_body(stream=False)).json()["usage"])
    samples = scrape(served)
    assert value(samples, "request_success_total", finished_reason="stop") == 2
    assert value(samples, "request_success_total", finished_reason="length") == 2
    num_prompt = usages[0]["prompt_tokens"] + 2 * usages[1]["prompt_tokens"] + usages[2]["prompt_tokens"]
    assert value(samples, "prompt_tokens_total") == num_prompt
    assert value(samples, "generation_tokens_total") == sum(usage["completion_tokens"] for usage in usages)
    assert value(samples, "computed_tokens_total") == sum(usage["computed_tokens"] for usage in usages)
    assert value(samples, "e2e_request_latency_seconds_count") == 3
    assert value(samples, "time_to_first_token_seconds_count") == 3
    assert value(samples, "request_params_n_sum") == 1 + 2 + 1
    assert value(samples, "request_params_max_tokens_sum") == 7
    # Drafts that were right come together, as one output.
    num_together = value(samples, "spec_decode_num_accepted_tokens_total")
    num_gaps = sum(usage["completion_tokens"] for usage in usages) - 4 - num_together
    assert value(samples, "inter_token_latency_seconds_count") == num_gaps


def test_the_gauges_show_what_runs_and_fall_back(served: Serving) -> None:
    served.model.shut()
    listeners = [served.listen() for _ in range(2)]
    wait_for(lambda: served.num_open == 2)
    served.model.open()
    for listener in listeners:
        listener.join()
    served.tools.shut()
    parked = served.listen("server", server_tools="all")
    wait_for(lambda: served.metric("num_requests_parked") == 1)
    samples = scrape(served)
    assert value(samples, "num_requests_running") == 0
    assert 0 < value(samples, "kv_cache_usage_perc") < 1
    served.tools.open()
    parked.join()
    samples = scrape(served)
    for name in ("num_requests_running", "num_requests_waiting", "num_requests_parked", "kv_cache_usage_perc"):
        assert value(samples, name) == 0


def test_the_prefix_cache_counts_its_hits(served: Serving) -> None:
    served.chat()
    usage = served.chat().json()["usage"]
    samples = scrape(served)
    assert value(samples, "prefix_cache_queries_total") == 2 * usage["prompt_tokens"]
    assert value(samples, "prefix_cache_hits_total") == usage["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_tools_way_is_counted(served: Serving) -> None:
    transcript = served.stream("server", server_tools="all", stream_options={"include_usage": True})
    assert transcript.usage is not None
    samples = scrape(served)
    for name in ("routed", "ready", "dispatched"):
        assert value(samples, f"tool_calls_{name}_total", tool="flight_status") == 1
    assert value(samples, "tool_calls_finished_total", tool="flight_status", outcome="done") == 1
    assert value(samples, "injected_tokens_total") == transcript.usage["injected_tokens"] > 0
    assert value(samples, "tool_time_to_result_seconds_count", tool="flight_status") == 1
    for name in ("tool_passes_to_route", "tool_passes_to_dispatch", "tool_overlap_seconds"):
        assert value(samples, f"{name}_count") == 1
    assert value(samples, "tool_dispatch_overhead_seconds_count") == 1
    assert 0 < value(samples, "tool_dispatch_overhead_seconds_sum") < 1
    to_route, to_dispatch = (value(samples, f"tool_passes_to_{what}_sum") for what in ("route", "dispatch"))
    assert 0 < to_route < to_dispatch <= transcript.usage["completion_tokens"]


def test_a_client_that_leaves_and_a_failure_have_reasons_of_their_own(served: Serving) -> None:
    served.model.shut()
    listener = served.listen("long")
    wait_for(lambda: served.num_open == 1)
    served.server.loop.call_soon_threadsafe(served.server.gateway.services.engine.end_all, "ended")
    listener.join()
    served.model.open()
    served.step_s = 0.005
    with served.http.stream("POST", COMPLETE, json=completion_body("long", stream=True)) as response:
        next(response.iter_raw())
    wait_for(served.is_at_rest)
    wait_for(lambda: served.metric("e2e_request_latency_seconds_count") == 2)
    samples = scrape(served)
    assert value(samples, "request_success_total", finished_reason="error") == 1
    assert value(samples, "request_success_total", finished_reason="abort") == 1


def test_refused_requests_count_nowhere(served: Serving) -> None:
    before = scrape(served)
    served.chat(n=0)
    served.chat(model="nope")
    assert scrape(served) == before


def test_counters_go_on_when_a_new_engine_counts_from_nought() -> None:
    metrics = Metrics()
    stats = EngineStats(1, 0, 0, 10, 5, 100, 40, 2, 30, 20)
    metrics.observe_engine(stats)
    assert metrics.registry.get_sample_value("midstream:kv_cache_usage_perc") == 0.5
    metrics.forget_engine()
    assert metrics.registry.get_sample_value("midstream:num_requests_running") == 0
    metrics.observe_engine(EngineStats(0, 0, 0, 10, 10, 30, 10, 0, 5, 4))
    assert metrics.registry.get_sample_value("midstream:prefix_cache_queries_total") == 130
    assert metrics.registry.get_sample_value("midstream:prefix_cache_hits_total") == 50
    assert metrics.registry.get_sample_value("midstream:num_preemptions_total") == 2


def test_two_servers_of_one_process_do_not_meet() -> None:
    one, other = Metrics(), Metrics()
    one.prompt_tokens.inc(5)
    assert other.registry.get_sample_value("midstream:prompt_tokens_total") == 0
