"""Panels: one example judged by many criteria concurrently, each with a memory of its own.

The graph has a node for each criterion, so a run that breaks off keeps the judgments it has. One
interrupt with one action asks about all criteria, since Agent Inbox shows only the first action.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Annotated, Any

from langgraph.graph import END, START, StateGraph
from pydantic import Field, SkipValidation
from typing_extensions import TypedDict, Unpack

from memalign_graph.agreement import is_ordered, value_or_none
from memalign_graph.errors import (
    ChatModelError,
    EmbeddingError,
    InvalidInputError,
    MemAlignError,
    ModelAnswerError,
    StoreError,
)
from memalign_graph.graphs import Graph, new_builder, route_to_review
from memalign_graph.judging.case import Retrieved, prepare_example, recall_similar
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.recall import embed_once
from memalign_graph.nodes import judge as judging
from memalign_graph.nodes.learn import commit_memory, distill_feedback
from memalign_graph.nodes.review import make_feedback
from memalign_graph.panel_form import check_names, panel_form
from memalign_graph.runtime import (
    DEFAULT_MAX_CONCURRENCY,
    Clients,
    JudgeResources,
    Node,
    NodeCall,
    State,
    StateUpdate,
    is_resuming,
    require_channel,
)
from memalign_graph.scales import (
    Boolean,
    Pairwise,
    Passes,
    PassRule,
    Scale,
    Value,
    share_of_scale,
)
from memalign_graph.settings import Judge, JudgeOptions, PanelReview, PanelSettings, Settings
from memalign_graph.state import RunInput
from memalign_graph.types import Criterion, Example, Judgment

logger = logging.getLogger(__name__)

_GONE = "Nothing was learned: the panel has no such criterion."
_STORED = "The feedback is stored, and the next review or alignment distills it"


class AggregateResult(TypedDict):
    """One score of many criteria."""

    score: float | None
    """The weighted mean of the parts, from 0 to 1; None if nothing with a weight was judged."""
    passed: bool | None
    """Whether the score reaches `passes` without a veto; None without `passes` and vetoes."""
    parts: dict[str, float]  # each criterion's value on a scale from 0 to 1
    vetoed_by: list[str]
    missing: list[str]
    """Criteria that could not be judged. They do not count in the mean; one with a veto fails."""


class Aggregate(Settings):
    """How to compute one score of many criteria.

    A value counts from 0 to 1: true is 1; a number counts by its place between minimum and maximum;
    an ordered choice by its place among the choices. Other scales can veto, but have no weight.

    Raises:
        InvalidInputError: If an option is invalid; from `create_panel_graph`, if it does not fit
            the panel's criteria.
    """

    weights: Mapping[str, Annotated[float, Field(ge=0, le=1e6)]] = Field(default_factory=dict)
    """How much each criterion counts; 1 if it is not named and its scale has an order."""
    vetoes: Mapping[str, SkipValidation[Passes]] = Field(default_factory=dict)
    """The values that a criterion must reach by itself, as a gate's `passes`."""
    passes: float | None = Field(default=None, ge=0, le=1)
    """The lowest score that passes, from 0 to 1; None for none."""

    def bind(
        self, criteria: Iterable[Criterion]
    ) -> Callable[[Mapping[str, Value]], AggregateResult]:
        """Check the options against the criteria; return the function from values to score."""
        scales = {criterion.name: criterion.scale for criterion in criteria}
        self._check(scales)
        weights = {
            name: self.weights.get(name, 1.0) for name, scale in scales.items() if _has_share(scale)
        }
        if not any(weights.values()) and (self.passes is not None or not self.vetoes):
            raise InvalidInputError(
                "aggregate: no criterion of this panel has a weight, so there is no score. Scales "
                "without an order can only veto: give vetoes=..., and no `passes`."
            )
        rules = {
            name: PassRule.of(scales[name], rule, f"vetoes: {name!r}")
            for name, rule in self.vetoes.items()
        }

        def score_of(values: Mapping[str, Value]) -> AggregateResult:
            ordered = [name for name in weights if name in values]
            parts = {name: share_of_scale(values[name], scales[name]) or 0.0 for name in ordered}
            shares = [weights[name] for name in ordered]
            score = fmean(parts.values(), shares) if any(shares) else None
            vetoed = [
                name for name in rules if name in values and not rules[name].passes(values[name])
            ]
            missing = [name for name in scales if name not in values]
            passed = None
            if self.passes is not None or rules:
                passed = not vetoed and rules.keys().isdisjoint(missing)
            if passed and self.passes is not None:
                passed = score is not None and score >= self.passes * (1 - 1e-9)  # rounding
            return AggregateResult(
                score=score, passed=passed, parts=parts, vetoed_by=vetoed, missing=missing
            )

        return score_of

    def _check(self, scales: Mapping[str, Scale]) -> None:
        for option, values in {"weights": self.weights, "vetoes": self.vetoes}.items():
            if unknown := [name for name in values if name not in scales]:
                raise InvalidInputError(
                    f"{option}: {unknown[0]!r} is not a criterion of this panel. It has: "
                    f"{', '.join(scales)}."
                )
        for name, weight in self.weights.items():
            if weight and not _has_share(scales[name]):
                raise InvalidInputError(
                    f"weights: the scale of {name!r} has no order, so it can't count in a mean. "
                    "Give it a veto instead, or `ordered=True`."
                )


