"""The default decision does no harm, in worlds where it could; and what counts as a case."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import Criterion, Example, Feedback, JudgeMemory, Numeric
from memalign_graph.evidence.cases import load_cases
from memalign_graph.evidence.comparison import blend_weight, is_better, judge_coefficient
from memalign_graph.evidence.confidence import RawVerdict
from memalign_graph.evidence.deciding import prepare_decision
from memalign_graph.evidence.threshold import Trust
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.memory_state import EpisodeRow
from memalign_graph.models import declare_small, judge_key, name_in_key
from memalign_graph.scales import Scale
from tests.builders import make_judgment
from tests.unit_tests.evidence.decision_worlds import (
    HELPED,
    SHARE,
    STARS,
    WORLDS,
    Rng,
    change,
    numbers,
    simulate,
    twins,
    unlike,
)
from tests.unit_tests.evidence.worlds import (
    SCALES,
    START,
    YES_NO,
    Item,
    decided,
    fact,
    model_of,
    normalised,
    view_of,
    word,
)
from tests.unit_tests.memory.support import hashed, learn, op

SEEDS = range(5)
_SURE = 1.645  # standard errors: one-sided, 95 %


def some_cases(count: int, seed: int = 1, **fields: Any) -> list[Item]:
    """Cases of their own, half of them bad, that the judge is right on."""
    rng: Rng = np.random.default_rng(seed)
    past, _ = unlike(1.0, 0.0)(rng, count, 0)
    return [replace(item, **fields) for item in past]


def memory_with(scale: Scale = YES_NO) -> JudgeMemory:
    criterion = Criterion(name="tone", instructions="Kind?", scale=scale)
    return JudgeMemory(InMemoryStore(), criterion, embeddings=hashed)


@pytest.mark.parametrize("name", WORLDS)
def test_by_default_neither_agreement_nor_what_is_caught_suffers(name: str) -> None:
    world = WORLDS[name]
    outcomes = simulate(world, world.counts[-1], SEEDS) + simulate(world, world.counts[0], SEEDS)
    for pairs in ([each.agreement for each in outcomes], [each.caught for each in outcomes]):
        before, after, error = change(pairs)
        assert after >= before - 0.02 - _SURE * error
        # A large loss in some memories alone is no chance.
        assert after >= before - 0.1


@pytest.mark.parametrize("name", HELPED)
def test_by_default_a_useless_judge_beside_good_neighbours_is_outvoted(name: str) -> None:
    world = HELPED[name]
    outcomes = [each for count in (40, 100) for each in simulate(world, count, SEEDS)]
    assert np.mean([each.decides for each in outcomes]) > 0.5
    before, after, _ = change([each.agreement for each in outcomes])
    assert after > before + 0.1


def test_each_class_counts_alike_and_none_may_lose() -> None:
    ones, classes, kinds = np.ones(30), np.repeat([0, 1], 15), np.arange(2)
    alone = np.arange(30)
    assert is_better(ones, classes, alone, kinds)
    assert not is_better(0 * ones, classes, alone, kinds)
    # A class that the evidence loses, however many others it wins.
    loses = np.where(np.arange(30) < 2, -1.0, 1.0)
    assert not is_better(loses, np.minimum(np.arange(30) // 3, 1), alone, kinds)
    loses_one_in_ten = np.repeat([1.0, 0.0, -1.0], [20, 9, 1])
    assert not is_better(loses_one_in_ten, np.repeat([0, 1], [20, 10]), alone, kinds)
    # Nor is anything known of a class without a case, or by one case in thirty wordings.
    rare = np.append(np.ones(3), np.zeros(27))
    assert not is_better(rare, np.zeros(30, int), alone, kinds)
    assert not is_better(ones, classes, classes, kinds)


def test_a_class_that_the_judge_never_judged_counts_against_the_evidence() -> None:
    """The judge tosses a coin on the other two, which neighbors tell."""
    rng, scale = np.random.default_rng(1), SCALES["choices"]
    past = []
    for at, topic in enumerate([0, 1] * 15 + [2] * 6):
        vector = normalised(3 * np.eye(16)[topic] + rng.normal(size=16))
        verdict = ("warm", "cold")[at // 2 % 2] if topic < 2 else None
        past.append(Item(vector, ("warm", "cold", "odd")[topic], verdict))
    assert model_of(past[:30], scale).decides("auto")
    assert not model_of(past, scale).decides("auto")


def test_a_case_unlike_all_others_is_left_to_the_verdict() -> None:
    world = HELPED["coin judge, neighbours .9"]
    past, new = world.make(np.random.default_rng([40, 0]), 40, 20)
    model = model_of(past)
    assert model.decides("auto")
    near = [decided(model, item, "auto").evidence for item in new]
    assert np.mean([each is not None and each.decided_by == "evidence" for each in near]) > 0.7
    for verdict in (True, False):
        strange = Item(normalised(-np.sum([item.vector for item in past], axis=0)), True, verdict)
        decision = decided(model, strange, "auto")
        assert decision.value is verdict
        assert decision.evidence is not None
        assert "as similar to this one" in decision.evidence.reason


def test_near_duplicates_are_too_few_cases() -> None:
    past, _ = twins(0.5, 12)(np.random.default_rng(2), 48, 0)
    model = model_of(past)
    assert len(set(model.regression.groups.tolist())) == 4
    assert model.leave_one_out is None
    assert not model.decides("evidence")


def test_cases_that_are_all_alike_are_one_decision_in_trust() -> None:
    [item] = some_cases(1)
    model = model_of([replace(item, truth=True, verdict=True)] * 45)
    assert model.trust(model.usual_kind("auto"), 0.9).decisions == 1
    assert not model.decides("evidence")


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("is_mixed", [True, False])
def test_each_judgment_of_a_case_that_experts_answered_is_a_decision(
    *, first: bool, is_mixed: bool
) -> None:
    """Four of ten runs of a call are rejected. The judge's verdict on the first may be another."""
    cases = some_cases(190) if is_mixed else some_cases(90, truth=True, verdict=True)
    *past, last = sorted(cases, key=lambda item: item.truth)
    verdicts, number = [first, *[True] * 9], len(past)
    runs = [replace(last, truth=at % 5 < 3, verdict=said) for at, said in enumerate(verdicts)]
    right = sum(item.truth is True for item in past)

    def trust(judgment_id: str) -> Trust:
        records = [word(at, item, min(at, number)) for at, item in enumerate([*past, *runs])]
        for at, record in enumerate(records[number:]):
            record["episode"]["judgment"]["id"] = judgment_id.format(at)
        model = model_of(view_of([*past, *runs], records))
        return model.trust("verdict", 0.9).verdicts["true"]

    one, each = trust("of all"), trust("of run {}")
    assert (one.decisions, one.agreement) == (right + first, 1)
    assert each.threshold is None
    assert each.decisions == right + 9 + first
    assert each.agreement == pytest.approx(1 - 4 / each.decisions)


