"""The nodes of a panel's graph: one example, many criteria, each with a memory of its own."""

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import interrupt

from memalign_graph.errors import (
    ChatModelError,
    EmbeddingError,
    InvalidInputError,
    MemAlignError,
    ModelAnswerError,
)
from memalign_graph.graphs.judging import add_learning
from memalign_graph.graphs.options import Graph
from memalign_graph.io import IO
from memalign_graph.nodes.base import (
    OperationNode,
    Run,
    State,
    Update,
    example_of,
    warn_without_checkpointer,
)
from memalign_graph.nodes.distill import DistillView
from memalign_graph.nodes.judge import Judge
from memalign_graph.panel.aggregate import AggregateResult, BoundAggregate
from memalign_graph.panel.form import panel_payload, panel_reply_schema
from memalign_graph.panel.retrieve import Criteria, attempt
from memalign_graph.scales import Value
from memalign_graph.state import ReviewOutput, ReviewState
from memalign_graph.types import Criterion, Feedback, Guideline, Judgment

T = TypeVar("T")

logger = logging.getLogger(__name__)

_KINDS = {one.__name__: one for one in (ChatModelError, ModelAnswerError)}
"""The errors of models, by what the state calls them."""


def create_judge_criterion_node(judges: Mapping[str, Judge]) -> OperationNode:
    """Create the node that judges one criterion; it is sent each of them, side by side."""

    async def judge_criterion(io: IO, state: State, run: Run) -> Update:
        name = state["criterion"]
        done = await judge_one(io, judges[name], state, run)
        if isinstance(done, Judgment):
            return {"judgments": {name: done.to_json()}}
        return {"errors": {name: str(done)}, "kinds": {name: type(done).__name__}}

    return OperationNode("judge_criterion", judge_criterion)


async def judge_one(io: IO, judge: Judge, state: State, run: Run) -> Judgment | MemAlignError:
    """Judge one criterion."""
    name = state["criterion"]
    if "error" in state:
        done: Judgment | MemAlignError = MemAlignError(state["error"])
    else:
        done = await attempt(judge.judge(io, state, run))
    if isinstance(done, Judgment):
        run.write({"type": "panel_judgment", "criterion": name, "value": done.value})
    else:
        logger.warning("The panel goes on without %r: %s", name, done)
    return done


def to_judge(state: State) -> dict[str, dict[str, Any]]:
    """Return what `judge_criterion` is sent."""
    shared = {key: state[key] for key in ("judge_example", "judge_settings")}
    return {
        name: {**shared, **found, "criterion": name} for name, found in state["memories"].items()
    }


def create_gather_node(
    judges: Mapping[str, Judge], aggregate: BoundAggregate | None
) -> OperationNode:
    """Create the node that waits for all criteria, and makes one score of them where asked."""

    async def gather_judgments(io: IO, state: State, run: Run) -> Update:
        judgments = state["judgments"]
        update: Update = {}
        if not judgments and run.resuming:
            update = await _judge_again(io, judges, state, run)
            judgments = update["judgments"]
        if not judgments:
            known = {**state, **update}
            first = next(iter(known["errors"]))
            kind = _KINDS.get(known["kinds"].get(first), MemAlignError)
            raise kind(
                f"None of the {len(judges)} criteria could be judged: {known['errors'][first]}"
            )
        return {**update, "aggregate": _aggregated(aggregate, judgments, {}), "feedback": None}

    return OperationNode("gather_judgments", gather_judgments)


async def _judge_again(io: IO, judges: Mapping[str, Judge], state: State, run: Run) -> Update:
    given = to_judge(state)
    again = [judge_one(io, judges[name], one, run) for name, one in given.items()]
    done = dict(zip(given, await io.gather(again, run.max_concurrency), strict=True))
    failed = {name: one for name, one in done.items() if not isinstance(one, Judgment)}
    judged = {name: one.to_json() for name, one in done.items() if isinstance(one, Judgment)}
    return {
        "judgments": judged,
        "errors": {name: str(one) if name in failed else None for name, one in done.items()},
        "kinds": {name: type(one).__name__ for name, one in failed.items()},
    }


def create_panel_review_node(criteria: Criteria, aggregate: BoundAggregate | None) -> OperationNode:
    """Create the node that asks the expert about all criteria at once, and waits."""

    async def collect_feedback(_io: IO, state: State, run: Run) -> Update:
        warn_without_checkpointer(run, "panel")
        example = example_of(state)
        judgments = {name: Judgment.model_validate(one) for name, one in state["judgments"].items()}
        guidelines = {
            name: [Guideline.model_validate(one) for one in found.get("guidelines", [])]
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
            "aggregate": _aggregated(aggregate, state["judgments"], values),
        }

    return OperationNode("collect_feedback", collect_feedback)


def create_learn_criterion_node(
    learning: Mapping[str, CompiledStateGraph[Any, Any, Any, Any]],
) -> OperationNode:
    """Create the node that learns from an expert's word on one criterion."""

    async def learn_criterion(io: IO, state: State, _run: Run) -> Update:
        name = state["criterion"]
        graph = learning[name]
        given: Any = {key: state[key] for key in state if key not in ("criterion", "error")}
        try:
            done = await io.call(lambda: graph.invoke(given), lambda: graph.ainvoke(given))
        except (InvalidInputError, EmbeddingError):
            raise
        except MemAlignError as error:
            # Before a model is asked, the feedback is stored.
            is_kept = isinstance(error, ChatModelError | ModelAnswerError)
            what = (
                "The feedback is kept, and distilled by the next review or alignment"
                if is_kept
                else "Nothing was learned"
            )
            logger.warning("Learning on %r failed: %s: %s", name, what, error)
            return {"errors": {name: f"{what}: {error}"}}
        return {"learned": {name: done["learned"]}}

    return OperationNode("learn_criterion", learn_criterion)


def learning_graph(criterion: Criterion, **models: Any) -> Graph:
    """Make the graph that learns from feedback on one criterion."""
    builder: Graph = StateGraph(ReviewState, input_schema=DistillView, output_schema=ReviewOutput)
    add_learning(builder, criterion, after=START, **models)
    return builder


def _aggregated(
    aggregate: BoundAggregate | None,
    judgments: Mapping[str, Any],
    corrected: Mapping[str, Value],
) -> AggregateResult | None:
    if aggregate is None:
        return None
    return aggregate.of({**{name: one["value"] for name, one in judgments.items()}, **corrected})
