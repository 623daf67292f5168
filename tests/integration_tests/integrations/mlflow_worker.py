"""What the real MLflow does with assessments and scorers, in a process of its own.

It ends with an AssertionError where something is not as it should be.
"""

from typing import Any

import mlflow
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.store.memory import InMemoryStore
from mlflow.entities import AssessmentSource, Feedback

from memalign_graph import Criterion, create_judge_graph, create_panel_graph
from memalign_graph.integrations import as_mlflow_scorer, feedback_from_mlflow

QUESTION = "Is the reply appropriate for the customer?"
CRITERION = Criterion(name="support_tone", instructions=QUESTION)
OTHER = Criterion(name="politeness", instructions="Is the reply polite?")
ANN = AssessmentSource("HUMAN", "ann")
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
    models: Any = {"model": ChatOpenAI(model="gpt-4.1-mini"), "embeddings": embeddings}
    judge = create_judge_graph(CRITERION, **models).compile(store=InMemoryStore())
    result = mlflow.genai.evaluate(data=DATA, scorers=[as_mlflow_scorer(judge)])
    assert result.metrics["support_tone/mean"] == 0.0, result.metrics
    traces = [mlflow.get_trace(trace_id) for trace_id in result.result_df["trace_id"]]
    traces.sort(key=lambda trace: trace.data.spans[0].outputs == "refused")
    good, refused = (
        next(item for item in trace.info.assessments if isinstance(item, Feedback))
        for trace in traces
    )
    assert (good.name, good.value, good.rationale) == ("support_tone", False, "Too cold.")
    assert good.source.source_type == "LLM_JUDGE"
    assert good.metadata["judgment_id"]
    assert (refused.value, refused.name) == (None, "memalign_judge")
    assert "refused by the server" in refused.error.error_message
    # A person overrides the verdict.
    mlflow.log_feedback(
        trace_id=good.trace_id, name="support_tone", value=True, rationale="Fine.", source=ANN
    )
    [feedback] = feedback_from_mlflow([mlflow.get_trace(good.trace_id)], CRITERION).feedback
    first = DATA[0]
    assert feedback.example.to_json() == {
        "inputs": first["inputs"],
        "outputs": first["outputs"],
        "reference_outputs": first["expectations"],
    }
    panel = create_panel_graph([CRITERION, OTHER], **models).compile(store=InMemoryStore())
    scorer = as_mlflow_scorer(panel, context={"k": 0})
    result = mlflow.genai.evaluate(data=DATA[:1], scorers=[scorer])
    assert {"support_tone/mean", "politeness/mean"} <= set(result.metrics)


def assess() -> None:
    """Import assessments from every form of a trace."""
    mlflow.set_experiment("assessed")
    with mlflow.start_span("support") as span:
        span.set_inputs({"question": "Where is it?"})
        span.set_outputs("Look it up.")
        with mlflow.start_span("tool") as inner:
            inner.set_inputs({"query": "Inner?"})
            inner.set_outputs("Found.")
    mlflow.flush_trace_async_logging()

    def log(**fields: Any) -> Any:
        data = {"trace_id": span.trace_id, "name": "support_tone", "source": ANN, **fields}
        return mlflow.log_feedback(**data)

    changed = {"value": False, "rationale": "Too cold.", "source": ANN}
    first = log(name="Support_Tone ", value=True)
    mlflow.override_feedback(trace_id=span.trace_id, assessment_id=first.assessment_id, **changed)
    log(source=AssessmentSource("HUMAN"), rationale="Words.")
    log(error=ValueError("x"))
    log(source=AssessmentSource("HUMAN", "bob"), value=True, span_id=inner.span_id)
    mlflow.log_expectation(trace_id=span.trace_id, name="facts", value=["late", "lost"])
    trace = mlflow.get_trace(span.trace_id)
    imported = feedback_from_mlflow([trace], CRITERION)
    by_author = {feedback.author: feedback for feedback in imported.feedback}
    ann, anonymous, bob = by_author["ann"], by_author[None], by_author["bob"]
    assert (ann.value, ann.rationale, ann.given_at.year > 2000) == (False, "Too cold.", True)
    assert ann.example.to_json() == {
        "inputs": {"question": "Where is it?"},
        "outputs": "Look it up.",
        "reference_outputs": {"facts": ["late", "lost"]},
    }
    assert (anonymous.value, anonymous.rationale) == (None, "Words.")
    assert (bob.value, bob.example.inputs) == (True, {"query": "Inner?"})
    reasons = {"it was overridden by another", "it is an error and has no value"}
    assert (imported.rejected, set(imported.passed_over)) == ([], reasons)
    for form in ([trace.to_dict()], [trace.to_json()], mlflow.search_traces()):
        again = feedback_from_mlflow(form, CRITERION)
        assert {feedback.author: feedback for feedback in again.feedback} == by_author


if __name__ == "__main__":
    assess()
    score()