@pytest.mark.parametrize("is_right", [True, False])
def test_a_judge_that_was_shown_an_answer_on_the_case_can_only_be_wrong(*, is_right: bool) -> None:
    """Its first verdicts are wrong, or an expert changes her mind about right ones."""
    first = some_cases(40, truth=not is_right, verdict=True)
    again = [replace(item, truth=False, verdict=not is_right) for item in first]
    records = [word(at, item, at % 40) for at, item in enumerate([*first, *again])]
    for at, record in enumerate(records):
        record["episode"]["judgment"]["id"] = f"j{at}"
    for at, record in enumerate(records[40:]):
        record["episode"]["judgment"]["episode_ids"] = [f"e{at:04d}"]
    trust = model_of(view_of([*first, *again], records)).trust("verdict", 0.75)
    assert {key: each.agreement for key, each in trust.verdicts.items()} == {
        "true": 0 if is_right else 0.5
    }


RIGHT, WRONG = (True, True), (True, False)
"""The judge's value and the expert's."""


@pytest.mark.parametrize(
    ("answers", "decisions"),
    [
        pytest.param([("ann", *RIGHT), ("ann", *WRONG, "shown")], [WRONG], id="changed mind"),
        pytest.param([("ann", None, True), ("bob", *WRONG, "shown")], [WRONG], id="label first"),
        pytest.param([("ann", *WRONG), ("ann", False, False, "So.")], [WRONG], id="learned"),
        pytest.param([("ann", *RIGHT), ("ann", False, True)], [RIGHT], id="same answer"),
        pytest.param([("ann", False, False), ("ann", *WRONG, "So.")], [WRONG], id="new comment"),
        pytest.param([("ann", *WRONG), ("ann", *RIGHT)], [RIGHT], id="corrected"),
        pytest.param([("ann", *RIGHT), ("bob", *RIGHT, "shown")], [RIGHT], id="shown and right"),
        pytest.param([("ann", None, True), ("bob", *RIGHT, "shown")], [], id="only told"),
        pytest.param(
            [("ann", *WRONG, "old"), ("ann", False, False, "So.")],
            [(False, False)],
            id="other judge",
        ),
    ],
)
def test_a_right_decision_on_a_recurring_example_hides_no_wrong_one(
    answers: list[Any], decisions: list[Any]
) -> None:
    memory, example = memory_with(), Example(inputs="a", outputs="b")
    for at, (author, verdict, value, *notes) in enumerate(answers):
        judgment = make_judgment(
            example.id,
            value=verdict is True,
            judge_key="old" if "old" in notes else "new",
            episode_ids=[each.id for each in memory.episodes()] if "shown" in notes else [],
        )
        feedback = Feedback(
            example=example,
            value=value,
            author=author,
            rationale="So." if "So." in notes else None,
            judgment=None if verdict is None else judgment,
            given_at=START + timedelta(minutes=at),
        )
        memory.remember(feedback)
    memory.trust()
    cases = load_cases(memory.access.view, YES_NO, "new")
    counted = cases[0].decisions
    assert [(each.verdict.value, each.value) for each in counted if each.verdict] == decisions


