"""Panels: one example judged by many criteria side by side, each with a memory of its own.

The expert is asked about all of them by one form, whose one action has a criterion's value under
its name, and the judge's reason beside it: flat, since that is what inboxes can edit.
"""

import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict, Unpack

from memalign_graph.aggregate import Aggregate, AggregateResult, BoundAggregate
from memalign_graph.errors import (
    ChatModelError,
    EmbeddingError,
    InvalidInputError,
    MemAlignError,
    ModelAnswerError,
)
from memalign_graph.graphs import Graph, add_learning, asks
from memalign_graph.interrupts import (
    AUTHOR,
    Form,
    bullets,
    describe_example,
    escape,
    read_reply,
    read_review,
    read_text,
)
from memalign_graph.io import IO
from memalign_graph.memory.index.vectors import encode_vector
from memalign_graph.memory.recall import embed_once, recall_without_episodes
from memalign_graph.nodes.judge import Retrieved, judge, own_channel, retrieve
from memalign_graph.pairwise import swap_outputs
from memalign_graph.reading import read_example
from memalign_graph.runtime import Clients, Node, Parts, Run, State, Update
from memalign_graph.scales import Pairwise, Value
from memalign_graph.settings import (
    Judge,
    JudgeOptions,
    PanelContext,
    Paneling,
    PanelReview,
    RunSettings,
    context_schema,
    default_settings,
    mode_of,
    resolve_context,
)
from memalign_graph.state import ExampleInput, ReviewOutput, ReviewState
from memalign_graph.types import Criterion, Example, Feedback, Guideline, Judgment

__all__ = ["Aggregate", "AggregateResult", "create_panel_graph"]

T = TypeVar("T")

Panel = Mapping[str, Parts]
"""A judge's parts by the name of its criterion; all of them share their clients."""

logger = logging.getLogger(__name__)


class PanelOutput(TypedDict):
    """What a panel returns."""

    judgments: dict[str, Any]
    """The `Judgment` on each criterion, as JSON."""

    errors: dict[str, str]
    """Why a criterion could not be judged, or an expert's word on it not distilled, a sentence
    each."""

    aggregate: dict[str, Any] | None
    """The `AggregateResult`; None if none was asked for."""

    feedback: dict[str, Any] | None
    """The expert's `Feedback` on each criterion that has any; None if nobody was asked, or had
    anything to say."""

    learned: dict[str, Any]
    """What each memory made of it, as in a review graph."""


class CitingPanelOutput(PanelOutput):
    """What a panel returns that was built with `cite_guidelines`."""

    broken_guidelines: dict[str, Any]
    """The `Guideline`s of each criterion that the outputs break, as JSON."""


class PanelState(ExampleInput, CitingPanelOutput):
    """All channels of a panel's graph; the last two are the nodes' own."""

    judge_run: dict[str, Any]
    """The `example`, its `vector` and the run's `settings`: a context is gone after an
    interrupt."""

    judge_memories: dict[str, Any]
    """What each memory gave (`Retrieved`), but for the vector, which is the example's."""


def create_panel_graph(
    criteria: Sequence[Criterion],
    *,
    review: PanelReview = "never",
    aggregate: Aggregate | None = None,
    **judge: Unpack[JudgeOptions],
) -> Graph:
    """Create the graph that judges one example by many criteria, side by side.

    Each criterion has a memory of its own, the same that a graph for it alone has. The example is
    embedded once. A criterion that can't be judged is named in `errors`, and the others are judged
    all the same; the run fails if none can be, and judges again when it is resumed.

    `{inputs, outputs, reference_outputs?}` -> `{judgments, errors, aggregate, feedback, learned}`,
    all but the aggregate by criterion, and `broken_guidelines` with `cite_guidelines=True`.

    Args:
        criteria: What is judged: one criterion or more, with different names.
        review: When the expert is asked, about all criteria in one form, by one interrupt: `never`,
            `always`, or a function of the judgments by criterion. The expert is also asked where
            the function looks up a criterion that could not be judged.
        aggregate: How to make one score of them; None for none.
        judge: The options of a `Judge`, the same for all. With `swap=True` the pairwise ones among
            the criteria are judged in both orders.

    Returns:
        The graph, to be compiled with a store, and with a checkpointer where experts are asked.

    Raises:
        InvalidInputError: If an option can't be used.
        ImportError: If `confidence` or `decide="evidence"` is asked for without the extra
            `evidence`.
    """
    panel = _assemble(criteria, judge)
    own = next(iter(panel.values())).judge
    bound = _bind(aggregate, [parts.criterion for parts in panel.values()])
    review = Paneling(review=review).review
    builder: Graph = StateGraph(
        PanelState,
        context_schema=context_schema(
            PanelContext,
            k=own.k,
            model=own.model if isinstance(own.model, str) else None,
            review=mode_of(review),
        ),
        input_schema=ExampleInput,
        output_schema=CitingPanelOutput if own.cite_guidelines else PanelOutput,
    )
    nodes = [
        _retrieve_node(panel, default_settings(own, review)),
        _judge_node(panel, bound),
        _collect_node(panel, bound),
        _learn_node(panel),
    ]
    for node in nodes:
        builder.add_node(node.name, node)
    builder.add_edge(START, "retrieve_episodes")
    builder.add_edge("retrieve_episodes", "judge_criteria")
    builder.add_conditional_edges(
        "judge_criteria",
        asks(review if isinstance(review, str) else _decides(review), lambda state: state),
        ["collect_feedback", END],
    )
    builder.add_conditional_edges("collect_feedback", _after_feedback, ["learn_criteria", END])
    builder.add_edge("learn_criteria", END)
    return builder


