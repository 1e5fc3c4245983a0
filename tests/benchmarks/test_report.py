"""Tests of what the benchmark makes of its values: statistics, goals and tables."""

import json

import pytest
from benchmarks.goals import GOALS, Goal
from benchmarks.processes import parse_syscalls
from benchmarks.report import as_json, as_markdown, number, show, table
from benchmarks.results import LLAMA, MIDSTREAM, Results, Spread, percentile, ratio

from benchmarks import names


def goal_named(what: str) -> Goal:
    return next(goal for goal in GOALS if goal.what == what)


@pytest.fixture
def results() -> Results:
    results = Results(facts={"date": "today", names.WEIGHT_BYTES: 1e8})
    workload = names.streams("Q4_0", 1)
    results.add(workload, MIDSTREAM, {names.DECODE: [300.0, 200.0, 250.0]})
    results.add(workload, LLAMA, {names.DECODE: [100.0, 100.0, 125.0]})
    results.add(names.KERNELS, MIDSTREAM, {names.BANDWIDTH: [50.0]})
    results.miss("auto", "no model\nfor it")
    return results


def test_a_ratio_is_that_of_the_medians_with_the_spread_of_the_pairs() -> None:
    assert ratio([300, 200, 250], [100, 100, 125]) == Spread(2.5, 2.0, 3.0)


@pytest.mark.parametrize(("ours", "theirs"), [([], [1.0]), ([1.0], []), ([1.0], [0.0])])
def test_there_is_no_ratio_to_nothing(ours: list[float], theirs: list[float]) -> None:
    assert ratio(ours, theirs) is None


@pytest.mark.parametrize(("percent", "value"), [(1, 1), (50, 50), (99, 99), (100, 100)])
def test_a_percentile_is_one_of_the_values(percent: float, value: float) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == value


def test_a_goal_is_judged_by_the_median(results: Results) -> None:
    goal = goal_named("decode, Q4_0, 1 stream")
    spread = goal.measure(results)
    assert spread == Spread(2.5, 2.0, 3.0)
    assert goal.is_met(2.0)
    assert not goal.is_met(1.99)


def test_the_bandwidth_share_is_bytes_read_over_bytes_to_be_had(results: Results) -> None:
    spread = goal_named("decode, 1 stream: share of the memory bandwidth, server").measure(results)
    assert spread is not None
    assert (spread.median, spread.least, spread.most) == pytest.approx((0.5, 0.4, 0.6))


def test_every_goal_has_a_row_also_when_nothing_was_measured() -> None:
    text = as_markdown(Results())
    assert all(goal.what in text for goal in GOALS)
    assert text.count("not measured") == len(GOALS)


def test_the_markdown_shows_goals_ratios_and_what_is_missing(results: Results) -> None:
    lines = [" ".join(line.split()) for line in as_markdown(results).splitlines()]
    assert "| decode, Q4_0, 1 stream | at least 2 x | 2.5 (2 to 3) | yes |" in lines
    peer = "| llama.cpp | 100 (100 to 125) | 2.5 (2 to 3) |"
    assert f"| Q4_0, 1 stream | decode, tokens/s | 250 (200 to 300) {peer}" in lines
    assert "| auto | no model for it |" in lines
    assert "- date: today" in lines


def test_the_json_has_every_value(results: Results) -> None:
    record = json.loads(json.dumps(as_json(results)))
    assert record["figures"][0]["values"] == [300.0, 200.0, 250.0]
    assert record["not_measured"] == [{"what": "auto", "why": "no model for it"}]
    assert record["goals"][0]["met"] is True


def test_a_failure_is_noted_once() -> None:
    results = Results()
    results.miss("x", "first")
    results.miss("x", "second")
    assert results.not_measured == [("x", "first")]


def test_a_table_is_aligned_and_its_cells_cannot_break_it() -> None:
    assert table(("a", "b"), [("x|y", 1)]) == "| a    | b |\n| ---- | - |\n| x\\|y | 1 |"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0"), (0.1234, "0.123"), (12.345, "12.3"), (99.96, "100"), (1234.5, "1,234")]
)
def test_numbers_have_three_digits(value: float, shown: str) -> None:
    assert number(value) == shown


def test_a_single_value_has_no_bracket() -> None:
    assert show(Spread(2.0, 2.0, 2.0)) == "2"


def test_system_calls_are_read_from_both_counters() -> None:
    assert parse_syscalls("perf", "# started\n\n144,,raw_syscalls:sys_enter,1,100.00,,\n") == 144
    strace = "100.00    0.000000           0       144        18 total\n"
    assert parse_syscalls("strace", strace) == 144
    assert parse_syscalls("strace", strace.replace("        18 ", " " * 10)) == 144
    with pytest.raises(ValueError, match="counted nothing"):
        parse_syscalls("perf", "<not counted>,,raw_syscalls:sys_enter,0,100.00,,")
