"""LangSmith feedback from client objects, exported JSON and tables."""

import json
import math
import uuid
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pytest
from langchain_core.messages import AIMessage
from langsmith.pagination import SyncItemsCursorPostPagination
from langsmith.schemas import APIFeedbackSource, Example, Feedback, FeedbackSourceBase, Run
from langsmith.types import Run as QueriedRun

from memalign_graph import Categorical, Criterion, InvalidInputError, Numeric
from memalign_graph.integrations import ImportedFeedback, feedback_from_langsmith
from tests.conftest import CRITERION

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
LATER = datetime(2025, 3, 2, 12, tzinfo=UTC)
STARS = Numeric(minimum=1, maximum=5, integer=True)
GRADE = Criterion(name="support_tone", instructions="Which?", scale=STARS)
WARMTH = Categorical(choices=("cold", "warm"))
TONE = Criterion(name="support_tone", instructions="Which?", scale=WARMTH)


def run(**fields: Any) -> Run:
    made: dict[str, Any] = {
        "id": uuid.uuid4(),
        "name": "app",
        "run_type": "chain",
        "start_time": NOW,
        "trace_id": uuid.uuid4(),
        "inputs": {"question": "Where is it?"},
        "outputs": {"answer": "Look it up."},
        **fields,
    }
    return Run(**made)


def langsmith_feedback(
    on: Any, who: str | None = "ann", source: str = "app", **fields: Any
) -> Feedback:
    made: dict[str, Any] = {
        "id": uuid.uuid4(),
        "run_id": on.id,
        "trace_id": on.trace_id,
        "key": "support_tone",
        "created_at": NOW,
        "modified_at": LATER,
        "feedback_source": FeedbackSourceBase(type=source, user_name=who),
        **fields,
    }
    return Feedback(**made)


def read(runs: Any, feedback: Any = (), criterion: Criterion = CRITERION, **options: Any) -> Any:
    """Import objects and their exported JSON, and check that both agree."""
    imported = feedback_from_langsmith(runs, feedback, criterion=criterion, **options)
    as_json: list[list[Any]] = [
        [json.loads(item.model_dump_json()) for item in some] for some in (runs, feedback)
    ]
    assert feedback_from_langsmith(*as_json, criterion=criterion, **options) == imported
    return imported


def only(imported: ImportedFeedback) -> Any:
    assert imported.rejected == []
    [feedback] = imported.feedback
    return feedback


def test_score_comment_and_reference_are_imported() -> None:
    example = Example(
        id=uuid.uuid4(), inputs={}, outputs={"answer": "Oh."}, dataset_id=uuid.uuid4()
    )
    app = run(reference_example_id=example.id)
    feedback = langsmith_feedback(app, score=0, comment=" Too cold. ")
    item = only(read([app], [feedback], examples=[example]))
    assert (item.value, item.rationale, item.author) == (False, "Too cold.", "ann")
    assert (item.id, item.given_at) == (str(feedback.id), LATER)
    assert item.example.to_json() == {
        "inputs": {"question": "Where is it?"},
        "outputs": {"answer": "Look it up."},
        "reference_outputs": {"answer": "Oh."},
    }


@pytest.mark.parametrize(
    ("criterion", "fields", "value"),
    [
        (CRITERION, {"score": 1.0}, True),
        (CRITERION, {"score": 0}, False),
        (CRITERION, {"score": None, "value": "Yes"}, True),
        (GRADE, {"score": 2, "value": "good"}, 2),
        (TONE, {"score": 1, "value": "COLD"}, "cold"),
        (CRITERION, {"score": 1, "correction": {"score": 0}}, False),
    ],
)
def test_values_are_converted_to_the_scale(criterion: Criterion, fields: Any, value: Any) -> None:
    app = run()
    item = only(read([app], [langsmith_feedback(app, **fields)], criterion))
    assert (item.value, type(item.value)) == (value, type(value))