def _assemble(criteria: Any, options: JudgeOptions) -> Panel:
    if isinstance(criteria, Criterion) or not isinstance(criteria, Sequence) or not criteria:
        raise InvalidInputError("criteria: give a list of Criterion, one or more.")
    swaps = options.get("swap") is True
    pairwise = [isinstance(getattr(given, "scale", None), Pairwise) for given in criteria]
    if swaps and not any(pairwise):
        raise InvalidInputError("swap: none of the criteria has scale=Pairwise().")
    unswapped: JudgeOptions = {**options, "swap": False} if swaps else options
    judges = [
        Judge(criterion=criterion, **(options if is_pairwise else unswapped))
        for criterion, is_pairwise in zip(criteria, pairwise, strict=True)
    ]
    _check_names([judge.criterion for judge in judges])
    clients = Clients(judges[0].embeddings)
    return {judge.criterion.name: Parts(judge, clients) for judge in judges}


def _bind(aggregate: Any, criteria: Sequence[Criterion]) -> BoundAggregate | None:
    if aggregate is None:
        return None
    if not isinstance(aggregate, Aggregate):
        raise InvalidInputError(
            "aggregate: give Aggregate(weights=..., vetoes=..., passes=...), not a value of type "
            f"{type(aggregate).__name__}."
        )
    return aggregate.bind(criteria)


def _decides(review: Callable[[dict[str, Judgment]], bool]) -> Callable[[State], bool]:
    """Have the expert asked where a function goes by a criterion that could not be judged."""

    def decide(state: State) -> bool:
        try:
            return review(_judgments(state))
        except KeyError as error:
            if any(name in error.args for name in state["errors"]):
                return True
            raise

    return decide


def _after_feedback(state: State) -> str:
    return "learn_criteria" if state["feedback"] else END


def _retrieve_node(panel: Panel, built: RunSettings) -> Node:
    """Make the first node: it looks into every memory; those that can't be read are in `errors`."""

    async def retrieve_episodes(io: IO, state: State, run: Run) -> Update:
        example = read_example(
            {name: state[name] for name in Example.model_fields if name in state}
        )
        if any(parts.judge.swap for parts in panel.values()):
            swap_outputs(example)  # called for its error, before any model is
        settings = resolve_context(run.context, built)
        if settings["review"] is not None:
            Paneling(review=settings["review"])  # a parent's context may have another mode
        if settings["review"] != "never":
            next(iter(panel.values())).clients.embedder.embeddings  # noqa: B018 - so that it fails here
        found, failed, vector = await _look(io, panel, run, example, settings)
        if not found:
            raise _none_judged(panel, failed)
        return {
            "judge_run": {"example": example.to_json(), "settings": settings, "vector": vector},
            "judge_memories": {name: memory.to_json() for name, memory in found.items()},
            "errors": {name: str(error) for name, error in failed.items()},
        }

    return Node("retrieve_episodes", retrieve_episodes)


