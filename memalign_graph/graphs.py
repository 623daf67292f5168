"""The graphs, uncompiled: judge, review, later feedback, alignment; and their nodes."""

from collections.abc import Callable
from functools import partial
from typing import Any

from langgraph.constants import TAG_NOSTREAM
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict, Unpack

from memalign_graph import settings
from memalign_graph import state as schemas
from memalign_graph.nodes.judge import assemble_guidelines, judge_example, retrieve_episodes
from memalign_graph.nodes.learn import (
    clarify_feedback,
    commit_memory,
    distill_feedback,
    question_feedback,
)
from memalign_graph.nodes.review import collect_feedback, decide_review, find_the_judgment
from memalign_graph.runtime import JudgeResources, Node, State
from memalign_graph.scales import require_bool
from memalign_graph.types import Criterion, Feedback, Judgment

Graph = StateGraph[Any, Any, Any, Any]
"""A graph that is not compiled yet."""


class JudgeNodes:
    """The nodes of a review graph as Runnables, for your own graph.

    `builder.add_node("judge", nodes.judge)`. The graph's state derives from
    `memalign_graph.state.ReviewState`, or from `JudgeState` if no expert is asked. Run them in this
    order: `retrieve_episodes`, `assemble_guidelines`, `judge`; `collect_feedback`, which asks the
    expert by an interrupt and sets `feedback` to None if the expert skipped; `distill_feedback`,
    for feedback that does not only agree, and `commit_memory`.

    They can be anywhere in a graph, and more than once: `retrieve_episodes` reads the current
    `inputs` and `outputs` each time. The state has only ids of what is in memory.

    Args:
        criterion: What is judged.
        stream_tokens: True to include the tokens of the judge's models in
            `stream_mode="messages"`.
        judge: The options of a `Judge`.

    Raises:
        InvalidInputError: If an option is invalid; ImportError if an extra is missing.
    """

    def __init__(
        self,
        criterion: Criterion,
        *,
        stream_tokens: bool = False,
        **judge: Unpack[settings.JudgeOptions],
    ) -> None:
        resources = JudgeResources(settings.Judge(criterion=criterion, **judge), "always")
        tags = () if stream_tokens else (TAG_NOSTREAM,)
        self.retrieve_episodes = Node(retrieve_episodes, resources, is_first=True, tags=tags)
        self.assemble_guidelines = Node(assemble_guidelines, resources, tags=tags)
        judge_node = partial(judge_example, decides_review=False)
        self.judge = Node(judge_node, resources, name="judge", tags=tags)
        self.collect_feedback = Node(collect_feedback, resources, tags=tags)
        self.distill_feedback = Node(distill_feedback, resources, tags=tags)
        self.commit_memory = Node(commit_memory, resources, tags=tags)


def create_judge_graph(criterion: Criterion, **judge: Unpack[settings.JudgeOptions]) -> Graph:
    """Create the graph that judges an example with the memory.

    `{inputs, outputs, reference_outputs?}` -> `{judgment}`, and `broken_guidelines` with
    `cite_guidelines=True`.

    Args:
        criterion: What is judged.
        judge: The options of a `Judge`.

    Returns:
        The graph, to be compiled with a store.

    Raises:
        InvalidInputError: If an option is invalid; ImportError if an extra is missing.
    """
    resources = JudgeResources(settings.Judge(criterion=criterion, **judge))
    builder = new_builder(resources, schemas.JudgeRunState, schemas.JudgeOutput)
    add_judging(builder, resources)
    builder.add_edge("judge", END)
    return builder