def _has_share(scale: Scale) -> bool:
    """Return whether `share_of_scale` maps the scale's values to 0 to 1."""
    return isinstance(scale, Boolean) or is_ordered(scale)


def merge(old: dict[str, Any], new: dict[str, Any] | None) -> dict[str, Any]:
    """Merge what the criteria's nodes write; None clears it."""
    return {} if new is None else {**old, **new}


ByCriterion = Annotated[dict[str, Any], merge]


class PanelOutput(TypedDict):
    """What a panel returns, as JSON; all but the aggregate by criterion."""

    judgments: ByCriterion
    errors: ByCriterion
    """Why a criterion could not be judged, or the feedback on it not distilled."""
    aggregate: dict[str, Any] | None
    feedback: dict[str, Any] | None  # None if no expert was asked, or none answered
    learned: ByCriterion  # as in a review graph


class PanelState(RunInput, PanelOutput):
    """All channels of a panel's graph; the last five are private."""

    broken_guidelines: ByCriterion
    judge_run: dict[str, Any]  # the `example`, its `vector` and the run's `settings`
    judge_memories: ByCriterion
    """What was retrieved for each criterion (`Retrieved`), without the example's vector."""
    judge_failures: ByCriterion  # the class of the error, if a criterion could not be judged
    learn_failures: ByCriterion  # the error, if the feedback on a criterion was not learned


class _PanelGraph(StateGraph[Any, Any, Any, Any]):
    """A graph that runs all criteria concurrently, also if LangGraph would start fewer threads."""

    def compile(self, *args: Any, **options: Any) -> Any:
        compiled = super().compile(*args, **options)
        return compiled.with_config(max_concurrency=DEFAULT_MAX_CONCURRENCY)