def test_on_numbers_a_verdict_that_is_near_hides_none_that_is_far() -> None:
    example = Example(inputs="a", outputs="b")
    memory = memory_with(Numeric(minimum=0, maximum=10))
    for verdict, comment in ((1.0, "Long."), (8.8, "Too long.")):
        judgment = make_judgment(example.id, value=verdict)
        memory.remember(Feedback(example=example, value=9, rationale=comment, judgment=judgment))
    [episode] = memory.episodes()
    assert episode.judgment is not None
    assert episode.judgment.value == 1.0


def test_verdicts_after_the_judge_was_told_the_value_are_not_compared_with_the_evidence() -> None:
    right, told = some_cases(60, seed=1), some_cases(60, seed=2)
    cases = right + [replace(item, verdict=not item.truth) for item in told]
    records = [word(at, item) for at, item in enumerate(cases)]
    for at, record in enumerate(records[60:], 60):
        record["episode"]["judgment"]["episode_ids"] = [f"e{at:04d}"]
    model = model_of(view_of(cases, records))
    assert model.leave_one_out is not None
    assert model.leave_one_out.baseline_error == 0
    assert model.leave_one_out.judge == pytest.approx(1, abs=0.3)
    evidence = decided(model_of(view_of(cases[60:], records[60:])), told[0], "auto").evidence
    assert evidence is not None
    assert "0 have the judge's own verdict" in evidence.reason


def test_verdict_with_a_guideline_from_its_own_case_does_not_count() -> None:
    memory = memory_with()
    examples = [Example(inputs=f"case {number}", outputs="a") for number in range(2)]
    answers = [Feedback(example=example, value=True, author="ann") for example in examples]
    memory.remember([answer.model_copy(update={"rationale": "So."}) for answer in answers])
    ids = {episode.example_id: episode.id for episode in memory.episodes()}
    first, second = (ids[example.id] for example in examples)
    learn(memory, op("add", first, text="Own"), op("add", first, second, text="Shared"))
    shown = [guideline.id for guideline in memory.guidelines()]
    for answer in answers:
        judgment = make_judgment(answer.example.id, guideline_ids=shown)
        memory.remember(answer.model_copy(update={"judgment": judgment}))
    memory.trust()
    cases = {case.example_id: case for case in load_cases(memory.access.view, YES_NO)}
    assert [cases[example.id].decision.verdict is None for example in examples] == [True, False]


def test_examples_with_one_text_are_cases_of_their_own() -> None:
    [item] = some_cases(1)
    first, second = word(0, item, case=0), word(1, replace(item, truth=not item.truth), case=0)
    second["episode"]["example_id"] = "x0001"
    view = view_of([item], [first])
    view.add([fact(view, said={"e0001": "e0001"})], {"e0001": EpisodeRow.of(second, "made up")})
    model = model_of(view)
    values = [(case.example_id, case.value) for case in model.cases]
    assert values == [("x0000", item.truth), ("x0001", not item.truth)]


def test_excluded_case_has_no_vote() -> None:
    memory = memory_with()
    examples = [Example(inputs=f"case {number}", outputs="a") for number in range(6)]
    memory.remember([Feedback(example=example, value=True) for example in examples])
    own = examples[0].id
    options: Any = {"version": memory.version(), "excluded_ids": {own}}
    [vector] = normalised(hashed(["case 0"]))
    decide = run_sync(prepare_decision(SYNC, memory.access, "evidence", vector=vector, **options))
    evidence = decide(RawVerdict(True)).evidence
    assert evidence is not None
    assert {each.example_id for each in evidence.neighbours} == {e.id for e in examples} - {own}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_newest_verdicts_are_those_of_the_newest_feedback_whatever_the_ids(seed: int) -> None:
    """The judge has learned: by its newest verdicts the evidence is no better."""
    world = WORLDS["judge learned .6 -> .95, last half"]
    past, _ = world.make(np.random.default_rng([100, seed]), 100, 0)
    records = [word(at, item, case=99 - at) for at, item in enumerate(past)]
    assert not model_of(view_of(past, records)).decides("auto")
    for record, item in zip(records[:50], past, strict=False):
        if item.verdict != item.truth:  # the expert adds a reason afterwards
            record["episode"]["given_at"] = (START + timedelta(days=1)).isoformat()
    assert not model_of(view_of(past, records)).decides("auto")


