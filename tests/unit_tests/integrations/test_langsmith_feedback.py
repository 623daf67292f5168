"""What people said in LangSmith: its client's own objects, and exported JSON."""

import json
import math
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langsmith.schemas import Example, Feedback, FeedbackSourceBase, Run, RunWithAnnotationQueueInfo

from memalign_graph import Categorical, Criterion, InvalidInputError, Numeric
from memalign_graph.integrations import ImportedFeedback, feedback_from_langsmith
from tests.conftest import CRITERION

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
LATER = datetime(2025, 3, 2, 12, tzinfo=UTC)
GRADE = Criterion(
    name="support_tone", instructions="Which?", scale=Numeric(minimum=1, maximum=5, integer=True)
)
TONE = Criterion(
    name="support_tone", instructions="Which?", scale=Categorical(choices=("cold", "warm"))
)


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


def said(on: Any, who: str | None = "ann", source: str = "app", **fields: Any) -> Feedback:
    return Feedback(
        **{
            "id": uuid.uuid4(),
            "run_id": on.id,
            "trace_id": on.trace_id,
            "key": "support_tone",
            "created_at": NOW,
            "modified_at": LATER,
            "feedback_source": FeedbackSourceBase(type=source, user_name=who),
            **fields,
        }
    )


def read(runs: Any, feedback: Any = (), criterion: Criterion = CRITERION, **options: Any) -> Any:
    """Read the objects, and the same as exported JSON: both have to say the same."""
    found = feedback_from_langsmith(runs, feedback, criterion=criterion, **options)
    as_json: list[list[Any]] = [
        [json.loads(one.model_dump_json()) for one in some] for some in (runs, feedback)
    ]
    again = feedback_from_langsmith(*as_json, criterion=criterion, **options)
    assert again == found
    return found


def only(found: ImportedFeedback) -> Any:
    assert found.rejected == []
    [one] = found.feedback
    return one


def reasons(found: ImportedFeedback) -> str:
    assert found.feedback == []
    return " ".join(one.reason for one in found.rejected)


def test_a_reviewer_s_score_and_comment() -> None:
    app = run()
    word = said(app, score=0, comment=" Too cold. ")
    one = only(read([app], [word]))
    assert (one.value, one.rationale, one.author) == (False, "Too cold.", "ann")
    assert (one.id, one.given_at) == (str(word.id), LATER)
    assert one.example.to_json() == {
        "inputs": {"question": "Where is it?"},
        "outputs": {"answer": "Look it up."},
        "reference_outputs": None,
    }


@pytest.mark.parametrize(
    ("criterion", "given", "value"),
    [
        (CRITERION, {"score": 1.0}, True),
        (CRITERION, {"score": True}, True),
        (CRITERION, {"score": 0}, False),
        (CRITERION, {"value": "no"}, False),
        (CRITERION, {"score": None, "value": "Yes"}, True),
        (GRADE, {"score": 4.0}, 4),
        (GRADE, {"value": "5"}, 5),
        (GRADE, {"score": 2, "value": "good"}, 2),
        (TONE, {"value": "WARM"}, "warm"),
        (TONE, {"score": 1, "value": "cold"}, "cold"),
    ],
)
def test_values_are_read_onto_the_scale(criterion: Criterion, given: Any, value: Any) -> None:
    app = run()
    one = only(read([app], [said(app, **given)], criterion))
    assert one.value == value
    assert type(one.value) is type(value)


@pytest.mark.parametrize(
    ("criterion", "given"),
    [
        (CRITERION, {"score": 0.6}),
        (CRITERION, {"value": "perhaps"}),
        (CRITERION, {"value": {"label": True}}),
        (GRADE, {"score": 9}),
        (GRADE, {"score": 2.5}),
        (GRADE, {"score": True}),
        (TONE, {"value": "lukewarm"}),
        (TONE, {"score": 1}),
    ],
)
def test_a_value_off_the_scale_is_rejected_by_its_id(criterion: Criterion, given: Any) -> None:
    app = run()
    word = said(app, comment="Why.", **given)
    found = read([app], [word], criterion)
    assert "is not on the scale" in reasons(found)
    assert found.rejected[0].id == str(word.id)


def test_nan_is_no_score() -> None:
    app = run()
    found = feedback_from_langsmith([app], [said(app, score=math.nan)], criterion=CRITERION)
    assert "needs a value or a rationale" in reasons(found)