def create_panel_graph(
    criteria: Sequence[Criterion],
    *,
    review: PanelReview = "never",
    aggregate: Aggregate | None = None,
    **judge: Unpack[JudgeOptions],
) -> Graph:
    """Create the graph that judges one example by many criteria concurrently.

    Each criterion has its own memory, the same as in a graph of its own. The example is embedded
    once. If a criterion can't be judged, `errors` has the reason, and the others are still judged.
    If none can be judged, the run fails, and judges again when it is resumed. A run that breaks
    off keeps the judgments it has.

    `{inputs, outputs, reference_outputs?}` -> `{judgments, errors, aggregate, feedback, learned}`,
    all but the aggregate by criterion, and `broken_guidelines` with `cite_guidelines=True`.

    Args:
        criteria: One or more criteria with different names.
        review: When the expert is asked about all criteria in one form: `never`, `always`, or a
            function of the judgments by criterion. If the function looks up a criterion that
            failed, the expert is asked.
        aggregate: How to compute one score; None for none.
        judge: The options of a `Judge`, the same for all; `swap` applies to pairwise scales.

    Returns:
        The graph, to be compiled with a store, and with a checkpointer if experts are asked.

    Raises:
        InvalidInputError: If an option is invalid; ImportError if an extra is missing.
    """
    panel = _Panel(criteria, judge, aggregate, PanelSettings(review=review).review)
    representative, size = panel.representative, len(panel.resources)
    builder = new_builder(representative, PanelState, PanelOutput, builder_class=_PanelGraph)
    builder.add_node(Node(panel.retrieve_episodes, representative, is_first=True))
    for operation in (panel.judge_criteria, panel.collect_feedback, panel.learn_criteria):
        builder.add_node(Node(operation, representative))
    builder.add_edge(START, "retrieve_episodes")
    judges, learners = dict[str, str](), dict[str, str]()
    for number, (name, resources) in enumerate(panel.resources.items(), 1):
        suffix = f"{number:0{len(str(size))}}"  # LangGraph merges results in the order of names
        judges[name], learners[name] = f"judge_{suffix}", f"learn_{suffix}"
        builder.add_node(Node(judge_one, resources, name=judges[name], parallel=size))
        builder.add_node(Node(learn_one, resources, name=learners[name], parallel=size))
        builder.add_edge("retrieve_episodes", judges[name])
        builder.add_edge(judges[name], "judge_criteria")
        builder.add_edge(learners[name], "learn_criteria")
    route = route_to_review(lambda state: _decide(review, state))
    builder.add_conditional_edges(
        "judge_criteria",
        lambda state: _rest(judges, judges, state["judgments"], state["errors"]) or route(state),
        ["collect_feedback", *judges.values(), END],
    )
    builder.add_conditional_edges(
        "collect_feedback",
        lambda state: "learn_criteria" if state["feedback"] else END,
        ["learn_criteria", END],
    )
    builder.add_conditional_edges(
        "learn_criteria",
        lambda state: _rest(learners, state["feedback"], state["learned"], state["learn_failures"]),
        [*learners.values(), END],
    )
    return builder


def _rest(nodes: State, names: State, done: State, failed: State) -> list[str]:
    """Return the nodes of the criteria that are left, as node 1 may have had another criterion."""
    return [nodes[name] for name in names if name in nodes and name not in {**done, **failed}]


def _decide(review: Any, state: State) -> Any:
    """Call the function; if it looks up a criterion that could not be judged, ask the expert."""
    try:
        return review(_judgments(state))
    except KeyError as error:
        if state["errors"].keys().isdisjoint(error.args):
            raise
        return True


