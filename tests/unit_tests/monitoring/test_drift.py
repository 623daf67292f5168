"""Drift detection: power and false alarms."""

import json
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest

from memalign_graph import JudgeMemory
from memalign_graph.evidence.drift import DRIFT_LEVEL, bets, find_drift
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.feedback import record_judgments
from memalign_graph.memory.judgments import log_review
from memalign_graph.types import Judgment, ReviewChoice
from tests.unit_tests.review.test_preview import judged, memory_of

DRAWN = ReviewChoice(asks=True, reasons=["sample"])

LABELS = 500  # of 10,000 judgments, 5 % drawn by chance


def stream(rng: np.random.Generator, before: float, after: float, at: int) -> list[float]:
    shares = np.where(np.arange(LABELS) < at, before, after)
    return bets(rng.random(LABELS) < shares, rng.random(LABELS).tolist())


@pytest.mark.parametrize("agreement", [0.7, 0.9, 0.97])
def test_false_alarm_rate_of_continuous_testing_is_as_stated(agreement: float) -> None:
    rng = np.random.default_rng(3)
    alarms = [max(stream(rng, agreement, agreement, 0)) >= 1 / DRIFT_LEVEL for _ in range(100)]
    assert np.mean(alarms) <= 0.07  # 5 %, plus the error of 100 streams


def test_drop_of_twenty_points_is_detected_in_most_streams() -> None:
    rng = np.random.default_rng(4)
    seen = [max(stream(rng, 0.9, 0.7, 250)[250:]) >= 1 / DRIFT_LEVEL for _ in range(40)]
    assert np.mean(seen) > 0.8
    rise = [max(stream(rng, 0.7, 0.9, 250)) >= 1 / DRIFT_LEVEL for _ in range(40)]
    assert np.mean(rise) < 0.1


def test_alarm_has_values_before_and_after_and_the_time() -> None:
    first = date(2026, 1, 1)
    answers = [
        (str(index), first + timedelta(index), index % 10 > 0 if index < 200 else index % 2 > 0)
        for index in range(300)
    ]
    quiet = find_drift(answers[:200])
    assert (quiet.answers, quiet.has_fallen, quiet.before, quiet.since) == (200, False, None, None)
    drift = find_drift(answers)
    assert drift.has_fallen
    assert drift.before == pytest.approx(0.9, abs=0.02)
    assert drift.after == pytest.approx(0.5, abs=0.05)
    assert drift.since is not None
    assert abs(drift.since - (first + timedelta(200))) < timedelta(15)
    assert find_drift([]).evidence == 1


@pytest.mark.parametrize(
    ("rights", "before", "after"),
    [
        ([False] * 3 + [True] * 40 + [False] * 30 + [True] * 3000, 40 / 43, 0),
        ([True] * 40 + [False, True] * 20 + [False] + [True] * 40, 1, 15 / 31),
        (
            [False] * 20 + ([False] + [True] * 24) * 12 + [True, True, False] * 33,
            290 / 322,
            64 / 97,
        ),
    ],
)
def test_fall_is_found_although_agreement_rose_before_or_afterwards(
    rights: list[bool], before: float, after: float
) -> None:
    drift = find_drift([(str(at), date(2026, 1, 1), right) for at, right in enumerate(rights)])
    assert [drift.before, drift.after] == pytest.approx([before, after])


def sampled(count: int, *reasons: str) -> JudgeMemory:
    """A memory in which the judge errs on the last third."""
    answers = []
    for number in range(count):
        timestamp = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)
        feedback = judged(f"late {number}", number < count * 2 / 3, True)
        assert feedback.judgment is not None
        choice = ReviewChoice.model_validate({"asks": True, "reasons": list(reasons)})
        judgment = feedback.judgment.model_copy(update={"review": choice})
        answers.append(feedback.model_copy(update={"judgment": judgment, "given_at": timestamp}))
    return memory_of(*answers)


def log_all(memory: JudgeMemory, choice: ReviewChoice = DRAWN) -> None:
    for episode in memory.episodes():
        assert episode.judgment is not None
        run_sync(log_review(SYNC, memory.access, episode.judgment, choice, episode.given_at))


def test_report_tests_the_random_sample_including_doubtful_cases() -> None:
    drift = sampled(90, "unsure", "sample").review_report().drift
    assert (drift.answers, drift.has_fallen) == (90, True)
    assert (drift.before, drift.after, drift.since) == (1, 0, date(2026, 1, 3))
    doubtful = sampled(90, "unsure")
    log_all(doubtful, ReviewChoice(asks=True, reasons=["unsure"]))
    assert doubtful.review_report().drift.answers == 0


