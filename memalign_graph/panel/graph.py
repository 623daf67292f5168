"""`create_panel_graph`: many criteria on one example."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from langgraph.graph import END, START
from langgraph.types import Send
from typing_extensions import Unpack

from memalign_graph.context import DEFAULT_K, context_schema
from memalign_graph.errors import InvalidInputError
from memalign_graph.graphs.options import (
    Graph,
    ParallelGraph,
    ReviewOptions,
    asks,
    check_criterion,
    check_distill_model,
    check_flag,
    check_judging,
    check_review,
    run_settings,
)
from memalign_graph.models import DEFAULT_CHAT_MODEL, DEFAULT_EMBEDDINGS
from memalign_graph.nodes.judge import Judge
from memalign_graph.panel.aggregate import Aggregate
from memalign_graph.panel.form import check_names
from memalign_graph.panel.nodes import (
    create_gather_node,
    create_judge_criterion_node,
    create_learn_criterion_node,
    create_panel_review_node,
    learning_graph,
    to_judge,
)
from memalign_graph.panel.retrieve import (
    CANT_CHOOSE,
    Criteria,
    Looking,
    create_embed_node,
    create_panel_retrieve_node,
)
from memalign_graph.panel.state import OneCriterion, OneFeedback, PanelOutput, PanelState
from memalign_graph.prompts.judge import DEFAULT_MAX_GUIDELINE_TOKENS
from memalign_graph.scales import Pairwise
from memalign_graph.state import ExampleInput, ExampleView
from memalign_graph.types import Criterion, Judgment

_DEFAULTS: ReviewOptions = {
    "model": DEFAULT_CHAT_MODEL,
    "distill_model": None,
    "embeddings": DEFAULT_EMBEDDINGS,
    "k": DEFAULT_K,
    "use_guidelines": True,
    "use_episodes": True,
    "max_guideline_tokens": DEFAULT_MAX_GUIDELINE_TOKENS,
    "on_embedding_error": "raise",
    "swap": False,
    "keep_judgments": None,
    "confidence": False,
    "samples": 0,
    "decide": "verdict",
}

PanelMode = Literal["always", "never"]
"""When a panel asks the expert: about every example, or about none."""

_EVIDENCE = ("confidence", "samples", "decide")
_JUDGING = ("max_guideline_tokens", "swap", "keep_judgments", *_EVIDENCE)
"""The options that each criterion's judge is given."""

PanelReview = PanelMode | Callable[[dict[str, Judgment]], bool]
"""When a panel asks the expert: `always`, `never`, or a function of the judgments by criterion."""


def create_panel_graph(
    criteria: Sequence[Criterion],
    *,
    review: PanelReview = "never",
    aggregate: Aggregate | None = None,
    **judge: Unpack[ReviewOptions],
) -> Graph:
    """Create the graph that judges one example by many criteria, side by side.

    Each criterion has a memory of its own, the same that a graph for it alone has. The example is
    embedded once. A criterion that can't be judged is named in `errors`, and the others are judged
    all the same; the run fails if none can be.

    `{inputs, outputs, reference_outputs?}` -> `{judgments, errors, aggregate, feedback, learned}`,
    all but the aggregate by criterion.

    Args:
        criteria: What is judged: one criterion or more, with different names.
        review: When the expert is asked, about all criteria in one form, by one interrupt: `never`,
            `always`, or a function of the judgments by criterion.
        aggregate: How to make one score of them; None for none.
        judge: The judges' options, the same for all: see `create_review_graph`. With `swap=True`
            the pairwise ones among the criteria are judged in both orders.

    Returns:
        The graph, to be compiled with a store, and with a checkpointer where experts are asked.

    Raises:
        InvalidInputError: If an option can't be used.
        ImportError: If `confidence` or `decide="evidence"` is asked for without the extra
            `evidence`.
    """
    by_name = _check_criteria(criteria)
    bound = _check_aggregate(aggregate, list(by_name.values()))
    options: dict[str, Any] = {**_DEFAULTS, **judge}
    settings = _check_options(by_name, review, options)
    models = {name: options[name] for name in ("model", "embeddings")}
    mode: Any = review
    builder: Graph = ParallelGraph(
        PanelState,
        context_schema=context_schema(k=options["k"], model=options["model"], review=mode),
        input_schema=ExampleInput,
        output_schema=PanelOutput,
    )
    looking = Looking(
        settings=settings,
        use_guidelines=options["use_guidelines"],
        use_episodes=options["use_episodes"],
        on_embedding_error=options["on_embedding_error"],
        swap=options["swap"],
        embeds=options["decide"] == "evidence",
    )
    judging = {name: options[name] for name in _JUDGING}
    judges = {name: Judge(one, **models, **judging) for name, one in by_name.items()}
    learning = {
        name: learning_graph(one, **models, distill_model=options["distill_model"]).compile()
        for name, one in by_name.items()
    }
    retrieve = create_panel_retrieve_node(by_name, options["embeddings"], looking)
    builder.add_node("retrieve_episodes", retrieve, input_schema=ExampleView)
    builder.add_node(
        "judge_criterion", create_judge_criterion_node(judges), input_schema=OneCriterion
    )
    builder.add_node("gather_judgments", create_gather_node(judges, bound))
    builder.add_node("collect_feedback", create_panel_review_node(by_name, bound))
    builder.add_node("embed_example", create_embed_node(by_name, options["embeddings"]))
    builder.add_node(
        "learn_criterion", create_learn_criterion_node(learning), input_schema=OneFeedback
    )
    builder.add_edge(START, "retrieve_episodes")
    builder.add_conditional_edges("retrieve_episodes", _to_judge, ["judge_criterion"])
    builder.add_edge("judge_criterion", "gather_judgments")
    builder.add_conditional_edges(
        "gather_judgments", asks(review, _judgments), ["collect_feedback", END]
    )
    builder.add_conditional_edges("collect_feedback", _has_feedback, ["embed_example", END])
    builder.add_conditional_edges("embed_example", _to_learn, ["learn_criterion"])
    builder.add_edge("learn_criterion", END)
    return builder