class _Panel:
    """The judges of a panel, with shared clients, and its nodes."""

    def __init__(self, criteria: Any, options: JudgeOptions, aggregate: Any, review: Any) -> None:
        if not isinstance(criteria, Sequence) or not criteria:
            raise InvalidInputError("criteria: give a list of one or more Criterion.")
        swaps = options.get("swap") is True
        judges = []
        for criterion in criteria:
            is_pairwise = isinstance(getattr(criterion, "scale", None), Pairwise)
            own = {**options, "swap": is_pairwise} if swaps else options
            judges.append(Judge(criterion=criterion, **own))
        if swaps and not any(judge.swap for judge in judges):
            raise InvalidInputError("swap: none of the criteria has scale=Pairwise().")
        check_names([judge.criterion.name for judge in judges])
        if not isinstance(aggregate, Aggregate | None):
            raise InvalidInputError("aggregate: give Aggregate(weights=..., vetoes=...), or None.")
        clients = Clients(judges[0].embeddings)
        self.resources = {
            judge.criterion.name: JudgeResources(judge, review, clients) for judge in judges
        }
        self.representative = max(
            self.resources.values(), key=lambda each: isinstance(each.criterion.scale, Pairwise)
        )
        """One with a pair, if any has; otherwise they differ only in their criteria."""
        self.criteria = {name: resources.criterion for name, resources in self.resources.items()}
        self.aggregate = None if aggregate is None else aggregate.bind(self.criteria.values())

    async def retrieve_episodes(self, call: NodeCall) -> StateUpdate:
        """Check and embed the example, and clear the results of an earlier run on the thread."""
        settings = call.settings
        if settings["review"] is not None:
            PanelSettings(review=settings["review"])  # a parent's context may hold another mode
        example, vector, problem = prepare_example(call), None, None
        if call.finds_similar:
            try:
                vector = await self._embed(call, example)
            except EmbeddingError as error:
                if call.judge.on_embedding_error == "raise":
                    raise
                problem = str(error)
        blank = dict.fromkeys(PanelState.__annotations__.keys() - RunInput.__annotations__.keys())
        judge_run = {"example": example.to_json(), "settings": settings, "vector": vector}
        return {**blank, "judge_run": {**judge_run, "embedding_error": problem}}

    async def judge_criteria(self, call: NodeCall) -> StateUpdate:
        """Compute the score; without a judgment fail, and judge again when the run is resumed."""
        state = call.state
        if state["judgments"]:
            return {"aggregate": self._aggregated(state["judgments"], {})}
        # A retry has all failures already; only a resumed run judges again.
        if is_resuming() and getattr(call.runtime.execution_info, "node_attempt", 1) == 1:
            return {"errors": None, "judge_failures": None}
        # In the panel's order, so that the error is the same in each run.
        name = next(name for name in self.resources if name in state["errors"])
        kinds = {kind.__name__: kind for kind in (ModelAnswerError, EmbeddingError)}
        kind = kinds.get(state["judge_failures"][name], ChatModelError)
        message = f"None of the {len(self.resources)} criteria could be judged: "
        raise kind(message + state["errors"][name])

    async def collect_feedback(self, call: NodeCall) -> StateUpdate:
        call.warn_without_checkpointer("panel")
        state, example = call.state, call.example
        judgments, guidelines = _judgments(state), {}
        memories = require_channel(state, "judge_memories")
        accesses = await self._readable(call)  # before the question, as in `collect_feedback`
        for name in [name for name in accesses if name in memories]:  # it may be a new panel
            memory = await Retrieved.load(call.io, accesses[name], memories[name])
            guidelines[name] = memory.all_guidelines
        was_shown = is_resuming()
        replies = panel_form(
            self.criteria,
            example,
            judgments,
            errors=state["errors"],
            guidelines=guidelines,
            was_shown=was_shown,
        ).ask(call.settings["namespace"])
        if replies is None:
            return {"feedback": None}
        feedback = {}
        for name, fields in replies.items():
            judgment = judgments.get(name) if was_shown else None
            access = self.resources[name].memory(call.access.store, call.settings)
            feedback[name] = make_feedback(replace(call, access=access), fields, example, judgment)
        given = {name: fields for name, fields in feedback.items() if fields is not None}
        return {"feedback": given, "aggregate": self._aggregated(state["judgments"], given)}

    async def learn_criteria(self, call: NodeCall) -> StateUpdate:
        """Embed the example for the memories that learn, if judging did not."""
        judge_run = require_channel(call.state, "judge_run")
        errors = dict.fromkeys(call.state["feedback"].keys() - self.resources.keys(), _GONE)
        if call.access.load_vector(judge_run["vector"]) is not None:
            return {"errors": errors}
        vector = None
        try:
            vector = await self._embed(call, call.example, always=True)
        except EmbeddingError as error:
            if not error.is_refusal:
                raise
        return {"errors": errors, "judge_run": {**judge_run, "vector": vector}}

    async def _embed(self, call: NodeCall, example: Example, *, always: bool = False) -> str | None:
        accesses = [*(await self._readable(call)).values()]
        vector = await embed_once(call.io, accesses, example, always=always)
        return None if vector is None else call.access.dump_vector(vector)

    async def _readable(self, call: NodeCall) -> dict[str, MemoryAccess]:
        """Refresh the memories; without those that fail, which `learn_one` reports."""
        accesses = {}
        for name, resources in self.resources.items():
            access = resources.memory(call.access.store, call.settings)
            try:
                await access.refresh(call.io)
                accesses[name] = access
            except MemAlignError as error:
                _log_or_raise(name, error)
        return accesses

    def _aggregated(
        self, judgments: Mapping[str, Any], feedback: Mapping[str, Any]
    ) -> AggregateResult | None:
        """Compute the score; an expert's value replaces the judge's."""
        newest_last = [*judgments.items(), *feedback.items()]
        values = {
            name: value
            for name, fields in newest_last
            if name in self.criteria
            and (value := value_or_none(fields["value"], self.criteria[name].scale)) is not None
        }
        return None if self.aggregate is None else self.aggregate(values)


