"""What the real MLflow has to do, in a process of its own, for it needs an older `openai`.

It ends with an AssertionError where something is not as it should.
"""

import asyncio
import json
from typing import Any

import mlflow
from langchain_openai import OpenAIEmbeddings
from langgraph.store.memory import InMemoryStore
from mlflow.entities import AssessmentSource, Feedback
from mlflow.genai.judges import make_judge
from mlflow.genai.judges.optimizers import MemAlignOptimizer
from mlflow.genai.scorers import get_scorer

from memalign_graph import Criterion, JudgeMemory
from memalign_graph import Feedback as OurFeedback
from memalign_graph.integrations import (
    aexport_to_mlflow,
    export_to_mlflow,
    feedback_from_mlflow,
    memory_from_mlflow,
)

MODEL = "openai:/gpt-4.1-mini"
CRITERION = Criterion(
    name="support_tone", instructions="Is the reply appropriate for the customer?"
)
ANN: dict[str, Any] = {
    "inputs": {"question": "My order never came."},
    "outputs": "Check the tracking page.",
    "value": False,
    "rationale": "Too cold: it must say sorry first.",
    "author": "ann",
    "given_at": "2024-05-01T10:00:00Z",
}
BOB: dict[str, Any] = {
    "inputs": {"question": "The cup arrived broken."},
    "outputs": {"answer": "We are sorry. A new one is on its way."},
    "value": True,
    "rationale": "Warm, and it helps.",
    "author": "bob",
    "id": "ticket-7",
    "given_at": "2024-05-02T10:00:00Z",
}
RECORDS = [
    ANN,
    BOB,
    {**ANN, "author": "cem", "rationale": "It sends the customer away."},
    {**ANN, "inputs": "Plain text.", "author": None, "rationale": "Cold."},
    {**ANN, "inputs": "Only words.", "value": None, "author": "dee"},
]
BY_HAND = "Begin with a word of regret."
DISTILLED = "A reply about a loss must say sorry first."


def memory_of(lines: list[str]) -> JudgeMemory:
    """A memory in RAM, with what the lines hold."""
    embeddings = OpenAIEmbeddings(model="text-embedding-3-small", check_embedding_ctx_length=False)
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=embeddings)
    if lines:
        memory.import_jsonl(lines)
    return memory


def taught() -> JudgeMemory:
    """Experts' words, a guideline by hand, and one of ann's and cem's words."""
    memory = memory_of([])
    ann, _, cem, *_ = memory.remember([OurFeedback.model_validate(one) for one in RECORDS])
    by_hand = memory.add_guideline(BY_HAND, author="ann")
    sources = {"text": DISTILLED, "episode_ids": [ann.id, cem.id], "author": None}
    # As an alignment writes it.
    distilled = by_hand.model_copy(update={**sources, "id": "g" * 32, "origin": "distilled"})
    head, *lines = memory.export_jsonl().splitlines()
    return memory_of([head, json.dumps({"type": "guideline", **distilled.to_json()}), *lines])


def export() -> None:
    """Export a memory, by a call and by an awaited one, and register the judge."""
    experiment = mlflow.set_experiment("support")
    memory = taught()
    awaited = asyncio.run(aexport_to_mlflow(memory))
    exported = export_to_mlflow(memory)
    for judge, trace_ids, left_out in (awaited, exported):
        for text in (DISTILLED, BY_HAND, CRITERION.instructions):
            assert text in judge.instructions
        dumped = judge.model_dump()["memory_augmented_judge_data"]["semantic_memory"]
        by_text = {one["guideline_text"]: one["source_trace_ids"] for one in dumped}
        assert by_text[BY_HAND] is None
        [source] = by_text[DISTILLED]  # both experts spoke of one example
        assert source in trace_ids.values()
        assert len(trace_ids) == len(set(trace_ids.values())) == 3
        [reason] = left_out.values()
        assert "no value" in reason
    exported.judge.register(experiment_id=experiment.experiment_id)


def judge_and_come_back() -> None:
    """Load the judge that was registered, ask it, and read it into a memory."""
    experiment = mlflow.set_experiment("support")
    loaded = get_scorer(name="support_tone", experiment_id=experiment.experiment_id)
    verdict = loaded(inputs={"question": "My order never came!"}, outputs="Look at the page.")
    assert verdict.value is False
    assert len(set(verdict.metadata["retrieved_example_trace_ids"])) == 3
    imported = memory_from_mlflow(loaded, CRITERION)
    assert (imported.rejected, imported.missing_trace_ids) == ([], [])
    memory, original = memory_of(imported.lines), taught()
    once = memory.version()
    memory.import_jsonl(memory_from_mlflow(loaded, CRITERION).lines)
    assert memory.version() == once
    came = {one.id: one for one in memory.episodes()}
    went = {one.id: one for one in original.episodes() if one.value is not None}
    assert came.keys() == went.keys()
    for key, one in came.items():
        assert one.says_the_same_as(went[key])
        assert (one.feedback_id, one.given_at) == (went[key].feedback_id, went[key].given_at)
        assert one.status == "distilled"
    theirs, ours = (
        {one.text: (one.origin, sorted(one.episode_ids)) for one in known.guidelines()}
        for known in (memory, original)
    )
    assert theirs == ours


