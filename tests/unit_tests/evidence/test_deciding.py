"""Who decides and what is said of it; each case left out of what foretells it."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from memalign_graph import Boolean, Categorical, Numeric
from memalign_graph.agreement import agree
from memalign_graph.evidence import deciding
from memalign_graph.evidence.cases import NEIGHBOURS, CaseTable
from memalign_graph.evidence.deciding import Bench, Said, fit_bench
from memalign_graph.evidence.estimates import Verdicts, Votes
from memalign_graph.evidence.places import places_of
from memalign_graph.evidence.weighing import MIN_CASES, fit_weighing
from memalign_graph.memory.view import MemoryView
from memalign_graph.scales import Scale
from tests.unit_tests.evidence.worlds import (
    SCALES,
    Item,
    bench_of,
    coin,
    decided,
    drop,
    normalised,
    put,
    right_in,
    row,
    table_of,
    values_of,
    view_of,
    world,
)


def cases(kind: str, count: int, *, seed: int = 1, judge: Any = coin) -> list[Item]:
    rng = random.Random(seed)  # noqa: S311 - nothing secret
    return world(SCALES[kind], count, rng, judge)


def odds(scale: Scale, rng: random.Random) -> dict[str, float]:
    shares = [rng.random() for _ in values_of(scale)]
    names = map(scale.render, values_of(scale))
    return {name: one / sum(shares) for name, one in zip(names, shares, strict=True)}


def reason(items: list[Item], scale: Scale, **fields: Any) -> str:
    table, bench = bench_of(items, scale)
    decision = decided(table, bench, replace(items[0], **fields))
    assert decision.evidence is not None
    return decision.evidence.reason


@pytest.mark.parametrize("kind", SCALES)
def test_an_empty_memory_leaves_the_verdict(kind: str) -> None:
    scale = SCALES[kind]
    table = CaseTable(MemoryView("made up"), scale)
    table.refresh()
    value = values_of(scale)[0]
    decision = fit_bench(table, scale, "evidence").decide(Said(value), [], "evidence")
    assert decision.value == value
    assert decision.confidence is None
    evidence = decision.evidence
    assert evidence is not None
    assert evidence.decided_by == "verdict"
    assert "memory has 0 cases with the judge's verdict" in evidence.reason
    assert (evidence.estimate, evidence.vote, evidence.neighbours) == (None, None, [])


@pytest.mark.parametrize("kind", SCALES)
def test_too_few_cases_are_not_weighed(kind: str) -> None:
    scale, items = SCALES[kind], cases(kind, MIN_CASES + 40)
    few = items[: MIN_CASES - 1]
    unjudged = [replace(one, verdict=None) for one in items[MIN_CASES:]]
    said = reason([*few, *unjudged], scale)
    assert said.startswith(f"The verdict decides: memory has {MIN_CASES - 1} cases")
    assert f"it takes {MIN_CASES}" in said
    assert "memory has 1 case with" in reason([*few[:1], *unjudged], scale, verdict=few[0].verdict)
    table, bench = bench_of([*few, *unjudged], scale)
    evidence = decided(table, bench, few[0]).evidence
    assert evidence is not None
    assert evidence.cases == MIN_CASES - 1
    assert len(evidence.neighbours) == NEIGHBOURS
    assert sum(one.weight for one in evidence.neighbours) == pytest.approx(1)
    table, bench = bench_of(items[:MIN_CASES], scale)
    assert bench.weighing is not None


@pytest.mark.parametrize("kind", SCALES)
def test_experts_that_always_say_the_same_are_not_weighed(kind: str) -> None:
    scale = SCALES[kind]
    value, other = values_of(scale)[:2]
    items = [replace(one, truth=value) for one in cases(kind, 20)]
    unjudged = [replace(one, truth=other, verdict=None) for one in cases(kind, 20, seed=2)]
    said = reason([*items, *unjudged], scale, verdict=other)
    assert "the experts gave all 20 cases in memory that have the judge's verdict the same" in said
    table, bench = bench_of([*items, *unjudged], scale)
    decision = decided(table, bench, replace(items[0], verdict=other))
    assert decision.value == other


@pytest.mark.parametrize("kind", SCALES)
def test_the_evidence_decides_where_it_is_better_and_says_so(kind: str) -> None:
    scale, items = SCALES[kind], cases(kind, 80)
    table, bench = bench_of(items, scale)
    new = Item(items[3].vector, items[3].truth, values_of(scale)[0])
    decision = decided(table, bench, new)
    evidence, weighing = decision.evidence, bench.weighing
    assert evidence is not None
    assert weighing is not None
    assert evidence.decided_by == "evidence"
    assert decision.value == evidence.estimate
    assert evidence.verdict == new.verdict
    assert evidence.reason.startswith("The evidence decides: on 80 cases in memory, each left out")
    assert f"{weighing.evidence_error:.3g}" in evidence.reason
    assert f"{weighing.verdict_error:.3g}" in evidence.reason
    assert weighing.evidence_error < weighing.verdict_error
    off = [
        abs(float(one.truth) - float(one.verdict or 0))
        if isinstance(scale, Numeric)
        else one.truth != one.verdict
        for one in items
    ]
    assert weighing.verdict_error == pytest.approx(np.mean(off))
    assert evidence.weights == weighing.weights
    assert evidence.cases == 80


def test_the_verdict_decides_where_evidence_is_no_better_and_both_are_told() -> None:
    scale, items = SCALES["boolean"], cases("boolean", 80, judge=right_in(1.0))
    table, bench = bench_of(items, scale)
    new = replace(items[3], verdict=not items[3].truth)
    decision = decided(table, bench, new)
    assert decision.value is new.verdict
    assert decision.evidence is not None
    assert decision.evidence.decided_by == "verdict"
    assert decision.evidence.estimate is not None
    assert "which is no better." in decision.evidence.reason
    assert "the judge's verdict 0," in decision.evidence.reason


def test_better_by_less_than_its_standard_error_is_no_better() -> None:
    scale, items = SCALES["boolean"], cases("boolean", 60, judge=right_in(1.0))
    _, bench = bench_of(items, scale)
    weighing = bench.weighing
    assert weighing is not None
    weighing.verdict_errors = np.repeat([1.0, 0.0], [2, 58])
    weighing.evidence_errors = np.repeat([0.0, 1.0, 0.0], [2, 1, 57])
    del weighing.is_better  # which was kept
    assert weighing.is_better is False
    assert "no more than chance may bring" in bench._reason()
    del weighing.is_better
    weighing.verdict_errors = np.repeat([1.0, 0.0], [6, 54])
    assert weighing.is_better is True


def test_without_an_embedding_the_verdict_decides_and_that_is_said() -> None:
    scale = SCALES["boolean"]
    _, bench = bench_of(cases("boolean", 60), scale)
    assert bench.uses_evidence
    decision = bench.decide(Said(True, {"true": 0.3, "false": 0.7}, "logprobs"), None, "evidence")
    assert decision.value is True
    assert decision.confidence == pytest.approx(0.3)
    assert decision.evidence is not None
    assert decision.evidence.decided_by == "verdict"
    assert decision.evidence.reason == deciding._UNKNOWN
    assert decision.evidence.neighbours == []


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("told", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("judge", [coin, right_in(1.0)], ids=["useless", "perfect"])
def test_probabilities_on_some(kind: str, told: float, judge: Any) -> None:
    scale = SCALES[kind]
    rng = random.Random(3)  # noqa: S311 - nothing secret
    items = [
        replace(one, probabilities=odds(scale, rng) if rng.random() < told else None)
        for one in cases(kind, 90, judge=judge)
    ]
    table, bench = bench_of(items, scale)
    for one in items[:6]:
        for probabilities in (None, odds(scale, rng), {"gone": 1.0}):
            for mode in ("evidence", "verdict"):
                used = bench if mode == "evidence" else fit_bench(table, scale, "verdict")
                decision = decided(table, used, replace(one, probabilities=probabilities), mode)
                check(decision, used, scale, mode)
    assert len(bench.agreed) == len(bench.confidences) == 90


def check(decision: Any, bench: Bench, scale: Scale, mode: str) -> None:
    known = decision.confidence is not None
    assert not known or 0 <= decision.confidence <= 1
    assert (decision.confidence_source is not None) == known
    assert decision.calibrated_on is None or (known and 20 <= decision.calibrated_on <= 90)
    assert (decision.evidence is not None) == (mode == "evidence")
    if bench.uses_evidence and known:
        assert decision.confidence_source == "evidence"
    if mode == "evidence":
        shares = decision.evidence.probabilities
        assert (shares is None) == isinstance(scale, Numeric)
        assert shares is None or sum(shares.values()) == pytest.approx(1)


def test_probabilities_are_weighed_where_they_tell_more() -> None:
    scale = Boolean()
    rng = random.Random(4)  # noqa: S311 - nothing secret
    items = []
    for at in range(120):
        truth = at % 2 == 0
        chance = min(max(rng.gauss(0.9 if truth else 0.6, 0.08), 0.01), 0.99)
        vector = normalised([rng.gauss(0, 1) for _ in range(8)])
        told = {"true": chance, "false": 1 - chance}
        items.append(Item(vector, truth, True, told))
    table, bench = bench_of(items[:80], scale)
    assert bench.weighing is not None
    assert set(bench.weighing.weights) == {"judge", "judge_probability", "neighbours", "intercept"}
    assert bench.uses_evidence
    wrong = [decided(table, bench, one).value != one.truth for one in items[80:]]
    assert np.mean(wrong) < 0.15


@pytest.mark.parametrize("kind", SCALES)
def test_a_case_does_not_vote_for_itself(kind: str) -> None:
    scale, items = SCALES[kind], cases(kind, 40)
    table = table_of(items, scale)
    judged = table.judged()
    near = table.near_judged(judged)
    own = [table._slots.of[one.key] for one in judged]
    assert not (near.slots == np.array(own)[:, None]).any()
    assert (np.diff(near.similarities, axis=1) <= 0).all()
    expected = np.array([[float(a.vector @ b.vector) for b in items] for a in items])
    np.fill_diagonal(expected, -2)
    nearest = -np.sort(-expected, axis=1)[:, :NEIGHBOURS]
    assert near.similarities == pytest.approx(nearest, abs=1e-5)


@pytest.mark.parametrize("kind", SCALES)
def test_an_outliers_own_label_does_not_reach_what_is_foretold_of_it(kind: str) -> None:
    """A case that is nobody's neighbour, with either label: what is foretold of it stays."""
    scale, items = SCALES[kind], cases(kind, 40, judge=right_in(0.7))
    low, *_, high = values_of(scale)
    foretold, kept = [], []
    for label in (low, high):
        labelled = [replace(items[0], truth=label, verdict=low), *items[1:]]
        table = table_of(labelled, scale)
        near = table.near_judged(table.judged())
        values = table.values(near)
        weights = np.where(near.slots == table._slots.of["k0000"], 0.0, 0.1)
        votes = Votes(weights / weights.sum(axis=1, keepdims=True), values)
        truth, said = table.numbers()
        verdicts = Verdicts.read(said)
        weighing = fit_weighing(scale, truth, verdicts, votes)
        assert weighing is not None
        left = weighing.left_out
        if left.shares is None:
            assert isinstance(scale, Numeric)
            foretold.append(float(left.numbers[0]) / (scale.maximum - scale.minimum))
        else:
            foretold.append(float(left.shares[0, 0]))
        kept.append(weighing.weights)
    assert kept[0] != kept[1]
    assert foretold[0] == pytest.approx(foretold[1], abs=0.017)