def _log_or_raise(name: str, error: MemAlignError) -> None:
    """Log what fails for one criterion alone; raise what would fail for all."""
    if isinstance(error, InvalidInputError | StoreError):
        raise error
    logger.warning("The panel continues without %r: %s", name, error)


async def judge_one(call: NodeCall) -> StateUpdate:
    """Judge by one criterion, with its memory."""
    name, judge_run = call.resources.criterion.name, require_channel(call.state, "judge_run")
    problem = judge_run["embedding_error"]
    vector = EmbeddingError(problem) if problem else call.access.load_vector(judge_run["vector"])
    try:
        recalled = await recall_similar(call, call.example, vector)
        own = replace(call, state={**call.state, "judge_memory": vars(recalled)})
        memory = (await judging.assemble_guidelines(own))["judge_memory"]
        with_vector = {**memory, "vector": memory["vector"] or judge_run["vector"]}
        own = replace(call, state={**call.state, "judge_memory": with_vector})
        update = await judging.judge_example(own)
    except MemAlignError as error:
        _log_or_raise(name, error)
        return {"errors": {name: str(error)}, "judge_failures": {name: type(error).__name__}}
    value = update["judgment"]["value"]
    call.runtime.stream_writer({"type": "panel_judgment", "criterion": name, "value": value})
    memory.pop("vector", None)
    return {
        "judgments": {name: update["judgment"]},
        "broken_guidelines": {name: update.get("broken_guidelines", [])},
        "judge_memories": {name: memory},
    }


async def learn_one(call: NodeCall) -> StateUpdate:
    """Learn from the expert's feedback on one criterion."""
    name, judge_run = call.resources.criterion.name, require_channel(call.state, "judge_run")
    if name not in call.state["feedback"]:  # the node was another criterion's
        return {}
    own = {"feedback": call.state["feedback"][name], "judge_lesson": {}}
    own |= {"judge_memory": {"vector": judge_run["vector"]}}
    call = replace(call, state={**call.state, **own})
    try:
        if not call.feedback.agrees:
            call = replace(call, state={**call.state, **await distill_feedback(call)})
        learned = (await commit_memory(call))["learned"]
        if learned is None or learned["episode_ids"]:
            return {"learned": {name: learned}}
        problem = f"{_STORED}: {' '.join(learned['warnings'])}"
    except MemAlignError as error:
        _log_or_raise(name, error)
        # The feedback is stored before a model is called.
        is_kept = isinstance(error, ChatModelError | ModelAnswerError)
        problem = f"{_STORED if is_kept else 'Nothing was learned'}: {error}"
    return {"errors": {name: problem}, "learn_failures": {name: problem}}


def _judgments(state: State) -> dict[str, Judgment]:
    return {name: Judgment.model_validate(fields) for name, fields in state["judgments"].items()}