@pytest.mark.parametrize("seed", [0, 2, 4])
@pytest.mark.parametrize(
    ("name", "first", "last"), [*((name, 10, 0) for name in HELPED), (next(iter(HELPED)), 30, 6)]
)
def test_the_verdict_stays_where_the_newest_ten_or_thirty_cases_would_not_gain(
    name: str, first: int, last: int, seed: int
) -> None:
    world = HELPED[name]
    past, _ = world.make(np.random.default_rng([100, seed]), 100, 0)
    assert model_of(past, world.scale).decides("auto")
    right = [replace(item, verdict=item.truth) for item in past[100 - first : 100 - last]]
    changed = [*past[: 100 - first], *right, *past[100 - last :]]
    assert not model_of(changed, world.scale).decides("auto")


def test_on_numbers_a_quarter_of_the_way_is_tried_where_more_of_it_would_lose() -> None:
    make = numbers(SHARE, 0.25, pure=True, low=0.1)
    past, _ = make(np.random.default_rng([20, 30]), 20, 0)
    estimates = model_of(past, SHARE).leave_one_out
    assert estimates is not None
    assert 0 < (estimates.weight or 0) <= 0.25


@pytest.mark.parametrize("seed", SEEDS)
def test_on_numbers_the_verdict_stays_where_the_rarer_third_would_lose(seed: int) -> None:
    """The judge always says the middle; neighbors tell the frequent high values alone."""
    rng = np.random.default_rng(seed)
    truths = [0.1, 0.9] * 8 + [0.9] * 16
    past = [Item(normalised(np.ones(16) + rng.normal(size=16)), true, 0.5) for true in truths]
    assert not model_of(past, SHARE).decides("auto")


@pytest.mark.parametrize("verdict", [0.0, 0.3])
def test_on_numbers_a_verdict_unlike_all_before_decides(verdict: float) -> None:
    """Memory has good answers alone, which the judge valued too low."""
    rng = np.random.default_rng(1)
    items = [
        Item(normalised(np.ones(16) + rng.normal(size=16)), true, 0.5) for true in [0.75, 1.0] * 5
    ]
    model, new = model_of(items, SHARE), normalised(np.ones(16))
    like, unlike_all = (decided(model, Item(new, 0.0, said), "auto") for said in (0.5, verdict))
    assert float(like.value) >= 0.75
    assert unlike_all.value == verdict
    assert unlike_all.evidence is not None
    assert "a verdict like this one" in unlike_all.evidence.reason


def test_estimates_are_rounded_to_experts_values_that_are_near() -> None:
    items = some_cases(10)
    items = [replace(item, truth=(0.5, 0.75, 1.0)[at % 3]) for at, item in enumerate(items)]
    near = model_of(items, SHARE)._numbers(np.array([[0.8], [0.62], [0.4], [0.1]]))
    assert near.tolist() == [0.75, 0.5, 0.5, 0.1]
    stars = [replace(item, truth=round(4 * float(item.truth)) + 1) for item in items]
    assert model_of(stars, STARS)._numbers(np.array([[4.2], [1.4]])).tolist() == [4, 1]


def test_a_judge_of_numbers_counts_in_full_until_cases_tell_otherwise() -> None:
    none, some = np.zeros((5, 1)), np.full((5, 1), 0.2)
    assert judge_coefficient(none, none, 1.0, pulled_to=1)[0] == 1
    # Five moves of 0.2 that were wrong weigh as much as twice the penalty.
    coefficient, without = judge_coefficient(some, none, 1.0, pulled_to=1)
    assert coefficient == pytest.approx(0.1 / (5 * 0.04 + 0.1))
    assert without == pytest.approx(0.1 / (4 * 0.04 + 0.1))
    assert judge_coefficient(some, -some, 1.0, pulled_to=1)[0] == 0
    assert judge_coefficient(none, none, 1.0, pulled_to=0)[0] == 0