async def _look(
    io: IO, panel: Panel, run: Run, example: Example, settings: RunSettings
) -> tuple[dict[str, Retrieved], dict[str, MemAlignError], str | None]:
    """Look into all memories with one embedding, which is returned in base64."""
    accesses = {name: parts.memory(run.store, settings) for name, parts in panel.items()}
    own = next(iter(panel.values())).judge
    views, unread = await _each(io, panel, lambda name: accesses[name].refresh(io), run)
    vector, failure = None, None
    if own.decide == "evidence" or (own.use_episodes and settings["k"]):
        try:
            vector = await embed_once(io, [accesses[name] for name in views], example)
        except EmbeddingError as error:
            if own.on_embedding_error == "raise":
                raise
            failure = error

    async def look(name: str) -> Retrieved:
        parts, access = panel[name], accesses[name]
        if failure is None:
            found = await retrieve(io, parts, access, example, settings, vector=vector)
        else:
            found = Retrieved.of(await recall_without_episodes(io, access, failure))
        standing = await access.all_guidelines(io) if own.use_guidelines else []
        fitted = found.with_guidelines(standing, parts, settings["model"])
        return fitted.model_copy(update={"vector": None})

    found, failed = await _each(io, views, look, run)
    return found, {**unread, **failed}, None if vector is None else encode_vector(vector)


def _judge_node(panel: Panel, aggregate: BoundAggregate | None) -> Node:
    """Make the node that judges all criteria side by side, and makes one score of them."""

    async def judge_criteria(io: IO, state: State, run: Run) -> Update:
        own = own_channel(state, "judge_run")
        example, named = Example.model_validate(own["example"]), own["settings"]["model"]
        memories = {
            name: Retrieved.model_validate({**memory, "vector": own["vector"]})
            for name, memory in own_channel(state, "judge_memories").items()
        }

        async def judge_one(name: str) -> Judgment:
            judgment = await judge(
                io,
                panel[name],
                panel[name].memory(run.store, own["settings"]),
                example,
                memories[name],
                model=named,
                thread_id=run.thread_id,
                limit=run.max_concurrency,
            )
            run.write({"type": "panel_judgment", "criterion": name, "value": judgment.value})
            return judgment

        judged, failed = await _each(io, memories, judge_one, run)
        if not judged:
            raise _none_judged(panel, failed)
        judgments = {name: judgment.to_json() for name, judgment in judged.items()}
        return {
            "judgments": judgments,
            "errors": {**state["errors"], **{name: str(error) for name, error in failed.items()}},
            "aggregate": _aggregated(aggregate, judgments),
            "broken_guidelines": {
                name: memories[name].broken(judgment) for name, judgment in judged.items()
            },
            # What an earlier run on the same thread may have left is not this one's.
            "feedback": None,
            "learned": {},
        }

    return Node("judge_criteria", judge_criteria)


def _collect_node(panel: Panel, aggregate: BoundAggregate | None) -> Node:
    """Make the node that asks the expert about all criteria at once, and waits."""

    async def collect_feedback(_io: IO, state: State, run: Run) -> Update:
        run.warn_without_checkpointer("panel")
        example = Example.model_validate(own_channel(state, "judge_run")["example"])
        judgments = _judgments(state)
        memories = {
            name: Retrieved.model_validate(memory)
            for name, memory in own_channel(state, "judge_memories").items()
        }
        form = panel_form(
            {name: parts.criterion for name, parts in panel.items()},
            example,
            judgments,
            errors=state["errors"],
            guidelines={
                name: [*memory.guidelines, *memory.relevant] for name, memory in memories.items()
            },
        )
        said = form.ask()
        if said is None:
            return {"feedback": None}
        feedback = {
            name: Feedback(
                example=example, judgment=judgments.get(name), thread_id=run.thread_id, **fields
            )
            for name, fields in said.items()
        }
        values = {name: word.value for name, word in feedback.items() if word.value is not None}
        return {
            "feedback": {name: word.to_json() for name, word in feedback.items()},
            "aggregate": _aggregated(aggregate, state["judgments"], values),
        }

    return Node("collect_feedback", collect_feedback)


def _learn_node(panel: Panel) -> Node:
    """Make the node that learns what the expert said of each criterion."""
    graphs = {name: _learning_graph(parts) for name, parts in panel.items()}

    async def learn_criteria(io: IO, state: State, run: Run) -> Update:
        own, feedback = own_channel(state, "judge_run"), state["feedback"]
        vector = own["vector"]
        if vector is None:
            accesses = [parts.memory(run.store, own["settings"]) for parts in panel.values()]
            example = Example.model_validate(own["example"])
            embedded = await embed_once(io, accesses, example, always=True)
            vector = None if embedded is None else encode_vector(embedded)

        async def learn_one(name: str) -> dict[str, Any]:
            graph = graphs[name]
            lesson: Any = {
                "judge_run": own,
                "judge_memory": {"vector": vector},
                "judge_lesson": {},
                "feedback": feedback[name],
            }
            done = await io.call(lambda: graph.invoke(lesson), lambda: graph.ainvoke(lesson))
            learned: dict[str, Any] = done["learned"]
            return learned

        learned, failed = await _each(io, feedback, learn_one, run)
        unlearned = {name: f"{_kept(error)}: {error}" for name, error in failed.items()}
        return {"learned": learned, "errors": {**state["errors"], **unlearned}}

    return Node("learn_criteria", learn_criteria)


