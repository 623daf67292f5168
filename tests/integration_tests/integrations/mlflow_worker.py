"""What the real MLflow does with assessments and scorers, in a process of its own.

It ends with an AssertionError where something is not as it should be.
"""

from typing import Any

import mlflow
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.store.memory import InMemoryStore
from mlflow.entities import AssessmentSource, Feedback

from memalign_graph import Criterion, create_alignment_graph, create_judge_graph, create_panel_graph
from memalign_graph import Feedback as OurFeedback
from memalign_graph.integrations import as_mlflow_scorer, feedback_from_mlflow

CRITERION = Criterion(
    name="support_tone", instructions="Is the reply appropriate for the customer?"
)
OTHER = Criterion(name="politeness", instructions="Is the reply polite?")
DATA: list[dict[str, Any]] = [
    {
        "inputs": {"question": "My order never came."},
        "outputs": "Check the tracking page.",
        "expectations": {"expected_response": "We are sorry."},
    },
    {"inputs": {"question": "It is broken."}, "outputs": "refused"},
]


def score() -> None:
    """Have `mlflow.genai.evaluate` score two answers by a judge, then by a panel."""
    mlflow.set_experiment("scored")
    embeddings = OpenAIEmbeddings(model="text-embedding-3-small", check_embedding_ctx_length=False)
    model = ChatOpenAI(model="gpt-4.1-mini")
    store = InMemoryStore()
    judge = create_judge_graph(CRITERION, model=model, embeddings=embeddings).compile(store=store)
    result = mlflow.genai.evaluate(data=DATA, scorers=[as_mlflow_scorer(judge)])
    assert result.metrics["support_tone/mean"] == 0.0, result.metrics
    good, refused = by_outputs(result)
    assert (good.name, good.value, good.rationale) == ("support_tone", False, "Too cold.")
    assert good.source.source_type == "LLM_JUDGE"
    assert good.metadata["judgment_id"]
    assert (refused.value, refused.name) == (None, "memalign_judge")
    assert "refused by the server" in refused.error.error_message
    # A person overrides the verdict, and the judge learns from it.
    ann = AssessmentSource("HUMAN", "ann")
    mlflow.log_feedback(
        trace_id=good.trace_id, name="support_tone", value=True, rationale="Fine.", source=ann
    )
    imported = feedback_from_mlflow([mlflow.get_trace(good.trace_id)], CRITERION)
    [feedback] = imported.feedback
    assert feedback.example.to_json() == {
        "inputs": DATA[0]["inputs"],
        "outputs": DATA[0]["outputs"],
        "reference_outputs": DATA[0]["expectations"],
    }
    learning = create_alignment_graph(CRITERION, model=model, embeddings=embeddings)
    learned = learning.compile(store=store).invoke({"feedback": imported.feedback})
    assert learned["report"]["rejected"] == []
    panel = create_panel_graph([CRITERION, OTHER], model=model, embeddings=embeddings)
    scorer = as_mlflow_scorer(panel.compile(store=store), context={"k": 0})
    result = mlflow.genai.evaluate(data=DATA[:1], scorers=[scorer])
    assert {"support_tone/mean", "politeness/mean"} <= set(result.metrics)


def by_outputs(result: Any) -> list[Any]:
    """Return the assessments by the judge: of the first answer, and of the refused one."""
    traces = [mlflow.get_trace(trace_id) for trace_id in result.result_df["trace_id"]]
    traces.sort(key=lambda trace: trace.data.spans[0].outputs == "refused")
    assessments = [trace.info.assessments for trace in traces]
    return [next(item for item in items if isinstance(item, Feedback)) for items in assessments]


def assess() -> None:
    """Import assessments from every trace format of MLflow."""
    mlflow.set_experiment("assessed")
    trace_id = log_trace({"question": "Where is it?"}, "Look it up.")
    ann = AssessmentSource("HUMAN", "ann")

    def log(**fields: Any) -> Any:
        data = {"trace_id": trace_id, "name": "support_tone", "source": ann, **fields}
        return mlflow.log_feedback(**data)

    first = log(name="Support_Tone ", value=True)
    mlflow.override_feedback(
        trace_id=trace_id,
        assessment_id=first.assessment_id,
        value=False,
        rationale="Too cold.",
        source=ann,
    )
    times = {"create_time_ms": 1_700_000_000_000, "last_update_time_ms": 1_700_000_000_000}
    bob = AssessmentSource("HUMAN", "bob")
    bobs_feedback = Feedback(name="support_tone", value="yes", source=bob, **times)
    data = mlflow.log_assessment(trace_id, bobs_feedback)
    log(source=AssessmentSource("LLM_JUDGE", "gpt"), value=True, rationale="I, robot.")
    log(source=AssessmentSource("HUMAN"), value=[1, "a"])
    log(source=AssessmentSource("HUMAN"), rationale="Words.")
    log(error=ValueError("x"))
    mlflow.log_expectation(trace_id=trace_id, name="facts", value=["late", "lost"])
    with mlflow.start_span("support") as span:
        span.set_inputs({"question": "Outer?"})
        with mlflow.start_span("tool") as inner:
            inner.set_inputs({"query": "Inner?"})
            inner.set_outputs("Found.")
    mlflow.flush_trace_async_logging()
    log(trace_id=span.trace_id, value=True, span_id=inner.span_id)
    log(trace_id=span.trace_id, value=True, source=bob)  # the root has no outputs

    traces = [mlflow.get_trace(value) for value in (trace_id, span.trace_id)]
    imported = feedback_from_mlflow(traces, CRITERION)
    comment, from_bob, feedback, on_a_span = in_order(imported)
    assert (comment.author, comment.value, comment.rationale) == ("ann", False, "Too cold.")
    assert comment.example.to_json() == {
        "inputs": {"question": "Where is it?"},
        "outputs": "Look it up.",
        "reference_outputs": {"facts": ["late", "lost"]},
    }
    assert (from_bob.author, from_bob.value, from_bob.id) == ("bob", True, data.assessment_id)
    assert from_bob.given_at.isoformat().startswith("2023-11-14T22:13:20")
    assert (feedback.author, feedback.value, feedback.rationale) == (None, None, "Words.")
    assert (on_a_span.example.inputs, on_a_span.example.outputs) == ({"query": "Inner?"}, "Found.")
    assert len(imported.passed_over) == 2
    reasons = " ".join(item.reason for item in imported.rejected)
    assert len(imported.rejected) == 3
    for part in ("[1.0, 'a'] is not on", "is an error", "outputs: must not be"):
        assert part in reasons
    for form in (
        [trace.to_dict() for trace in traces],
        [trace.to_json() for trace in traces],
        mlflow.search_traces(),
    ):
        assert in_order(feedback_from_mlflow(form, CRITERION)) == in_order(imported)


def in_order(imported: Any) -> list[OurFeedback]:
    """Feedback of Ann, of Bob, without an author, and on a span."""
    order = [("Look it up.", "Too cold."), ("Look it up.", None), ("Look it up.", "Words.")]
    order.append(("Found.", None))
    return sorted(
        imported.feedback,
        key=lambda episode: order.index((episode.example.outputs, episode.rationale)),
    )


def log_trace(inputs: Any, outputs: Any) -> str:
    with mlflow.start_span("support") as span:
        span.set_inputs(inputs)
        span.set_outputs(outputs)
    mlflow.flush_trace_async_logging()
    return str(span.trace_id)


if __name__ == "__main__":
    assess()
    score()