def test_a_comment_alone_is_words_without_a_value() -> None:
    app = run()
    one = only(read([app], [said(app, comment="Cold.")]))
    assert (one.value, one.rationale) == (None, "Cold.")


def test_nothing_said_is_rejected() -> None:
    app = run()
    assert "needs a value or a rationale" in reasons(read([app], [said(app, comment="  ")]))


def test_judges_and_other_keys_are_passed_over_and_counted() -> None:
    app = run()
    found = read(
        [app],
        [
            said(app, source="model", score=1),
            said(app, source="auto_eval", score=1),
            said(app, key="helpfulness", score=1),
            said(app, key="helpfulness", score=0),
            said(app, feedback_group_id=uuid.uuid4(), score=1),
        ],
    )
    assert (found.feedback, found.rejected) == ([], [])
    assert found.passed_over == {
        "its source is 'model', which is no person": 1,
        "its source is 'auto_eval', which is no person": 1,
        "the key is 'helpfulness', not 'support_tone'": 2,
        "it is a preference between runs, not a value of one": 1,
    }


def test_feedback_of_no_known_source_counts_only_if_asked() -> None:
    app = run()
    word = said(app, score=1).model_copy(update={"feedback_source": None})
    assert read([app], [word]).feedback == []
    assert only(read([app], [word], sources=None)).value is True


def test_another_key_can_be_named() -> None:
    app = run()
    assert only(read([app], [said(app, key="thumbs", score=1)], key="thumbs")).value is True


def test_two_experts_on_one_run_are_two_words_on_one_example() -> None:
    app = run()
    found = read([app], [said(app, score=1), said(app, "bob", score=0)])
    assert len({one.episode_id for one in found.feedback}) == 2
    assert len({one.example.id for one in found.feedback}) == 1


def test_people_without_a_name_stay_apart() -> None:
    app = run()
    found = read([app], [said(app, None, "api", score=1), said(app, None, "api", score=0)])
    assert {one.author for one in found.feedback} == {None}
    assert len({one.episode_id for one in found.feedback}) == 2


def test_a_user_id_names_a_person_too() -> None:
    app = run()
    source = FeedbackSourceBase(type="app", user_id="u-7")
    assert only(read([app], [said(app, score=1, feedback_source=source)])).author == "u-7"


def test_a_reviewer_s_note_goes_with_the_same_reviewer_s_value() -> None:
    app, other = run(), run()
    found = read(
        [app, other],
        [
            said(app, score=0, comment="Cold."),
            said(app, key="note", comment="Third time this week."),
            said(app, "bob", key="note", comment="Nothing to do with me."),
            said(other, key="note", comment="On another run."),
        ],
    )
    assert only(found).rationale == "Cold.\nThird time this week."
    assert found.passed_over == {"it is a note of somebody who said nothing of 'support_tone'": 2}


def test_a_corrected_score_goes_before_the_score() -> None:
    app = run()
    one = only(read([app], [said(app, score=1, correction={"score": 0}, comment="Cold.")]))
    assert (one.value, one.rationale) == (False, "Cold.")


def test_a_judge_s_corrected_score_is_the_corrector_s_word_and_not_the_judge_s() -> None:
    app = run()
    correction = {"value": "no", "explanation": "Too cold."}
    word = said(app, "the judge's owner", "model", score=1, comment="Fine!", correction=correction)
    one = only(read([app], [word]))
    assert (one.value, one.rationale, one.author) == (False, "Too cold.", None)


def test_a_corrected_output_is_told_in_the_rationale() -> None:
    app = run()
    both = [
        said(app, score=0, comment="Cold.", correction={"answer": "We are sorry."}),
        said(app, "bob", score=0, correction={"answer": "We are sorry.", "tone": "warm"}),
        said(app, "cem", score=0, correction="Say sorry."),
    ]
    ann, bob, cem = read([app], both).feedback
    assert ann.rationale == "Cold.\nThe output should have been: We are sorry."
    assert bob.rationale.endswith('{"answer": "We are sorry.", "tone": "warm"}')
    assert cem.rationale == "The output should have been: Say sorry."
    assert {one.value for one in (ann, bob, cem)} == {False}