def _learning_graph(parts: Parts) -> CompiledStateGraph[Any, Any, Any, Any]:
    builder: Graph = StateGraph(ReviewState, output_schema=ReviewOutput)
    add_learning(builder, parts, after=START)
    # To learn the same again changes nothing, so that there is nothing to keep.
    return builder.compile(checkpointer=False)


def _kept(error: MemAlignError) -> str:
    # Before a model is asked, the feedback is stored.
    if isinstance(error, ChatModelError | ModelAnswerError):
        return "The feedback is kept, and distilled by the next review or alignment"
    return "Nothing was learned"


async def _each(
    io: IO, names: Iterable[str], operation: Callable[[str], Coroutine[Any, Any, T]], run: Run
) -> tuple[dict[str, T], dict[str, MemAlignError]]:
    """Carry out an operation for each criterion; what fails for one harms no other."""

    async def attempt(name: str) -> T | MemAlignError:
        try:
            return await operation(name)
        except (InvalidInputError, EmbeddingError):
            raise
        except MemAlignError as error:
            logger.warning("The panel goes on without %r: %s", name, error)
            return error

    done: dict[str, T] = {}
    failed: dict[str, MemAlignError] = {}
    names = list(names)
    results = await io.gather([attempt(name) for name in names], run.max_concurrency)
    for name, result in zip(names, results, strict=True):
        if isinstance(result, MemAlignError):
            failed[name] = result
        else:
            done[name] = result
    return done, failed


def _none_judged(panel: Panel, failed: Mapping[str, MemAlignError]) -> MemAlignError:
    first = next(iter(failed.values()))
    return type(first)(f"None of the {len(panel)} criteria could be judged: {first}")


def _judgments(state: State) -> dict[str, Judgment]:
    return {name: Judgment.model_validate(fields) for name, fields in state["judgments"].items()}


def _aggregated(
    aggregate: BoundAggregate | None,
    judgments: Mapping[str, Any],
    corrected: Mapping[str, Value] | None = None,
) -> AggregateResult | None:
    if aggregate is None:
        return None
    values = {name: judgment["value"] for name, judgment in judgments.items()}
    return aggregate.of({**values, **(corrected or {})})


Said = dict[str, dict[str, Any]]
"""The fields of a `Feedback` by criterion."""

_REASON = "_rationale"
_SHOWN_GUIDELINES = 5
_SHAPES = (
    "reply with an object by criterion, such as {'NAME': {'value': ..., 'rationale': ...}}, for "
    "those you have something to say about, or with a decision (approve, edit)"
)


def _check_names(criteria: Sequence[Criterion]) -> None:
    """Check that the criteria of a panel can be told apart in its form."""
    names = [criterion.name for criterion in criteria]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInputError(f"criteria: two are named {name!r}: give each its own name.")
        if name in ("author", "type", "decisions") or f"{name}{_REASON}" in names:
            raise InvalidInputError(
                f"criteria: {name!r} is a name that the review form needs for itself, or makes "
                "another criterion's name ambiguous: choose another."
            )


def panel_form(
    criteria: Mapping[str, Criterion],
    example: Example,
    judgments: Mapping[str, Judgment],
    *,
    errors: Mapping[str, str],
    guidelines: Mapping[str, Sequence[Guideline]],
) -> Form[Said | None]:
    """Ask about all criteria at once; what is read are the fields of a `Feedback` by criterion."""
    args: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    parts = ["## What was judged", *describe_example(example)]
    for name, criterion in criteria.items():
        asked = {"description": criterion.instructions}
        value = criterion.scale.value_schema()
        reason = {"type": "string", "description": "Why, in your own words."}
        properties[name] = {
            **asked,
            "type": "object",
            "properties": {"value": value, "rationale": reason},
        }
        judgment = judgments.get(name)
        if judgment is None:
            parts += [f"### {name}: not judged", _quote(errors.get(name) or "")]
            continue
        args |= {name: judgment.value, f"{name}{_REASON}": judgment.rationale}
        fields |= {name: {**asked, **value}, f"{name}{_REASON}": {"type": "string"}}
        parts += _describe(criterion, judgment, guidelines.get(name, ()))
    parts.append("Change what is not right; what you leave as it is says nothing.")
    return Form(
        action="review_panel",
        actions=[(args, parts)],
        fields=fields,
        reply={
            "title": "review",
            "description": "What the values should be, and why; any of the criteria.",
            "type": "object",
            "properties": {**properties, "author": AUTHOR},
        },
        read=lambda reply: read_panel(reply, criteria, judgments),
        # Words alone would not tell which criterion they are about.
        decisions=("approve", "edit"),
    )