def test_labels_of_a_table_get_their_type() -> None:
    """As pandas has them: 1.0 for 1, and NaN, None, NaT or <NA> for missing values."""
    runs = [{"id": name, "inputs": name, "outputs": "x"} for name in "abcd"]
    rows = [
        {"run_id": "a", "key": "support_tone", "score": 1, "modified_at": NOW},
        {"run_id": "b", "key": "support_tone", "comment": "Cold.", "correction": {"score": 0.0}},
        {"run_id": "c", "key": "support_tone", "comment": "Words."},
        {"run_id": "d", "key": "support_tone", "feedback_group_id": "g"},
    ]
    table = pd.DataFrame(rows)
    for variant in (table, table.convert_dtypes()):
        feedback: Any = variant.to_dict("records")
        imported = feedback_from_langsmith(runs, feedback, criterion=CRITERION, sources=None)
        labels = [(item.value, item.rationale) for item in imported.feedback]
        assert labels == [(True, None), (False, "Cold."), (None, "Words.")]
        assert imported.feedback[0].given_at == NOW
        assert list(imported.passed_over) == ["it is a preference between runs, not a value of one"]
    with pytest.raises(InvalidInputError, match=r'feedback: give a list .*to_dict\("records"\)'):
        feedback_from_langsmith(runs, table, criterion=CRITERION)


def test_only_feedback_from_people_is_imported() -> None:
    app, other = run(), run()
    nobody = langsmith_feedback(app, score=1).model_copy(update={"feedback_source": None})
    user = FeedbackSourceBase(type="app", user_id="u-7")
    parsed = read(
        [app, other],
        [
            langsmith_feedback(app, score=0, comment="Cold."),
            langsmith_feedback(app, key="note", comment="Third time this week."),
            langsmith_feedback(app, "bob", score=0),
            langsmith_feedback(app, None, "api", score=1),
            langsmith_feedback(app, None, "api", score=0),
            langsmith_feedback(app, score=1, feedback_source=user),
            langsmith_feedback(other, key="note", comment="On another run."),
            langsmith_feedback(app, source="model", score=1),
            nobody,
        ],
    )
    authors = ["ann", "bob", None, None, "u-7"]
    assert [feedback.author for feedback in parsed.feedback] == authors
    assert len({feedback.episode_id for feedback in parsed.feedback}) == len(authors)
    assert parsed.feedback[0].rationale == "Cold.\nThird time this week."
    assert parsed.rejected == []
    assert parsed.passed_over == {
        "the key is 'note', not 'support_tone'": 1,
        "its source is 'model', which is not a person": 1,
        "its source is None, which is not a person": 1,
    }
    assert only(read([app], [nobody], sources=None)).value is True
    thumbs = langsmith_feedback(app, key="thumbs", score=1)
    assert only(read([app], [thumbs], key="thumbs")).value is True


def test_scores_of_evaluators_in_tests_are_not_by_people() -> None:
    """As openevals' judges log them in tests with LangSmith's plugin for pytest."""
    app = run()
    source = APIFeedbackSource(metadata={"__run": {"run_id": str(uuid.uuid4())}})
    scored = langsmith_feedback(app, score=1, feedback_source=source)
    on_project = langsmith_feedback(app, score=1, run_id=None)
    parsed = read([app], [scored, on_project])
    reasons = ["its source is 'evaluator', which is not a person", "it is on no run"]
    assert (parsed.feedback, parsed.rejected) == ([], [])
    assert parsed.passed_over == dict.fromkeys(reasons, 1)


def test_page_of_queried_runs_is_read() -> None:
    queried = QueriedRun(id=str(uuid.uuid4()), inputs={"question": "Q"}, outputs={"answer": "A"})
    bare = QueriedRun(id=str(uuid.uuid4()))  # without `selects`
    page = SyncItemsCursorPostPagination[QueriedRun](items=[queried, bare])
    app = run()
    feedback = [langsmith_feedback(app, score=1, run_id=each.id) for each in (queried, bare)]
    imported = feedback_from_langsmith(page, feedback, criterion=CRITERION)
    assert [item.example.outputs for item in imported.feedback] == [{"answer": "A"}]
    [rejected] = imported.rejected
    assert rejected.reason == f"runs: give run {bare.id}, with inputs and outputs."
    with pytest.raises(InvalidInputError, match=r"^runs: give a list"):
        feedback_from_langsmith(queried, criterion=CRITERION)


def test_correction_is_feedback_of_its_author() -> None:
    app = run()
    better = {"answer": "We are sorry."}
    score = {"value": "no", "explanation": "Too cold.", "span": 7}
    feedback = [
        langsmith_feedback(app, score=0, comment="Cold.", correction=better),
        langsmith_feedback(
            app, "the judge's owner", "model", score=1, comment="Fine!", correction=score
        ),
        langsmith_feedback(app, source="model", score=1, comment="Fine!", correction="Say sorry."),
    ]
    imported = read([app], feedback).feedback
    labels = [(item.value, item.rationale, item.author) for item in imported]
    assert labels == [
        (False, "Cold.\nThe output should have been: We are sorry.", "ann"),
        (False, "Too cold.", None),
        (None, "The output should have been: Say sorry.", None),
    ]


