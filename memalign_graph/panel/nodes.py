"""The nodes of a panel's graph: one example, many criteria, each with a memory of its own."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import interrupt

from memalign_graph.context import resolve_context
from memalign_graph.effects import Call, Gather, Operation
from memalign_graph.errors import (
    ChatModelError,
    EmbeddingError,
    InvalidInputError,
    MemAlignError,
    ModelAnswerError,
)
from memalign_graph.graphs.judging import add_learning
from memalign_graph.graphs.options import Graph
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.memory.recall import embed_once, recall, recall_without_episodes
from memalign_graph.models import EmbeddingsLike
from memalign_graph.nodes.base import (
    Memories,
    OperationNode,
    Run,
    State,
    Update,
    example_of,
    warn_without_checkpointer,
)
from memalign_graph.nodes.distill import DistillView
from memalign_graph.nodes.judge import Judge
from memalign_graph.nodes.retrieve import OnEmbeddingError
from memalign_graph.pairwise import swap_outputs
from memalign_graph.panel.aggregate import AggregateResult, BoundAggregate
from memalign_graph.panel.form import panel_payload, panel_reply_schema
from memalign_graph.scales import Value
from memalign_graph.state import ReviewOutput, ReviewState
from memalign_graph.types import Criterion, Example, Feedback, Guideline, Judgment

logger = logging.getLogger(__name__)

Criteria = Mapping[str, Criterion]
"""A panel's criteria by name."""


@dataclass(frozen=True)
class Looking:
    """How a panel looks into its memories."""

    settings: Mapping[str, Any]
    """The graph's settings by the names of `MemAlignContext`'s fields."""

    use_guidelines: bool
    """Whether the judges are given guidelines."""

    use_episodes: bool
    """Whether the judges are shown similar cases."""

    on_embedding_error: OnEmbeddingError
    """What to do when an embedding call fails."""

    swap: bool
    """Whether the outputs have to be two, to be judged in both orders."""


def create_panel_retrieve_node(
    criteria: Criteria, embeddings: EmbeddingsLike, looking: Looking
) -> OperationNode:
    """Create the node that looks into every memory; the first of its graph.

    The example is embedded once, if any of the memories has something to find.

    Args:
        criteria: The criteria.
        embeddings: What the memories embed with.
        looking: How to look.

    Returns:
        The node; it reads an example and writes `PanelRetrieved`.
    """
    memories = {name: Memories(one, embeddings) for name, one in criteria.items()}

    def retrieve_episodes(state: State, run: Run) -> Operation[Update]:
        example = example_of({name: state[name] for name in Example.model_fields if name in state})
        if looking.swap:
            swap_outputs(example)  # called for its error, before any model is
        settings = resolve_context(run.context, looking.settings)
        accesses = {name: one.get(run, settings) for name, one in memories.items()}
        k = settings["k"] if looking.use_episodes else 0
        failure: EmbeddingError | None = None
        vector: Vector | None = None
        if k:
            refreshing = [access.refresh() for access in accesses.values()]
            yield Gather(refreshing, run.max_concurrency)
            try:
                vector = yield from embed_once(list(accesses.values()), example)
            except EmbeddingError as error:
                if looking.on_embedding_error == "raise":
                    raise
                failure = error
        found = yield Gather(
            [
                _look(access, example, k, vector, failure, use_guidelines=looking.use_guidelines)
                for access in accesses.values()
            ],
            run.max_concurrency,
        )
        return {
            "judge_example": example.to_json(),
            "judge_settings": settings,
            "memories": dict(zip(accesses, found, strict=True)),
            # What an earlier run on the same thread left.
            **dict.fromkeys(("judgments", "errors", "aggregate", "feedback", "learned")),
        }

    return OperationNode("retrieve_episodes", retrieve_episodes)


def _look(
    access: MemoryAccess,
    example: Example,
    k: int,
    vector: Vector | None,
    failure: EmbeddingError | None,
    *,
    use_guidelines: bool,
) -> Operation[Update]:
    if failure is None:
        found = yield from recall(access, example, k, vector=vector)
    else:
        found = yield from recall_without_episodes(access, failure)
    standing = (yield from access.all_guidelines()) if use_guidelines else []
    return {
        "recalled": [one.to_json() for one in found.examples],
        "recall_version": found.version,
        "recall_vector": found.vector,
        "recall_nearness": dict(found.nearness),
        "recall_warnings": [found.warning] if found.warning else [],
        "guidelines": [one.to_json() for one in standing],
    }


