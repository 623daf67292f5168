"""`pass_rate`: included judgments, groups and errors."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from memalign_graph import (
    Criterion,
    Example,
    Feedback,
    InvalidInputError,
    JudgeMemory,
    Judgment,
    Uncertain,
    create_review_graph,
)
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory import judgments
from memalign_graph.memory.judgments import count_asked, delete_matching, keep_judgment, log_review
from memalign_graph.scales import Categorical, Numeric, Scale
from memalign_graph.types import ReviewChoice, ReviewReason
from tests.builders import keep_reviewed, make_judgment
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.support import hashed

MONDAY = datetime(2026, 11, 2, 9, tzinfo=UTC)


class Bench:
    """A memory whose judge passes 90 % and errs on every fifth pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scale: Scale | None = None) -> None:
        fields: Any = {"scale": scale} if scale else {}
        criterion = Criterion(name="tone", instructions="Kind?", **fields)
        self.memory = JudgeMemory(InMemoryStore(), criterion, embeddings=hashed)
        self.now = MONDAY
        monkeypatch.setattr(judgments, "utc_now", lambda: self.now)

    def judge(self, number: int, verdict: Any, *reasons: ReviewReason) -> tuple[Example, Judgment]:
        """Keep a judgment, and log whether an expert was asked."""
        region = "north" if number % 2 else "south"
        example = Example(inputs={"region": region, "text": f"case {number}"}, outputs="a")
        fields: dict[str, Any] = {"at": self.now, "days": 80, "value": verdict}
        return example, keep_reviewed(self.memory.access, example, *reasons, **fields)

    def fill(self, count: int = 400, *, share: int = 5) -> None:
        """Judge cases; an expert rates a random `share` and all failures."""
        answers = []
        for number in range(count):
            self.now = MONDAY + timedelta(days=8 * (number >= count // 2))
            passes, wrong = number % 10 < 9, number % 15 < 3
            drawn = number % share == number // share % share
            reasons: list[ReviewReason] = [] if passes else ["unsure"]
            reasons += ["sample"] if drawn else []
            example, judgment = self.judge(number, passes, *reasons)
            if reasons:
                value = passes and not wrong
                fields: Any = {"value": value, "judgment": judgment, "author": "ann"}
                answers.append(Feedback(example=example, **fields))
        self.memory.remember(answers)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_judges_rate_is_corrected_by_the_random_sample(bench: Bench) -> None:
    bench.fill()
    rates = bench.memory.pass_rate(by="week")
    assert (rates.judgments, rates.labels) == (400, 80)
    assert rates.judge.value == pytest.approx(0.9)
    assert rates.rate.value == pytest.approx(0.72, abs=0.05)
    assert rates.rate.low < 0.72 < rates.rate.high < 0.9
    assert rates.rate.high - rates.rate.low < rates.labels_alone.high - rates.labels_alone.low
    assert rates.more_labels > 0
    report = bench.memory.review_report()
    assert (report.judgments, report.unasked, report.unasked_wrong) == (400, 288, 0)
    example, judgment = bench.judge(0, True)
    bench.memory.remember(Feedback(example=example, value=False, judgment=judgment))
    assert bench.memory.review_report().unasked_wrong == 1
    # Doubtful cases are no random sample.
    biased = bench.memory.pass_rate(answered_at_random=True)
    assert biased.labels > rates.labels
    assert biased.labels_alone.value is not None
    assert biased.labels_alone.value < 0.6
    assert list(rates.groups) == ["2026-11-02", "2026-11-09"]
    assert [group.judgments for group in rates.groups.values()] == [200, 200]


def test_groups_are_days_fields_or_a_functions_result(bench: Bench) -> None:
    bench.fill()
    by: Any = bench.memory.pass_rate
    assert {name: group.judgments for name, group in by(by="inputs.region").groups.items()} == {
        "north": 200,
        "south": 200,
    }
    assert list(by(by="day").groups) == ["2026-11-02", "2026-11-10"]
    for field in ("inputs.regoin", "region", 7):
        with pytest.raises(InvalidInputError, match=f"by: {field!r} is a field of no judged case"):
            by(by=field)
    assert list(by(by=lambda example: len(example.outputs)).groups) == ["1"]


def test_sample_counts_after_the_log_of_reviews_has_expired(bench: Bench) -> None:
    feedback = []
    for number in range(20):
        example, judgment = bench.judge(number, True, "sample")
        kept = run_sync(judgments.find_judgment(SYNC, bench.memory.access, judgment.id))
        feedback.append(Feedback(example=example, value=number > 4, judgment=kept.judgment))
    bench.memory.remember(feedback)
    before = bench.memory.pass_rate()
    run_sync(delete_matching(SYNC, bench.memory.access, lambda item: "reasons" in item))
    after = bench.memory.pass_rate()
    assert (before.labels, after.labels, after.rate.value) == (20, 20, 0.75)


def test_judgments_that_could_not_be_drawn_do_not_count(bench: Bench) -> None:
    access = bench.memory.access
    for number in range(1000, 1300):  # made by a graph without review
        example = Example(inputs=f"case {number}", outputs="a")
        judgment = make_judgment(example.id, criterion=access.criterion.name, value=False)
        run_sync(keep_judgment(SYNC, access, judgment, example, None, timedelta(days=80)))
    alone = bench.memory.pass_rate()
    assert (alone.judgments, alone.judge.value) == (300, 0)
    bench.fill()
    rates = bench.memory.pass_rate()
    assert (rates.judgments, rates.labels) == (400, 80)
    assert rates.judge.value == pytest.approx(0.9)
    assert bench.memory.pass_rate(answered_at_random=True).judgments == 700


def test_judgment_that_is_decided_again_has_one_entry_in_the_log(bench: Bench) -> None:
    _, judgment = bench.judge(0, True, "unsure")
    access, unasked = bench.memory.access, ReviewChoice(asks=False, reasons=["no_budget"])
    run_sync(log_review(SYNC, access, judgment, unasked, bench.now))
    assert run_sync(count_asked(SYNC, access, bench.now, except_id="other")) == 0
    report = bench.memory.review_report()
    assert (report.judgments, report.unasked) == (1, 1)


def test_without_labels_the_result_says_how_many_are_needed(bench: Bench) -> None:
    empty = bench.memory.pass_rate()
    assert (empty.judgments, empty.labels, empty.more_labels) == (0, 0, 10)
    assert (empty.judge.value, empty.rate.value) == (None, None)
    assert (empty.rate.low, empty.rate.high) == (0, 1)
    example, judgment = bench.judge(0, True, "sample")
    bench.memory.remember(Feedback(example=example, value=True, judgment=judgment))
    item = bench.memory.pass_rate()
    assert (item.judgments, item.labels, item.more_labels, item.rate.value) == (1, 1, 9, None)


def test_numeric_scale_gives_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, Numeric(minimum=1, maximum=5, integer=True))
    answers = []
    for number in range(100):
        example, judgment = bench.judge(number, 1 + number % 5, "sample")
        if number < 60:
            value = max(1, number % 5)
            answers.append(Feedback(example=example, value=value, judgment=judgment))
    bench.memory.remember(answers)
    mean = bench.memory.pass_rate()
    assert mean.judge.value == pytest.approx(3)
    assert mean.rate.value == pytest.approx(2.2, abs=0.01)
    assert 1 <= mean.rate.low < 2.2 < mean.rate.high < 3
    assert bench.memory.pass_rate(passes=4).rate.value == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("passes", ["Good", ["Good"]])
def test_values_in_another_case_are_those_of_the_scale(
    monkeypatch: pytest.MonkeyPatch, passes: Any
) -> None:
    new = Categorical(choices=("Bad", "Good"), ordered=True)
    bench = Bench(monkeypatch, Categorical(choices=("bad", "good"), ordered=True))
    for number in range(20):
        bench.judge(number, "good")
    criterion = bench.memory.access.criterion.model_copy(update={"scale": new})
    memory = JudgeMemory(bench.memory.access.store, criterion, embeddings=hashed)
    assert memory.pass_rate(passes=passes).judge.value == 1


def test_unusable_arguments_are_named(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match="passes: "):
        bench.memory.pass_rate(passes="maybe")

    async def by(example: Example) -> str:
        return str(example.inputs)

    with pytest.raises(InvalidInputError, match="by: give a plain function, not an async one"):
        bench.memory.pass_rate(by=by)
    several = Bench(monkeypatch, Categorical(choices=("poor", "fair", "good")))
    with pytest.raises(InvalidInputError, match="passes: say which values pass"):
        several.memory.pass_rate()


async def test_review_graph_stores_the_data_for_the_pass_rate(server: LoopbackServer) -> None:
    store = InMemoryStore()
    criterion = Criterion(name="tone", instructions="Kind?")
    graph = create_review_graph(
        criterion,
        model=server.chat_model(),
        embeddings=server.embedder(),
        review=Uncertain(sample_share=1),
        keep_judgments=timedelta(days=1),
    ).compile(store=store, checkpointer=InMemorySaver())
    for number in range(12):
        config: Any = {"configurable": {"thread_id": str(number)}}
        case: Any = {"inputs": f"case {number}", "outputs": "a"}
        await graph.ainvoke(case, config)
        if number < 11:
            await graph.ainvoke(Command(resume={"value": number % 2 == 0}), config)
    memory = JudgeMemory(store, criterion, embeddings=server.embedder())
    rates = await memory.apass_rate(by="day")
    assert (rates.judgments, rates.labels) == (12, 11)
    assert rates.judge.value == 1
    assert rates.rate.value == pytest.approx(6 / 11, abs=0.01)
    assert list(rates.groups) == [str(datetime.now(UTC).date())]
    assert (await memory.areview_report()).drift.answers == 11