def create_review_graph(
    criterion: Criterion,
    *,
    review: settings.Review = "always",
    clarify: bool = False,
    **judge: Unpack[settings.JudgeOptions],
) -> Graph:
    """Create the graph that judges an example, asks an expert, and learns from the answer.

    `{inputs, outputs, reference_outputs?}` -> `{judgment, feedback, learned}`, and
    `broken_guidelines` with `cite_guidelines=True`.

    Args:
        criterion: What is judged.
        review: When the expert is asked: `always`, `never`, a function of the `Judgment`, or
            `uncertain`, which is `Uncertain()`: if the judge is likely to be wrong. With
            `decide="verdict"` that needs `confidence=True`.
        clarify: True to ask the expert one short question if a comment is too vague for a
            guideline: one more call of the model that distills, and one more interrupt. The answer
            is stored with the comment; approving the question continues without an answer.
        judge: The options of a `Judge`.

    Returns:
        The graph, to be compiled with a store, and with a checkpointer if experts are asked.

    Raises:
        InvalidInputError: If an option is invalid; ImportError if an extra is missing.
    """
    built = settings.Judge(criterion=criterion, **judge)
    # Raises for options that do not fit together.
    settings.ReviewSettings(judge=built, review=review, clarify=clarify)
    resources = JudgeResources(built, review)
    builder = new_builder(resources, schemas.ReviewRunState, schemas.ReviewOutput)
    add_judging(builder, resources)
    builder.add_node(Node(collect_feedback, resources))
    # The function is called on an edge, since `collect_feedback` runs again when it is resumed.
    decide: Any = review
    review_route = route_to_review(lambda state: decide(Judgment.model_validate(state["judgment"])))
    measured = ["decide_review"] if resources.judge.measures else []
    destinations = ["collect_feedback", END]
    builder.add_conditional_edges("judge", review_route, [*measured, *destinations])
    if measured:
        builder.add_node(Node(decide_review, resources))
        builder.add_conditional_edges("decide_review", review_route, destinations)
    add_learning(builder, resources, after="collect_feedback", clarify=clarify)
    return builder


def create_feedback_graph(criterion: Criterion, **judge: Unpack[settings.JudgeOptions]) -> Graph:
    """Create the graph that learns from an expert who answers later, on any thread.

    The judgment is found by its id, for as long as the graph that made it keeps it (option
    `keep_judgments`). `{judgment_id, reply}` -> `{judgment, feedback, learned}`; the reply is
    any that a review interrupt accepts.

    Args:
        criterion: What was judged.
        judge: The options of the `Judge`; only the models and embeddings matter here.

    Returns:
        The graph, to be compiled with the store that holds the memory.

    Raises:
        InvalidInputError: If an option is invalid; ImportError if an extra is missing.
    """
    resources = JudgeResources(settings.Judge(criterion=criterion, **judge))
    builder = new_builder(
        resources, schemas.FeedbackState, schemas.ReviewOutput, schemas.LaterFeedback
    )
    builder.add_node(Node(find_the_judgment, resources, name="find_judgment", is_first=True))
    builder.add_edge(START, "find_judgment")
    add_learning(builder, resources, after="find_judgment")
    return builder


def create_alignment_graph(
    criterion: Criterion, **options: Unpack[settings.AlignmentOptions]
) -> Graph:
    """Create the graph that learns from many items of feedback.

    `{feedback: [...]}` -> `{report}`, an `AlignmentReport` as JSON. Feedback that is already in
    memory costs no call; pending feedback is learned, too. Progress is streamed as custom events of
    type `alignment_progress`, with `stage`, `done` and `of`. At most the run's `max_concurrency`
    calls run concurrently, 32 by default. If distilling fails, the run fails and the feedback stays
    pending; the next call reuses the answers that are already paid for.

    Args:
        criterion: What is judged.
        options: How it learns (`memalign_graph.settings.Alignment`), and the options of the
            deployed `Judge`, for the guard and `judge_cases`.

    Returns:
        The graph, to be compiled with a store, and with a checkpointer if experts are asked.

    Raises:
        InvalidInputError: If an option is invalid; ImportError if an extra is missing.
    """
    from memalign_graph.nodes.align import alignment_nodes  # it imports half the package

    own = settings.Alignment.model_fields.keys() - {"judge"}
    learning: Any = {name: value for name, value in options.items() if name in own}
    rest: Any = {name: value for name, value in options.items() if name not in own}
    alignment = settings.Alignment(judge=settings.Judge(criterion=criterion, **rest), **learning)
    resources = JudgeResources(alignment.judge)
    builder = new_builder(
        resources, schemas.AlignmentState, schemas.AlignmentOutput, schemas.AlignmentInput
    )
    nodes = alignment_nodes(resources, alignment)
    for node in nodes:
        builder.add_node(node)
    names = [START, *(node.name for node in nodes), END]
    # Each node leads to the next. Without pending feedback nothing is distilled, and without a
    # conflict nobody is asked.
    for before, after, skip_to in zip(names, names[1:], [*names[2:], END], strict=False):
        if after == "distill_batches":
            _add_optional_edge(builder, "has_pending", before, after, "commit_alignment")
        elif after == "settle_conflicts":
            _add_optional_edge(builder, "conflicts", before, after, skip_to)
        else:
            builder.add_edge(before, after)
    return builder