@pytest.mark.parametrize("is_fixed", [True, False])
def test_stored_verdicts_of_another_judge_replace_those_that_fell(*, is_fixed: bool) -> None:
    memory, judgments = sampled(90, "sample"), {}
    log_all(memory)
    for episode in memory.episodes():
        assert episode.judgment is not None
        value = episode.value if is_fixed else episode.judgment.value
        fields = {"id": f"new {episode.id}", "value": value, "review": None}
        judgments[episode.example_id] = episode.judgment.model_copy(update=fields)
    assert memory.review_report().drift.has_fallen
    run_sync(record_judgments(SYNC, memory.access, judgments, replaces=True))
    report = memory.review_report()
    assert (report.drift.answers, report.drift.has_fallen) == (90, not is_fixed)
    assert (report.sample.answered, report.sample.agreeing) == (90, 60)  # as it was at the time


def test_case_judged_again_counts_at_the_time_of_its_judgment() -> None:
    memory, first = memory_of(), datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(90):  # three cases, each judged 30 times
        at = first + timedelta(hours=2 * number)
        feedback = judged(f"late {number % 3}", True, number < 60)
        assert isinstance(feedback.judgment, Judgment)
        run_sync(log_review(SYNC, memory.access, feedback.judgment, DRAWN, at))
        memory.remember(feedback.model_copy(update={"given_at": at + timedelta(minutes=1)}))
    drift = memory.review_report().drift
    assert (drift.answers, drift.has_fallen) == (90, True)
    assert (drift.before, drift.after, drift.since) == (1, 0, date(2026, 1, 6))


def test_latest_decision_on_a_judgment_counts() -> None:
    memory, at = memory_of(), datetime(2026, 1, 1, tzinfo=UTC)
    judgment = judged("late", True, True).judgment
    assert judgment is not None
    run_sync(log_review(SYNC, memory.access, judgment, DRAWN, at + timedelta(hours=1)))
    [asked] = memory.access.store.search(memory.access.layout.of("reviews"))
    run_sync(log_review(SYNC, memory.access, judgment, ReviewChoice(asks=False), at))
    # As after a crash before the earlier entry was deleted.
    memory.access.store.put(asked.namespace, asked.key, asked.value)
    assert memory.review_report().asked.asked == 1


def test_reasons_that_a_table_adds_leave_trust_and_drift_as_they_were() -> None:
    memory = sampled(90, "sample")
    log_all(memory)
    before = memory.trust(), memory.review_report()
    fields = {"value", "author", "example"}
    wrong = [each.model_dump(include=fields) for each in memory.episodes()[60:]]
    memory.remember([{**each, "rationale": "Too cold."} for each in wrong])
    assert [each.rationale for each in memory.episodes()[60:]] == ["Too cold."] * 30
    assert (memory.trust(), memory.review_report()) == before
    assert before[1].drift.has_fallen


def test_answers_that_name_no_present_verdict_count_for_drift() -> None:
    memory = sampled(90, "sample")
    log_all(memory)
    lines = [json.loads(line) for line in memory.export_jsonl().splitlines()]
    for line in lines:
        if line["type"] == "episode":
            judgment = line.pop("judgment")
            line["other_verdicts"] = {judgment["id"]: judgment["value"]}
    before = memory.review_report().drift
    memory.forget(author="ann")
    memory.import_jsonl(map(json.dumps, lines))
    assert all(episode.judgment is None for episode in memory.episodes())
    assert memory.review_report().drift == before


@pytest.mark.parametrize("days", [2, 20])
def test_answers_within_two_weeks_count_in_the_order_of_judgments(days: int) -> None:
    memory, first = memory_of(), datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(90):  # the judge errs at the end, and is answered newest first
        feedback = judged(f"late {number}", number < 60, True)
        assert isinstance(feedback.judgment, Judgment)
        at = first + timedelta(hours=number)
        run_sync(log_review(SYNC, memory.access, feedback.judgment, DRAWN, at))
        given_at = first + timedelta(days=days, hours=180 - number)
        memory.remember(feedback.model_copy(update={"given_at": given_at}))
    assert memory.review_report().drift.has_fallen == (days == 2)


@pytest.mark.parametrize("is_logged", [True, False])
def test_old_answers_that_are_changed_raise_no_alarm(*, is_logged: bool) -> None:
    memory = memory_of()
    for number in range(90):
        feedback = judged(f"late {number}", True, True)
        assert isinstance(feedback.judgment, Judgment)
        judgment = feedback.judgment.model_copy(update={"review": DRAWN})
        memory.remember(feedback.model_copy(update={"judgment": judgment}))
    if is_logged:
        log_all(memory)
    for episode in memory.episodes()[4::9]:
        memory.revise(episode.id, {"value": False})
    drift = memory.review_report().drift
    assert (drift.answers, drift.has_fallen) == (90, False)