def test_feedback_in_an_export_counts_once() -> None:
    app = run(outputs={"messages": [AIMessage("Here.")]})
    feedback = langsmith_feedback(app, score=0)
    line = {**dict(app), "feedback": [json.loads(feedback.model_dump_json())]}
    item = only(feedback_from_langsmith([line], [feedback], criterion=CRITERION))
    assert (item.value, item.author) == (False, "ann")
    assert item.example.outputs == [{"role": "assistant", "content": "Here."}]


@pytest.mark.parametrize(
    ("fields", "rationale"),
    [
        ({"comment": 5, "id": ["unhashable"]}, "5"),
        ({"comment": {"text": "Cold."}}, "Cold."),
        ({"correction": {"score": 0, "explanation": ["Cold."]}}, '[\n "Cold."\n]'),
    ],
)
def test_comment_of_another_type_becomes_text(fields: Any, rationale: str) -> None:
    app = {"id": "1", "inputs": "Where?", "outputs": "Look it up."}
    source = {"type": "app", "user_name": "ann"}
    data = {"run_id": None, "key": "support_tone", "score": 0, "feedback_source": source, **fields}
    item = only(feedback_from_langsmith([{**app, "feedback": [data]}], criterion=CRITERION))
    assert (item.value, item.rationale, item.author) == (False, rationale, "ann")


def test_unusable_feedback_is_rejected_with_the_reason() -> None:
    app, other, empty = run(), run(), run(outputs={})
    cases: list[tuple[Criterion, Any, Any, str]] = [
        (CRITERION, app, {"score": math.nan}, "needs a value or a rationale"),
        (CRITERION, app, {"score": 1, "comment": "a\x00b"}, "NUL"),
        (CRITERION, app, {"score": 1, "run_id": other.id}, f"runs: give run {other.id}, with"),
        (CRITERION, empty, {"score": 1}, "outputs: must not be empty"),
        (CRITERION, app, {"score": 0.6}, "is not on the scale"),
        (GRADE, app, {"score": True}, "is not on the scale"),
        (TONE, app, {"score": 1}, "is not on the scale"),
    ]
    for criterion, case, fields, reason in cases:
        feedback = langsmith_feedback(case, **fields)
        imported = feedback_from_langsmith([case], [feedback], criterion=criterion)
        [rejected] = imported.rejected
        assert imported.feedback == []
        assert (rejected.id, reason in rejected.reason) == (str(feedback.id), True)


def test_odd_records_do_not_end_the_import() -> None:
    deep: Any = "x"
    for _ in range(2_000):
        deep = [deep]
    app = {"id": "r", "inputs": "Where is it?", "outputs": "Look it up."}
    good = {"id": "good", "run_id": "r", "key": "support_tone", "score": 1}
    good["feedback_source"] = {"type": "app", "user_name": "ann"}
    no_text = {**good, "id": "no text", "feedback_source": {"type": ["app"]}}
    csv = {**good, "id": "of a table in CSV", "feedback_source": "{'type': 'app'}"}
    nested = {**good, "id": "nested", "comment": deep}
    options: Any = {"criterion": CRITERION, "sources": {"app"}}
    imported = feedback_from_langsmith([app], [no_text, csv, nested, good], **options)
    assert [feedback.id for feedback in imported.feedback] == ["good"]
    [rejected] = imported.rejected
    assert (rejected.id, "RecursionError" in rejected.reason) == ("nested", True)
    sources = (["app"], "{'type': 'app'}")
    reasons = [f"its source is {source!r}, which is not a person" for source in sources]
    assert imported.passed_over == dict.fromkeys(reasons, 1)


@pytest.mark.parametrize(
    ("runs", "feedback", "field"),
    [
        ({"id": "1"}, [], "runs"),
        ([1], [], "runs"),
        ([{"inputs": {}}], [], "runs: a run has no `id`"),
        ([], [None], "feedback"),
        ([{"id": "1", "feedback": ["x"]}], [], "runs.feedback"),
    ],
)
def test_objects_of_other_types_are_named(runs: Any, feedback: Any, field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        feedback_from_langsmith(runs, feedback, criterion=CRITERION)
    assert str(caught.value).startswith(field)
    with pytest.raises(InvalidInputError, match=r"^criterion"):
        feedback_from_langsmith([], criterion="support_tone")  # type: ignore[arg-type]
