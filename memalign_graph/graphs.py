"""The graphs, uncompiled: judge, review, later feedback, alignment; and the nodes alone."""

from collections.abc import Callable
from typing import Any

from langgraph.constants import TAG_NOSTREAM
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict, Unpack

from memalign_graph import settings
from memalign_graph import state as schemas
from memalign_graph.nodes import review as asking
from memalign_graph.nodes.judge import assemble_guidelines, judge_example, retrieve_episodes
from memalign_graph.nodes.review import commit_memory, distill_feedback
from memalign_graph.runtime import JudgeResources, Node, State
from memalign_graph.scales import require_bool
from memalign_graph.types import Criterion, Feedback, Judgment

Graph = StateGraph[Any, Any, Any, Any]
"""A graph still to be compiled."""


class JudgeNodes:
    """The nodes of a review graph as Runnables, for a graph of one's own.

    `builder.add_node("judge", nodes.judge)`. The graph's state derives from
    `memalign_graph.state.ReviewState`, or from `JudgeState` where no expert is asked. They run in
    this order: `retrieve_episodes`, `assemble_guidelines`, `judge`; `collect_feedback`, which asks
    the expert by an interrupt and leaves `feedback` None where the expert skipped;
    `distill_feedback`, for feedback that does not merely agree, and `commit_memory`.

    They may stand anywhere in a graph, and more than once: each time `retrieve_episodes` reads
    `inputs` and `outputs` as they are then. Of memory the state holds ids alone.

    Args:
        criterion: What is judged.
        stream_tokens: True to stream what the judge's models write, with `stream_mode="messages"`,
            as well as the messages of the graph's own models.
        judge: The options of a `Judge`.

    Raises:
        InvalidInputError: If an option can't be used; ImportError where its extra is missing.
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
        self.judge = Node(judge_example, resources, name="judge", tags=tags)
        self.collect_feedback = Node(asking.collect_feedback, resources, tags=tags)
        self.distill_feedback = Node(distill_feedback, resources, tags=tags)
        self.commit_memory = Node(commit_memory, resources, tags=tags)


def create_judge_graph(criterion: Criterion, **judge: Unpack[settings.JudgeOptions]) -> Graph:
    """Create the graph that judges an example with what memory holds.

    `{inputs, outputs, reference_outputs?}` -> `{judgment}`, and `broken_guidelines` with
    `cite_guidelines=True`.

    Args:
        criterion: What is judged.
        judge: The options of a `Judge`.

    Returns:
        The graph, to be compiled with a store.

    Raises:
        InvalidInputError: If an option can't be used; ImportError where its extra is missing.
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
            `uncertain`, which is `Uncertain()`: where the judge is likely to be wrong. With
            `decide="verdict"` that needs `confidence`.
        clarify: True to ask the expert one short question back where the words are too vague to
            make a rule: one more call of the model that distils, and one more interrupt. The
            answer is kept with the words; approving it goes on without.
        judge: The options of a `Judge`.

    Returns:
        The graph, to be compiled with a store, and with a checkpointer to be resumed by.

    Raises:
        InvalidInputError: If an option can't be used; ImportError where its extra is missing.
    """
    built = settings.Judge(criterion=criterion, **judge)
    # Refuses what does not fit together.
    settings.ReviewSettings(judge=built, review=review, clarify=clarify)
    resources = JudgeResources(built, review)
    builder = new_builder(resources, schemas.ReviewRunState, schemas.ReviewOutput)
    add_judging(builder, resources)
    builder.add_node(Node(asking.collect_feedback, resources))
    # Decided on the way out of nodes that run once, and not in the one that runs again.
    decide: Any = review
    review_route = route_to_review(lambda state: decide(Judgment.model_validate(state["judgment"])))
    measured = ["decide_review"] if resources.judge.measures else []
    destinations = ["collect_feedback", END]
    builder.add_conditional_edges("judge", review_route, [*measured, *destinations])
    if measured:
        builder.add_node(Node(asking.decide_review, resources))
        builder.add_conditional_edges("decide_review", review_route, destinations)
    add_learning(builder, resources, after="collect_feedback", clarify=clarify)
    return builder


def create_feedback_graph(criterion: Criterion, **judge: Unpack[settings.JudgeOptions]) -> Graph:
    """Create the graph that learns from an expert who answers later, on any thread.

    The judgment is found by its id, for as long as the graph that made it keeps it (its option
    `keep_judgments`). `{judgment_id, reply}` -> `{judgment, feedback, learned}`; the reply is
    any that a review interrupt takes.

    Args:
        criterion: What was judged.
        judge: The options of the `Judge`; the models and embeddings are what counts here.

    Returns:
        The graph, to be compiled with the store that holds the memory.

    Raises:
        InvalidInputError: If an option can't be used; ImportError where its extra is missing.
    """
    resources = JudgeResources(settings.Judge(criterion=criterion, **judge))
    builder = new_builder(
        resources, schemas.FeedbackState, schemas.ReviewOutput, schemas.LaterFeedback
    )
    builder.add_node(Node(asking.find_the_judgment, resources, name="find_judgment", is_first=True))
    builder.add_edge(START, "find_judgment")
    add_learning(builder, resources, after="find_judgment")
    return builder


def create_alignment_graph(
    criterion: Criterion,
    *,
    learn_from: settings.LearnFrom = "both",
    conflicts: settings.OnConflict = "newest",
    guard: settings.Guard | None = None,
    batch_size: int = settings.DEFAULT_BATCH_SIZE,
    replay_cases: int = settings.DEFAULT_REPLAY_CASES,
    judge_cases: bool = False,
    distill: bool = True,
    **judge: Unpack[settings.JudgeOptions],
) -> Graph:
    """Create the graph that learns from much feedback at once.

    `{feedback: [...]}` -> `{report}`, an `AlignmentReport` as JSON. What memory knows already
    costs nothing; what is pending is learned along. Progress is streamed as custom events of type
    `alignment_progress`, with `stage`, `done` and `of`. As many calls run concurrently as the run's
    `max_concurrency` allows, 32 by default. If distilling fails the run fails; the feedback stays
    pending, and the same call finds the answers already paid for again.

    Args:
        criterion: What is judged.
        learn_from: What is stored and learned of the feedback: `both`, or for comparison its
            `labels` or its `words` alone.
        conflicts: Of guidelines that contradict each other the `newest` stays, unless more experts
            support the other: then both stay, and the report's `warnings` name them. With `ask` an
            expert is asked, once for all, by an interrupt. The loser goes: `history()` and the
            report name it.
        guard: `replay` judges seen cases again before anything is committed, as the judge does; a
            guideline that turns one against its expert is dropped, and reported.
        batch_size: How many pieces of feedback one call distils at most.
        replay_cases: How many seen cases the guard judges again at most.
        judge_cases: True to judge each case in memory that experts valued and no judge has judged,
            as if it were new, before anything is distilled. From this `decide`, calibrated
            confidence and `review="uncertain"` learn.
        distill: False to store and judge alone: what is new stays pending, for a later run.
        judge: The options of the `Judge` that is deployed: the guard and `judge_cases` judge so.

    Returns:
        The graph, to be compiled with a store, and with a checkpointer to be resumed by.

    Raises:
        InvalidInputError: If an option can't be used; ImportError where its extra is missing.
    """
    from memalign_graph.nodes.align import alignment_nodes  # it imports half the package

    options = settings.Alignment(
        judge=settings.Judge(criterion=criterion, **judge),
        learn_from=learn_from,
        conflicts=conflicts,
        guard=guard,
        batch_size=batch_size,
        replay_cases=replay_cases,
        judge_cases=judge_cases,
        distill=distill,
    )
    resources = JudgeResources(options.judge)
    builder = new_builder(
        resources, schemas.AlignmentState, schemas.AlignmentOutput, schemas.AlignmentInput
    )
    nodes = alignment_nodes(resources, options)
    for node in nodes:
        builder.add_node(node)
    names = [START, *(node.name for node in nodes), END]
    # Each leads to the next, but nothing is distilled where nothing is pending, and nobody is asked
    # where nothing contradicts.
    for before, after, skip_to in zip(names, names[1:], [*names[2:], END], strict=False):
        if after == "distill_batches":
            _add_optional_edge(builder, "batches", before, after, "commit_alignment")
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
) -> Graph:
    """Begin a graph with its schemas; a judge that cites guidelines returns those, too."""
    if resources.judge.cite_guidelines and input_schema is schemas.RunInput:
        broken = {"broken_guidelines": state.__annotations__["broken_guidelines"]}
        cited: Any = TypedDict("Cited", {**output_schema.__annotations__, **broken})  # type: ignore[misc] # made here
        output_schema = cited
    return StateGraph(
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

    asked = ["question_feedback"] if clarify else []
    destinations = [*asked, "distill_feedback", "commit_memory", END]
    builder.add_conditional_edges(after, choose_next_node, destinations)
    if clarify:
        builder.add_node(Node(asking.question_feedback, resources))
        builder.add_node(Node(asking.clarify_feedback, resources))
        destinations = ["clarify_feedback", "distill_feedback"]
        builder.add_conditional_edges("question_feedback", after_question, destinations)
        builder.add_edge("clarify_feedback", "distill_feedback")


def route_to_review(decide: Callable[[State], Any]) -> Callable[[State], str]:
    """Make the way out of judging: to the expert, or to the end, as the mode or a function says."""

    def choose_next_node(state: State) -> str:
        mode = state["judge_run"]["settings"]["review"]
        if mode == "uncertain":
            choice = state["judgment"]["review"]
            if choice is None:
                return "decide_review"
            wanted = choice["asks"]
        else:
            wanted = require_bool(decide(state), "review") if mode is None else mode == "always"
        return "collect_feedback" if wanted else END

    return choose_next_node


def add_judging(builder: Graph, resources: JudgeResources) -> None:
    """Add the nodes that judge, from the start on."""
    builder.add_node(Node(retrieve_episodes, resources, is_first=True))
    builder.add_node(Node(assemble_guidelines, resources))
    builder.add_node(Node(judge_example, resources, name="judge"))
    builder.add_edge(START, "retrieve_episodes")
    builder.add_edge("retrieve_episodes", "assemble_guidelines")
    builder.add_edge("assemble_guidelines", "judge")


def _add_optional_edge(builder: Graph, key: str, before: str, there: str, otherwise: str) -> None:
    """Add the way to a node that has something to do only if the lesson holds something."""
    builder.add_conditional_edges(
        before, lambda state: there if state["judge_lesson"][key] else otherwise, [there, otherwise]
    )