def create_judge_criterion_node(judges: Mapping[str, Judge]) -> OperationNode:
    """Create the node that judges one criterion; it is sent each of them, side by side.

    Args:
        judges: The judges by criterion.

    Returns:
        The node; it reads `OneCriterion`, and writes `judgments`, or `errors`.
    """

    def judge_criterion(state: State, run: Run) -> Operation[Update]:
        name = state["criterion"]
        try:
            judgment = yield from judges[name].judge(state, run)
        except InvalidInputError:
            raise
        except MemAlignError as error:
            logger.warning("The panel goes on without %r: %s", name, error)
            return {"errors": {name: str(error)}}
        run.write({"type": "panel_judgment", "criterion": name, "value": judgment.value})
        return {"judgments": {name: judgment.to_json()}}

    return OperationNode("judge_criterion", judge_criterion)


def create_gather_node(criteria: Criteria, aggregate: BoundAggregate | None) -> OperationNode:
    """Create the node that waits for all criteria, and makes one score of them where asked.

    Args:
        criteria: The criteria.
        aggregate: How to make one score; None if it is not asked for.

    Returns:
        The node; it writes `aggregate`.
    """

    def gather_judgments(state: State, _run: Run) -> Operation[Update]:
        yield from ()  # nothing is asked of the outside here
        if not state["judgments"]:
            first = next(iter(state["errors"].values()))
            raise ChatModelError(f"None of the {len(criteria)} criteria could be judged: {first}")
        return {"aggregate": _aggregated(aggregate, state, {}), "feedback": None}

    return OperationNode("gather_judgments", gather_judgments)


def create_panel_review_node(criteria: Criteria, aggregate: BoundAggregate | None) -> OperationNode:
    """Create the node that asks the expert about all criteria at once, and waits.

    Args:
        criteria: The criteria.
        aggregate: How to make one score; None if it is not asked for.

    Returns:
        The node; it writes `feedback` by criterion, None where the expert skipped, and the
        `aggregate` anew, with the expert's values in place of the judges'.
    """

    def collect_feedback(state: State, run: Run) -> Operation[Update]:
        yield from ()  # nothing is asked of the outside here
        warn_without_checkpointer(run, "panel")
        example = example_of(state)
        judgments = {name: Judgment.model_validate(one) for name, one in state["judgments"].items()}
        guidelines = {
            name: [Guideline.model_validate(one) for one in found["guidelines"]]
            for name, found in state["memories"].items()
        }
        asked = list(criteria.values())
        payload = panel_payload(
            asked, example, judgments, errors=state["errors"], guidelines=guidelines
        )
        reply: Any = interrupt(payload, response_schema=panel_reply_schema(asked, judgments))
        if reply.root is None:
            return {"feedback": None}
        feedback = {
            name: Feedback(
                example=example, judgment=judgments.get(name), thread_id=run.thread_id, **said
            )
            for name, said in reply.root.items()
        }
        values = {name: one.value for name, one in feedback.items() if one.value is not None}
        return {
            "feedback": {name: one.to_json() for name, one in feedback.items()},
            "aggregate": _aggregated(aggregate, state, values),
        }

    return OperationNode("collect_feedback", collect_feedback)


def create_learn_criterion_node(
    learning: Mapping[str, CompiledStateGraph[Any, Any, Any, Any]],
) -> OperationNode:
    """Create the node that learns from an expert's word on one criterion; it is sent each of them.

    Args:
        learning: The graphs that learn, by criterion: `learning_graph`.

    Returns:
        The node; it reads `OneFeedback`, and writes `learned`, or `errors`.
    """

    def learn_criterion(state: State, _run: Run) -> Operation[Update]:
        name = state["criterion"]
        graph = learning[name]
        given: Any = {key: state[key] for key in state if key != "criterion"}
        try:
            done = yield Call(lambda: graph.invoke(given), lambda: graph.ainvoke(given))
        except (ChatModelError, ModelAnswerError) as error:
            # The feedback was stored before the model was asked.
            logger.warning("Feedback on %r is kept, but not distilled yet: %s", name, error)
            sentence = (
                f"The feedback is kept, and distilled by the next review or alignment: {error}"
            )
            return {"errors": {name: sentence}}
        return {"learned": {name: done["learned"]}}

    return OperationNode("learn_criterion", learn_criterion)


def learning_graph(criterion: Criterion, **models: Any) -> Graph:
    """Make the graph that learns from feedback on one criterion.

    Args:
        criterion: The criterion.
        models: `model`, `distill_model` and `embeddings`.

    Returns:
        The graph: from what `DistillView` names to `learned`.
    """
    builder: Graph = StateGraph(ReviewState, input_schema=DistillView, output_schema=ReviewOutput)
    add_learning(builder, criterion, after=START, **models)
    return builder


def _aggregated(
    aggregate: BoundAggregate | None, state: State, corrected: Mapping[str, Value]
) -> AggregateResult | None:
    if aggregate is None:
        return None
    values = {name: one["value"] for name, one in state["judgments"].items()}
    return aggregate.of({**values, **corrected})
