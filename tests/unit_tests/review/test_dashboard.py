"""The dashboard: guidelines, history and agreement."""

import asyncio
import re
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any

from memalign_graph.identity import asked_id
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.facts import Fact, new_id, timestamp_us
from memalign_graph.memory.feedback import record_judgments
from memalign_graph.memory.judgments import keep_judgment, log_review, utc_now
from memalign_graph.memory.learning import record_check_answers
from memalign_graph.review.dashboard import agreement_overview, answers_by, guideline_overview
from memalign_graph.review.requests import _TEMPLATES
from memalign_graph.types import ReviewChoice
from tests.unit_tests.memory.support import learn, op
from tests.unit_tests.review.test_preview import feedback_on, judged, memory_of


def standing(overview: dict[str, Any], template: str = "standing", **more: Any) -> str:
    """Return the page of agreement, or another one, with single spaces."""
    page: dict[str, Any] = {"title": "", "active": "", "criterion": "tone", "criteria": ["tone"]}
    page |= {"who": None, "stored": False, "notices": [], "open": 0, "token": ""}
    page = {"page": page, **overview, **more}
    return " ".join(_TEMPLATES.get_template(f"{template}.html.jinja").render(page).split())


def test_guideline_is_shown_with_its_sources_and_auc() -> None:
    memory, index = (
        memory_of(*(feedback_on(f"late {index}", index % 2 > 0, "bob") for index in range(9))),
        utc_now(),
    )
    rights = {episode.example_id: float(bool(episode.value)) for episode in memory.episodes()}
    episode = feedback_on("kind 1", True, rationale="So kind.", given_at=index)
    sources = memory.remember([episode, feedback_on("kind 1", False, "bob")])
    memory.remember([feedback_on("late 1", False, given_at=index - timedelta(1))])
    learn(memory, op("add", *sources, text="Be kind.", question="Is it kind?"))
    run_sync(record_check_answers(SYNC, memory.access, {asked_id("Is it kind?", ""): rights}))
    overview = asyncio.run(guideline_overview(memory.access))
    [guideline], [dispute, _] = overview["guidelines"], overview["disputes"]
    assert (guideline["worth"].auc, guideline["worth"].cases) == (1.0, 9)
    title = "The answer to kind 1"
    answer = {"title": title, "author": "ann", "value": "Yes", "rationale": "So kind."}
    assert answer in guideline["sources"]
    assert len(guideline["sources"]) == 2
    assert (dispute["title"], answer in dispute["answers"]) == (title, True)
    page = standing(overview, "learned", may_roll_back=False)
    assert "Tells good answers from bad ones 100% of the time, on 9 cases." in page
    assert f'Cases in dispute</h2><div class="card"><p dir="auto">{title}' in page
    kind, late = asyncio.run(answers_by(memory.access, "ann"))["answers"]
    assert (kind["title"], kind["learned"], late["learned"]) == (title, ["Be kind."], [])


def test_recent_history_describes_every_kind_of_commit() -> None:
    memory = memory_of(feedback_on("warm 1", True, rationale="Good."))
    [first], view = memory.episodes(), memory.access.view
    at_us = timestamp_us(view.latest_fact_id) + 1
    view.add([Fact(id=new_id(at_us), at_us=at_us, reason="ask")], {})  # a concurrent fact
    learn(memory, op("add", first, text="Be warm."), author="ann")
    memory.remember([feedback_on("warm 2", False, "bob", rationale="No.")])
    memory.revise(first.id, {"value": False})
    memory.rollback(memory.history()[1].version, author="cy")
    memory.forget(author="bob", purge=True)
    memory.forget([first.id], author="ann")
    memory.remember([feedback_on(f"warm {3 + index}", True, who) for index, who in enumerate(WHO)])
    commits = asyncio.run(guideline_overview(memory.access))["history"]
    assert [commit["version"] for commit in commits] == [
        commit.version for commit in memory.history()
    ]
    assert [commit["what"] for commit in commits[::-1]] == [
        "ann answered (answers given: 1).",
        "The judge learned (nothing new).",
        "ann learned (answers learned from: 1, rules added: 1).",
        "An expert answered (answers given: 1).",  # whose feedback was purged
        "ann changed an answer (answers changed: 1, rules removed: 1).",
        "cy returned to an earlier version (answers changed: 1, rules added: 1).",
        "An expert erased answers (answers taken back: 1).",
        "An expert took back answers (answers taken back: 1, rules removed: 1).",
        "ann, dan, eve answered (answers given: 3).",
    ]