def test_the_judges_bias_is_that_on_the_other_cases() -> None:
    scale = SCALES["share"]
    rng = random.Random(8)  # noqa: S311 - nothing secret
    truths = [rng.random() for _ in range(14)]
    foretold = []
    for own in (0.0, 1.0):
        items = [
            Item(
                normalised([rng.gauss(0, 1) for _ in range(8)]),
                own if at == 0 else truth,
                min(max(truth + rng.gauss(0.0, 0.02), 0.0), 1.0),
            )
            for at, truth in enumerate(truths)
        ]
        truth = np.array([float(one.truth) for one in items])
        said = [[float(one.verdict or 0), np.nan] for one in items]
        weights = np.full((14, NEIGHBOURS), 1 / NEIGHBOURS)
        weighing = fit_weighing(
            scale, truth, Verdicts.read(np.array(said)), Votes(weights, np.full_like(weights, 0.5))
        )
        assert weighing is not None
        foretold.append(float(weighing.left_out.numbers[0]))
    assert foretold[0] == pytest.approx(foretold[1], abs=0.04)


@pytest.mark.parametrize("kind", SCALES)
def test_left_out_is_as_if_the_case_were_new(kind: str) -> None:
    """Against a memory without the case, which then is judged as a new one."""
    scale, items = SCALES[kind], cases(kind, 60, judge=right_in(0.7))
    view = view_of(items)
    table = CaseTable(view, scale)
    table.refresh()
    bench = fit_bench(table, scale, "evidence")
    assert bench.weighing is not None
    left, off = bench.weighing.left_out, []
    for at, item in list(enumerate(items))[::3]:
        drop(view, [f"e{at:04d}"])
        table.refresh()
        without = fit_bench(table, scale, "evidence")
        evidence = decided(table, without, item).evidence
        put(view, [row(at, item)], [item])
        table.refresh()
        assert evidence is not None
        if left.shares is None:
            assert isinstance(scale, Numeric)
            apart = abs(float(evidence.estimate or 0) - float(left.numbers[at]))
            off.append(apart / (scale.maximum - scale.minimum))
        else:
            assert evidence.probabilities is not None
            off += np.abs(
                np.array(list(evidence.probabilities.values())) - left.shares[at]
            ).tolist()
    assert np.median(off) < 0.01
    assert np.mean(off) < 0.03