def align_there() -> None:
    """Align a judge with MLflow's own MemAlign, then read what it learned."""
    mlflow.set_experiment("support")
    base = make_judge(
        name="support_tone",
        instructions="Is it right? {{ inputs }} {{ outputs }}",
        model=MODEL,
        feedback_value_type=bool,
    )
    traces = []
    for record in (ANN, BOB):
        trace_id = log_trace(record["inputs"], record["outputs"])
        source = AssessmentSource("HUMAN", record["author"])
        words = {name: record[name] for name in ("value", "rationale")}
        mlflow.log_feedback(trace_id=trace_id, name="support_tone", source=source, **words)
        traces.append(mlflow.get_trace(trace_id))
    aligned = base.align(traces=traces, optimizer=MemAlignOptimizer(reflection_lm=MODEL))
    memory = memory_of(memory_from_mlflow(aligned, CRITERION).lines)
    authors = {one.id: one.author for one in memory.episodes()}
    assert {
        one.text: sorted(str(authors[key]) for key in one.episode_ids)
        for one in memory.guidelines()
    } == {"Say sorry first.": ["ann"], "Offer help.": ["ann", "bob"]}
    memory.forget(author="ann")
    assert [one.text for one in memory.guidelines()] == ["Offer help."]


def assess() -> None:
    """Read what MLflow makes of assessments, in every form that it gives traces in."""
    mlflow.set_experiment("assessed")
    trace_id = log_trace({"question": "Where is it?"}, "Look it up.")
    ann = AssessmentSource("HUMAN", "ann")

    def log(**fields: Any) -> Any:
        given = {"trace_id": trace_id, "name": "support_tone", "source": ann, **fields}
        return mlflow.log_feedback(**given)

    first = log(name="Support_Tone ", value=True)
    mlflow.override_feedback(
        trace_id=trace_id,
        assessment_id=first.assessment_id,
        value=False,
        rationale="Too cold.",
        source=ann,
    )
    at = {"create_time_ms": 1_700_000_000_000, "last_update_time_ms": 1_700_000_000_000}
    bob = AssessmentSource("HUMAN", "bob")
    said = Feedback(name="support_tone", value="yes", source=bob, **at)
    given = mlflow.log_assessment(trace_id, said)
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

    traces = [mlflow.get_trace(one) for one in (trace_id, span.trace_id)]
    found = feedback_from_mlflow(traces, CRITERION)
    word, from_bob, words, on_a_span = in_order(found)
    assert (word.author, word.value, word.rationale) == ("ann", False, "Too cold.")
    assert word.example.to_json() == {
        "inputs": {"question": "Where is it?"},
        "outputs": "Look it up.",
        "reference_outputs": {"facts": ["late", "lost"]},
    }
    assert (from_bob.author, from_bob.value, from_bob.id) == ("bob", True, given.assessment_id)
    assert from_bob.given_at.isoformat().startswith("2023-11-14T22:13:20")
    assert (words.author, words.value, words.rationale) == (None, None, "Words.")
    assert (on_a_span.example.inputs, on_a_span.example.outputs) == ({"query": "Inner?"}, "Found.")
    assert len(found.passed_over) == 2
    reasons = " ".join(one.reason for one in found.rejected)
    assert len(found.rejected) == 3
    for part in ("[1.0, 'a'] is not on", "is an error", "outputs: must not be"):
        assert part in reasons
    for form in (
        [one.to_dict() for one in traces],
        [one.to_json() for one in traces],
        mlflow.search_traces(),
    ):
        assert in_order(feedback_from_mlflow(form, CRITERION)) == in_order(found)


def in_order(found: Any) -> list[OurFeedback]:
    """Ann's word, bob's, that of nobody, and the one on a span."""
    order = [("Look it up.", "Too cold."), ("Look it up.", None), ("Look it up.", "Words.")]
    order.append(("Found.", None))
    return sorted(found.feedback, key=lambda one: order.index((one.example.outputs, one.rationale)))


def log_trace(inputs: Any, outputs: Any) -> str:
    with mlflow.start_span("support") as span:
        span.set_inputs(inputs)
        span.set_outputs(outputs)
    mlflow.flush_trace_async_logging()
    return str(span.trace_id)


if __name__ == "__main__":
    for step in (export, judge_and_come_back, align_there, assess):
        step()