def new_builder(
    resources: JudgeResources,
    state: type[Any],
    output_schema: type[Any],
    input_schema: type[Any] = schemas.RunInput,
    *,
    builder_class: type[Graph] = StateGraph,
) -> Graph:
    """Return a builder; `cite_guidelines` adds `broken_guidelines` to its output."""
    if resources.judge.cite_guidelines and input_schema is schemas.RunInput:
        broken = {"broken_guidelines": state.__annotations__["broken_guidelines"]}
        cited: Any = TypedDict("Cited", {**output_schema.__annotations__, **broken})  # type: ignore[misc] # made here
        output_schema = cited
    return builder_class(
        state,
        context_schema=settings.MemAlignContext,
        input_schema=input_schema,
        output_schema=output_schema,
    )


def add_learning(
    builder: Graph, resources: JudgeResources, *, after: str, clarify: bool = False
) -> None:
    """Add the nodes that learn from the `feedback` that a node leaves."""
    builder.add_node(Node(distill_feedback, resources))
    builder.add_node(Node(commit_memory, resources))
    builder.add_edge("distill_feedback", "commit_memory")
    builder.add_edge("commit_memory", END)

    def choose_next_node(state: State) -> str:
        if state["feedback"] is None:
            return END
        feedback = Feedback.model_validate(state["feedback"])
        if clarify and feedback.rationale is not None:
            return "question_feedback"
        return "commit_memory" if feedback.agrees else "distill_feedback"

    def after_question(state: State) -> str:
        asks_back = "clarification" in state["judge_lesson"]
        return "clarify_feedback" if asks_back else "distill_feedback"

    question = ["question_feedback"] if clarify else []
    destinations = [*question, "distill_feedback", "commit_memory", END]
    builder.add_conditional_edges(after, choose_next_node, destinations)
    if clarify:
        builder.add_node(Node(question_feedback, resources))
        builder.add_node(Node(clarify_feedback, resources))
        destinations = ["clarify_feedback", "distill_feedback"]
        builder.add_conditional_edges("question_feedback", after_question, destinations)
        builder.add_edge("clarify_feedback", "distill_feedback")


def route_to_review(decide: Callable[[State], Any]) -> Callable[[State], str]:
    """Return the route from the judge to the expert or the end, by the mode or a function."""

    def choose_next_node(state: State) -> str:
        mode = state["judge_run"]["settings"]["review"]
        if mode == "uncertain":
            choice = state["judgment"]["review"]
            if choice is None:
                return "decide_review"
            asks = choice["asks"]
        else:
            asks = require_bool(decide(state), "review") if mode is None else mode == "always"
        return "collect_feedback" if asks else END

    return choose_next_node


def add_judging(builder: Graph, resources: JudgeResources) -> None:
    """Add the nodes that judge, from START."""
    builder.add_node(Node(retrieve_episodes, resources, is_first=True))
    builder.add_node(Node(assemble_guidelines, resources))
    builder.add_node(Node(judge_example, resources, name="judge"))
    builder.add_edge(START, "retrieve_episodes")
    builder.add_edge("retrieve_episodes", "assemble_guidelines")
    builder.add_edge("assemble_guidelines", "judge")


def _add_optional_edge(builder: Graph, key: str, before: str, there: str, otherwise: str) -> None:
    """Add an edge to a node that runs only if the lesson has something under a key."""
    builder.add_conditional_edges(
        before, lambda state: there if state["judge_lesson"][key] else otherwise, [there, otherwise]
    )