@pytest.mark.parametrize(
    "scale",
    [
        Numeric(minimum=0, maximum=2 / 3),
        Numeric(minimum=-1e-7, maximum=1e-7),
        Numeric(minimum=-1e9, maximum=1e9),
        Numeric(minimum=1 / 3, maximum=1 / 3 + 1e-3),
        Numeric(minimum=-3, maximum=3, integer=True),
    ],
)
def test_estimates_stay_on_the_scale(scale: Numeric) -> None:
    span = scale.maximum - scale.minimum
    rng = random.Random(5)  # noqa: S311 - nothing secret
    items = []
    for _ in range(60):
        share = rng.choice([0.0, 0.0, 1.0, 1.0, rng.random()])
        number = scale.minimum + share * span
        vector = normalised([1, share + rng.gauss(0, 0.02), 0.1])
        ends = min(max(number, scale.minimum), scale.maximum)
        truth = scale.validate_value(round(ends) if scale.integer else ends)
        items.append(Item(vector, truth, scale.validate_value(scale.maximum)))
    table, bench = bench_of(items[:40], scale)
    assert bench.uses_evidence
    for one in items[40:]:
        value = decided(table, bench, one).value
        assert scale.validate_value(value) == value
        assert type(value) is (int if scale.integer else float)
        assert abs(float(value) - float(one.truth)) < 0.35 * span
    assert bench.weighing is not None
    left = bench.weighing.left_out.numbers.tolist()
    assert all(scale.validate_value(one) == one for one in left)


def test_a_scale_of_more_choices_than_servers_tell() -> None:
    scale = Categorical(choices=tuple(f"c{at}" for at in range(25)))
    rng = random.Random(6)  # noqa: S311 - nothing secret
    items = world(scale, 150, rng, coin, clusters=5)
    table, bench = bench_of(items[:120], scale)
    assert bench.uses_evidence
    wrong = [decided(table, bench, one).value != one.truth for one in items[120:]]
    assert np.mean(wrong) < 0.4


@pytest.mark.parametrize("kind", SCALES)
def test_decisions_agree_as_values_do_everywhere(kind: str) -> None:
    scale = SCALES[kind]
    values = [*values_of(scale), *values_of(scale)[:1]]
    places = places_of(scale)
    for one in values:
        assert places.value(places.number(one)) == one
        assert type(places.value(places.number(one))) is type(one)
        got = np.array([places.number(one)] * len(values))
        expected = np.array([places.number(other) for other in values])
        same = deciding._agreeing(scale, got, expected)
        assert same.tolist() == [float(agree(scale, one, other)) for other in values]