WHO = ("eve", "dan", "ann")


def test_agreement_is_shown_by_week_and_expert_with_recent_tasks() -> None:
    unjudged = feedback_on("late 9", True, "bob", given_at=utc_now() - timedelta(1))
    memory = memory_of(*(judged(f"late {index}", True, index > 0) for index in range(4)), unjudged)
    judgments = [episode.judgment for episode in memory.episodes() if episode.judgment]
    for asks, judgment in zip((True, True, False), judgments, strict=False):
        run_sync(log_review(SYNC, memory.access, judgment, ReviewChoice(asks=asks), utc_now()))
    overview = asyncio.run(agreement_overview(memory.access))
    assert overview["agreement"] == {"n": 4, "agreed": 3, "share": 0.75}
    assert [week["share"] for week in overview["weeks"]] == [None] * 11 + [0.75]
    assert overview["experts"] == [{"author": "ann", "n": 4, "agreed": 3, "share": 0.75}]
    report, tasks = overview["report"], overview["report"].asked
    assert (report.judgments, tasks.asked, tasks.answered) == (3, 2, 2)
    assert tasks.agreeing == sum(judgment.value is True for judgment in judgments[:2])
    previous = {each.example_id: each.judgment for each in memory.episodes() if each.judgment}
    for number in range(2):  # as `migrate` does each time
        again = {
            key: judgment.model_copy(update={"id": f"{number} {key}"})
            for key, judgment in previous.items()
        }
        run_sync(record_judgments(SYNC, memory.access, again, replaces=True))
    again = asyncio.run(agreement_overview(memory.access))
    assert (again["agreement"], again["weeks"]) == (overview["agreement"], overview["weeks"])
    empty = asyncio.run(agreement_overview(memory_of().access))
    assert (empty["report"].judgments, empty["agreement"]["n"]) == (0, 0)


def test_weeks_begin_on_monday_in_utc() -> None:
    today = utc_now().date()
    monday = datetime.combine(today - timedelta(today.weekday()), time(), UTC)
    east = timezone(timedelta(hours=2))
    at = (monday - timedelta(minutes=1)).astimezone(east)  # Monday in Berlin
    feedback = judged("late 1", True, True).model_copy(update={"given_at": at})
    weeks = asyncio.run(agreement_overview(memory_of(feedback).access))["weeks"]
    assert [week["n"] for week in weeks[-2:]] == [1, 0]


def test_true_pass_rate_is_shown_if_judgments_are_kept() -> None:
    late = [judged(f"late {index}", index % 3 > 0, True) for index in range(30)]
    memory = memory_of(*late)
    assert "What experts would say" not in standing(asyncio.run(agreement_overview(memory.access)))
    drawn = ReviewChoice(asks=True, reasons=["sample"])
    for feedback in late:
        assert feedback.judgment is not None
        example = (feedback.judgment, feedback.example, None, timedelta(days=1))
        run_sync(keep_judgment(SYNC, memory.access, *example))
        run_sync(log_review(SYNC, memory.access, feedback.judgment, drawn, utc_now()))
    overview = asyncio.run(agreement_overview(memory.access))
    page = standing(overview)
    assert "The share that passes: 67% (" in page
    assert "estimated from 30 answers to the random sample and 30 judgments" in page
    assert "The judge alone says 100% (" in page
    more = overview["rate"].more_labels
    assert f"An interval of 5 % of the range to each side takes {more} more such answers." in page
    assert "The mean value: 0.67 (" in standing({**overview, "is_mean": True})
    _, _, weeks = page.partition("By week")
    assert re.search(r"<td>30</td><td>.* 67%</td><td>67% \(.*\)</td><td>100% \(", weeks)
    assert "On 30 answers to the random sample, agreement has not measurably fallen." in page
    fallen = overview["report"].drift.model_copy(
        update={"has_fallen": True, "before": 0.9, "after": 0.7, "since": date(2026, 1, 2)}
    )
    report = overview["report"].model_copy(update={"drift": fallen})
    page = standing({**overview, "report": report})
    assert "fallen from 90% to 70% since about 2026-01-02" in page