def test_a_blend_is_pulled_to_its_baseline_and_near_duplicates_count_once() -> None:
    ones, alone = np.full(10, 0.1), np.arange(10)
    # Perfect estimates whose squares add up to the penalty.
    assert blend_weight(ones, ones, alone, pulled_to=0) == pytest.approx(1 / 2)
    assert blend_weight(ones, ones, 0 * alone, pulled_to=0) == pytest.approx(1 / 11)
    # Without verdicts it is pulled to the estimates.
    assert blend_weight(ones, 0 * ones, alone, pulled_to=1) == pytest.approx(1 / 2)


def test_verdicts_of_another_judge_do_not_count() -> None:
    old = some_cases(20, judge_key="k1 gpt-9")
    new = some_cases(14, 2, judge_key="k2 gpt-9")
    view = view_of([*old, *new])

    def judged(key: str | None) -> int:
        cases = model_of(view, judge_key=key).cases
        return sum(case.decision.verdict is not None for case in cases)

    assert [judged(key) for key in ("k1 gpt-9", "k2 gpt-9", "k3 gpt-9", None)] == [20, 14, 0, 14]
    assert not model_of(view, judge_key="k3 gpt-9").decides("auto")


def test_verdicts_without_a_key_count_by_the_models_name() -> None:
    models = [None, "gpt-9", "gpt-9-2025-04-14", "gpt-9-mini", "gpt-9-2025-04-14", "gpt-8"]
    items = some_cases(len(models))
    records = [word(at, item) for at, item in enumerate(items)]
    for model, record in zip(models, records, strict=True):
        record["episode"]["judgment"]["model"] = model
    view = view_of(items, records)

    def judged(key: str | None) -> list[str]:
        cases = model_of(view, judge_key=key).cases
        return [case.example_id[-1] for case in cases if case.decision.verdict is not None]

    assert judged("k gpt-9") == ["1", "2", "4"]
    assert judged("k gpt-9-2025-04-14") == ["2", "4"]
    assert judged("k") == []  # a small model, which was asked otherwise
    assert judged(None) == ["5"]


def test_a_judges_key_tells_models_settings_options_and_prompts_apart(server: Any) -> None:
    def key(options: Any = None, version: int = 1, **settings: Any) -> str:
        return judge_key(server.chat_model(**settings), options or {}, version)

    keys = [key(), key({"swap": True}), key(version=2), key(temperature=0.5), key(model="other")]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0] == key(max_retries=9)
    assert [name_in_key(each) for each in keys] == ["gpt-4.1-mini"] * 4 + ["other"]
    small = judge_key(declare_small(server.chat_model()), {}, 1)
    assert name_in_key(small) == ""


@pytest.mark.parametrize(
    ("target", "by_verdict", "by_evidence"), [(0.8, 19, 23), (0.9, 40, 49), (0.95, 82, 100)]
)
def test_evidence_needs_more_decisions(target: float, by_verdict: int, by_evidence: int) -> None:
    world = HELPED["coin judge, neighbours .9"]
    past, _ = world.make(np.random.default_rng([40, 0]), 40, 0)
    model = model_of(past)
    assert model.decides("auto")
    assert model.trust("stated", target).needed == by_verdict
    assert model.trust("estimate", target).needed == by_evidence


@pytest.mark.parametrize(
    ("count", "calibrated_on", "is_trusted"),
    [(19, None, False), (20, 20, False), (39, 39, False), (40, 40, True)],
)
def test_where_all_agree_confidences_are_calibrated_and_the_questions_end(
    count: int, calibrated_on: int | None, *, is_trusted: bool
) -> None:
    items = some_cases(count, truth=True, verdict=True)
    model = model_of(items)
    trust = model.trust(model.usual_kind("auto"), 0.9)
    assert (trust.threshold is not None) is is_trusted
    decision = decided(model, items[0], "auto")
    assert (decision.value, decision.calibrated_on) == (True, calibrated_on)
    if trust.threshold is not None:
        assert decision.confidence is not None
        assert decision.confidence >= trust.threshold
    # A verdict that was never confirmed is asked about all the same.
    assert "false" not in trust.verdicts


def test_a_cluster_of_near_duplicates_is_one_decision_in_trust() -> None:
    granted = 0
    for seed in range(20):
        past, _ = twins(0.9, 4)(np.random.default_rng(seed), 160, 0)
        # Right on all wordings of a case, or on none.
        same = [replace(item, verdict=past[at // 4 * 4].verdict) for at, item in enumerate(past)]
        model = model_of(same)
        trust = model.trust(model.usual_kind("auto"), 0.9)
        assert trust.decisions == 40
        granted += trust.threshold is not None
    assert granted <= 2