def test_a_judge_s_score_does_not_count_through_a_correction_of_the_output() -> None:
    app = run()
    word = said(app, source="model", score=1, comment="Fine!", correction={"answer": "Sorry."})
    one = only(read([app], [word]))
    assert (one.value, one.rationale) == (None, "The output should have been: Sorry.")


@pytest.mark.parametrize("outputs", [None, {}])
def test_a_run_without_outputs_is_rejected(outputs: Any) -> None:
    app = run(outputs=outputs)
    assert "outputs: must not be empty" in reasons(read([app], [said(app, score=1)]))


def test_feedback_on_a_run_that_is_not_there_is_rejected() -> None:
    app, other = run(), run()
    assert f"run {other.id} is not among the runs" in reasons(read([app], [said(other, score=1)]))


def test_references_come_from_the_data_set() -> None:
    known = Example(
        id=uuid.uuid4(), inputs={}, outputs={"answer": "Sorry."}, dataset_id=uuid.uuid4()
    )
    app = run(reference_example_id=known.id)
    one = only(read([app], [said(app, score=1)], examples=[known]))
    assert one.example.reference_outputs == {"answer": "Sorry."}


def test_the_example_can_be_made_of_the_run() -> None:
    app = run(outputs={"messages": [AIMessage("Here.")]})
    found = feedback_from_langsmith(
        [app],
        [said(app, score=1)],
        criterion=CRITERION,
        example=lambda one: {
            "inputs": one.inputs["question"],
            "outputs": one.outputs["messages"][-1],
        },
    )
    assert only(found).example.outputs == {"role": "assistant", "content": "Here."}


def test_an_annotation_queue_s_export_brings_its_feedback() -> None:
    app = run()
    word = said(app, score=0, comment="Cold.")
    queued = RunWithAnnotationQueueInfo(
        **{name: getattr(app, name) for name in ("id", "name", "start_time", "run_type")},
        inputs=app.inputs,
        outputs=app.outputs,
        added_at=NOW,
    )
    line = {
        **json.loads(queued.model_dump_json()),
        "feedback": [json.loads(word.model_dump_json())],
        "feedback_stats": {"support_tone": {"n": 1, "avg": 0.0}},
    }
    one = only(feedback_from_langsmith([line], criterion=CRITERION))
    assert (one.value, one.rationale, one.author) == (False, "Cold.", "ann")
    twice = feedback_from_langsmith([line], [word], criterion=CRITERION)
    assert only(twice) == one


def test_statistics_name_nobody_and_are_said_to() -> None:
    app = run(feedback_stats={"support_tone": {"n": 2, "avg": 0.5}, "other": {"n": 1}})
    found = feedback_from_langsmith([app], criterion=CRITERION)
    assert "do not say whose word" in reasons(found)
    assert "list_feedback" in reasons(found)


def test_huge_text_and_hostile_names_are_kept_as_they_are() -> None:
    app = run(outputs={"answer": "x" * 500_000})
    one = only(read([app], [said(app, "ann\n\t'--", score=1, comment="y" * 100_000)]))
    assert len(one.rationale) == 100_000
    assert one.author == "ann\n\t'--"


def test_text_that_no_store_takes_is_rejected() -> None:
    app = run()
    assert "NUL" in reasons(read([app], [said(app, score=1, comment="a\x00b")]))


def test_nesting_without_end_is_rejected() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    app = run(outputs={"answer": deep})
    found = feedback_from_langsmith([app], [said(app, score=1)], criterion=CRITERION)
    assert "nested too deep" in reasons(found)


@pytest.mark.parametrize(
    ("runs", "feedback", "field"),
    [
        ("text", [], "runs"),
        ({"id": "1"}, [], "runs"),
        ([1], [], "runs"),
        ([{"inputs": {}}], [], "runs: a run has no `id`"),
        ([], [None], "feedback"),
        ([], {"key": "x"}, "feedback"),
        ([{"id": "1", "feedback": ["x"]}], [], "runs.feedback"),
    ],
)
def test_what_is_none_of_langsmith_s_is_named(runs: Any, feedback: Any, field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        feedback_from_langsmith(runs, feedback, criterion=CRITERION)
    assert str(caught.value).startswith(field)
    with pytest.raises(InvalidInputError, match=r"^criterion"):
        feedback_from_langsmith([], criterion="support_tone")  # type: ignore[arg-type]