def _to_judge(state: Mapping[str, Any]) -> list[Send]:
    return [Send("judge_criterion", one) for one in to_judge(state).values()]


def _judgments(state: Mapping[str, Any]) -> dict[str, Judgment]:
    return {name: Judgment.model_validate(one) for name, one in state["judgments"].items()}


def _has_feedback(state: Mapping[str, Any]) -> str:
    return "embed_example" if state["feedback"] else END


def _to_learn(state: Mapping[str, Any]) -> list[Send]:
    given = to_judge(state)
    return [
        Send("learn_criterion", {**given[name], "feedback": feedback})
        for name, feedback in state["feedback"].items()
    ]


def _check_criteria(criteria: Any) -> Criteria:
    if isinstance(criteria, Criterion) or not isinstance(criteria, Sequence) or not criteria:
        raise InvalidInputError("criteria: give a list of Criterion, one or more.")
    for one in criteria:
        check_criterion(one)
    check_names(criteria)
    return {one.name: one for one in criteria}


def _check_aggregate(aggregate: Any, criteria: list[Criterion]) -> Any:
    if aggregate is None:
        return None
    if not isinstance(aggregate, Aggregate):
        raise InvalidInputError(
            "aggregate: give Aggregate(weights=..., vetoes=..., passes=...), not a value of type "
            f"{type(aggregate).__name__}."
        )
    return aggregate.bind(criteria)


def _check_options(
    criteria: Criteria, review: PanelReview, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Check the options, and return what a run's context can change of them."""
    unknown = [name for name in options if name not in _DEFAULTS]
    if unknown:
        raise InvalidInputError(
            f"{unknown[0]}: a panel has no such option: it has review, aggregate, "
            f"{', '.join(_DEFAULTS)}."
        )
    given: Any = review
    if given == "uncertain":
        raise InvalidInputError(CANT_CHOOSE)
    check_review(review, modes=get_args(PanelMode), takes="the judgments by criterion")
    check_flag("swap", options["swap"])
    pairwise = [one for one in criteria.values() if isinstance(one.scale, Pairwise)]
    if options["swap"] and not pairwise:
        raise InvalidInputError("swap: none of the criteria has scale=Pairwise().")
    check_distill_model(options["distill_model"])
    checked = ("embeddings", "use_guidelines", "use_episodes", "on_embedding_error")
    for one in criteria.values():
        check_judging(
            one,
            **{name: options[name] for name in (*checked, "keep_judgments", *_EVIDENCE)},
            swap=options["swap"] and one in pairwise,
            cite_guidelines=False,
        )
    settings = run_settings(
        next(iter(criteria.values())),
        options["model"],
        options["k"],
        "never",
        options["max_guideline_tokens"],
    )
    return {**settings, "review": review if isinstance(review, str) else None}