def read_panel(
    reply: Any, criteria: Mapping[str, Criterion], judgments: Mapping[str, Judgment]
) -> Said | None:
    """Read what was replied to a panel's form; None if it was ignored."""
    given = read_reply(reply, _SHAPES, subject="form to decide on")
    nothing = f"the reply says nothing about any criterion: {_SHAPES}."
    author = None
    match given.kind:
        case "object":
            _check_known(given.content, [*criteria, "author"])
            replies, author = given.content, read_text(given.content.get("author"), "author")
        case "edit":
            replies = _split(given.edited(), criteria, judgments)
            nothing = (
                "nothing in the form was changed: approve it to confirm every value, or change "
                "what is not right."
            )
        case "approve" if not given.content:
            replies = {name: {"type": "approve"} for name in judgments}
        case "ignore":
            return None
        case "text":
            raise ValueError(f"a reply of type str is not understood: {_SHAPES}.")
        case _:
            raise ValueError(
                "words alone do not tell which criterion they are about: edit the form, or "
                f"{_SHAPES}."
            )
    said: Said = {}
    for name, criterion in criteria.items():
        judgment = judgments.get(name)
        fields = _read_one(replies.get(name), criterion, judgment)
        is_unchanged = given.kind == "edit" and judgment and fields == {"value": judgment.value}
        if fields and not is_unchanged:
            said[name] = {**({"author": author} if author else {}), **fields}
    if not said:
        raise ValueError(nothing)
    return said


def _split(
    args: Mapping[str, Any], criteria: Mapping[str, Criterion], judgments: Mapping[str, Judgment]
) -> dict[str, Any]:
    """Make of the edited form a reply to each criterion."""
    _check_known(args, [f"{name}{end}" for name in criteria for end in ("", _REASON)])
    replies: dict[str, Any] = {}
    for name in criteria:
        edited = {"value": args.get(name), "rationale": args.get(f"{name}{_REASON}")}
        filled = {field: given for field, given in edited.items() if not _is_blank(given)}
        is_edit = filled and name in judgments
        replies[name] = {"type": "edit", "args": filled} if is_edit else filled
    return replies


def _read_one(given: Any, criterion: Criterion, judgment: Judgment | None) -> dict[str, Any]:
    """Read what was said of one criterion; the error names it."""
    if _is_blank(given):
        return {}
    try:
        if not isinstance(given, dict | list):
            try:
                return {"value": criterion.scale.validate_value(given)}
            except ValueError:
                if not isinstance(given, str) or _is_number(given):
                    raise
        return read_review(given, criterion, judgment) or {}
    except ValueError as error:
        raise ValueError(f"{criterion.name}: {error}") from error


def _is_number(text: str) -> bool:
    """Tell whether a text is a number, so that it is no expert's words."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_blank(given: Any) -> bool:
    """Tell whether nothing was filled in."""
    if isinstance(given, dict) and "type" not in given and "decisions" not in given:
        return all(_is_blank(field) for field in given.values())
    return given is None or (isinstance(given, str) and not given.strip())


def _check_known(fields: Iterable[str], known: Sequence[str]) -> None:
    for name in fields:
        if name not in known:
            raise ValueError(f"the reply has {name!r}, which is no criterion: {_SHAPES}.")


def _describe(
    criterion: Criterion, judgment: Judgment, guidelines: Sequence[Guideline]
) -> list[str]:
    scale = criterion.scale
    parts = [
        f"### {criterion.name}: {scale.show(judgment.value)}",
        f"{criterion.instructions.strip()} The value is {scale.describe()}",
    ]
    if judgment.value != judgment.verdict:
        parts.append(
            "That is the evidence: the judge's verdict weighed against similar cases. The judge "
            f"itself says {scale.show(judgment.verdict)}, because:"
        )
    parts.append(_quote(judgment.rationale))
    rules = [escape(rule.text) for rule in guidelines if rule.id in judgment.guideline_ids]
    if rules:
        more = len(rules) - _SHOWN_GUIDELINES
        rules[_SHOWN_GUIDELINES:] = [f"and {more} more"] if more > 0 else []
        parts.append(f"Guidelines it was given:\n\n{bullets(rules)}")
    return parts + [_quote(f"Note: {warning}") for warning in judgment.warnings]


def _quote(text: str) -> str:
    """Show a text as a quotation, so that it makes no heading of the form's."""
    return "\n".join(f"> {line}" for line in escape(text).splitlines())
