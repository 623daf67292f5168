"""The options of a judge, and of what is built around one: declared and checked once."""

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, TypedDict, cast, get_args

from langchain_core.embeddings import Embeddings
from langgraph.constants import END, START
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    SkipValidation,
    ValidationError,
    model_validator,
)

from memalign_graph.errors import InvalidInputError, describe_validation_error
from memalign_graph.identity import check_json
from memalign_graph.memory.facts import DEFAULT_NAMESPACE, check_namespace
from memalign_graph.models import (
    DEFAULT_CHAT_MODEL,
    DEFAULT_EMBEDDINGS,
    ChatModelLike,
    EmbeddingsLike,
    check_chat_model,
    check_model_string,
)
from memalign_graph.scales import PLAIN_FUNCTION, Pairwise, Passes
from memalign_graph.types import Criterion, Decide, ExampleLike, FrozenModel, Judgment

DEFAULT_BATCH_SIZE = 50
DEFAULT_REPLAY_CASES = 20
MAX_K = 100

ReviewMode = Literal["always", "never", "uncertain"]
"""When the expert is asked; `uncertain`: if the judge is likely wrong, and at random."""

OnEmbeddingError = Literal["raise", "guidelines"]
OnJudgeError = Literal["closed", "open"]
OnConflict = Literal["newest", "ask"]
LearnFrom = Literal["both", "labels", "words"]
Guard = Literal["replay"]
ChecksMode = bool | Literal["auto"]

UNCERTAIN_NEEDS_CONFIDENCE = (
    'review: "uncertain" needs a confidence, and this judge computes none. Set confidence=True, '
    'decide="evidence", or decide="auto" with guidelines or episodes.'
)


def typed(fits: Callable[[Any], bool], what: str) -> PlainValidator:
    """Accept the values that fit; `what` names them in the error."""

    def check(value: Any) -> Any:
        if fits(value):
            return value
        raise ValueError(f"expected {what}, got {type(value).__name__}.")

    return PlainValidator(check)


def _no_coroutine(function: Any) -> Any:
    if inspect.iscoroutinefunction(function):
        raise ValueError(PLAIN_FUNCTION)
    return function


def _review_validator(modes: Any, takes: str) -> PlainValidator:
    """Accept one of the modes, or a plain function."""

    def check(review: Any) -> Any:
        choices = get_args(modes)
        if review in choices or (isinstance(review, Uncertain) and "uncertain" in choices):
            return review
        if callable(review):
            return _no_coroutine(review)
        raise ValueError(
            f"{review!r} is not known: give {', '.join(map(repr, choices))}, or a function of "
            f"{takes} that returns whether to ask."
        )

    return PlainValidator(check)


def _distill_model(model: Any) -> Any:
    return None if model is None else check_chat_model(model, "distill_model")


_EMBEDDINGS = f"LangChain embeddings, a function, or a string such as {DEFAULT_EMBEDDINGS!r}"


class Settings(BaseModel):
    """Options that belong together; an invalid one raises an error that names it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True
    )

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise InvalidInputError(describe_validation_error(error)) from error


class Judge(Settings):
    """A judge: what it judges, with which models, and with how much of its memory.

    Every builder takes these options as keywords; `evaluate` compares judges. docs/options.md
    explains each option.

    Raises:
        InvalidInputError: If an option is invalid; the message names it.
    """

    criterion: Annotated[
        Criterion,
        typed(lambda it: isinstance(it, Criterion), "a Criterion(name=..., instructions=...)"),
    ]
    """What is judged."""
    model: Annotated[ChatModelLike, PlainValidator(check_chat_model)] = DEFAULT_CHAT_MODEL
    """A chat model, or a `"provider:name"` string that is resolved when it is first called."""
    distill_model: Annotated[ChatModelLike | None, PlainValidator(_distill_model)] = None
    """The model that distills and compares; by default the judge's model."""
    embeddings: Annotated[
        EmbeddingsLike,
        typed(lambda it: isinstance(it, Embeddings | str) or callable(it), _EMBEDDINGS),
    ] = DEFAULT_EMBEDDINGS
    """LangChain embeddings, a function from texts to vectors, or a `"provider:name"` string."""
    k: int = Field(default=5, ge=0, le=MAX_K)
    """How many similar examples the judge is shown, from 0 to 100."""
    use_guidelines: bool = True
    """False to judge without guidelines, for comparison."""
    use_episodes: bool = True
    """False to judge without episodes, for comparison."""
    max_guideline_tokens: int = Field(default=2_300, ge=0)
    """How many tokens of the prompt guidelines may take. If there are more, the ones that apply to
    the case are chosen, and the judgment has a warning."""
    on_embedding_error: OnEmbeddingError = "raise"
    """What happens if an embedding call fails while judging: `raise`, or `guidelines` to judge by
    the guidelines alone, with a warning in the judgment."""
    swap: bool = False
    """True to judge two outputs in both orders, with two calls of the model. If the verdicts
    disagree, it is a tie if the scale has one, and the judgment has a warning."""
    cite_guidelines: bool = False
    """True for the judge to also name the guidelines that the outputs break, which graphs return
    as `broken_guidelines`. In gates it is True by default."""
    checks: Annotated[
        ChecksMode, typed(lambda it: isinstance(it, bool) or it == "auto", "True, False or 'auto'")
    ] = "auto"
    """True to ask of each guideline whether the case meets it: one yes/no question each, answered
    with one token, or one request for all if the model gives no log-probabilities. The answers are
    in the judgment, count in its value, and measure the guidelines; `cite_guidelines` and gates use
    them. `auto`: only for small models that give log-probabilities; others read guidelines as
    text."""
    small_model: bool | None = None
    """Whether `model` is asked as a small model: for one token at a time, with each guideline as a
    check. None for what the model itself declares; the embedded model declares that it is small."""
    models: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(lambda names: tuple(names) if isinstance(names, list) else names),
    ] = None
    """The chat models, as 'provider:name', that a run's context may choose instead; None for any
    but `local`, which would download a model and start a server."""
    require_namespace: bool = False
    """True to refuse a run whose context has no namespace, so that no run reads or writes the
    memory of the default namespace."""
    keep_judgments: timedelta | None = Field(default=None, gt=timedelta(0))
    """How long a judgment is kept in the memory for later feedback by its id (see
    `create_feedback_graph`); None to keep none."""
    confidence: bool = False
    """True to measure the judge's confidence, with one more short call: by the log-probabilities of
    the permitted values, calibrated on the experts' values in memory once there are enough."""
    samples: int = Field(default=0, ge=0, le=50)
    """How many answers to sample if the model gives no log-probabilities, up to 50."""
    decide: Decide = "auto"
    """Source of the value: the judge's own `verdict`, or the `evidence`, which weighs the verdict
    against the experts' values of the most similar cases. `auto`: the evidence, if at least five
    cases in memory also have a verdict of the current judge, it beats the newest 30 of these by
    more than chance, with each class weighted equally and none worse, and the case and the verdict
    are like those in memory; otherwise, and without memory, the verdict. `evidence`: also with
    fewer verdicts. The judgment has the source and the reason."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.swap and not isinstance(self.criterion.scale, Pairwise):
            raise ValueError(
                "swap: only a criterion with scale=Pairwise() is judged in both orders. This "
                f"one's scale is {self.criterion.scale.type}."
            )
        if self.samples and not self.confidence:
            raise ValueError("samples: needs confidence=True, which the samples measure.")
        for name in self.models or ():
            check_model_string(name, "models")
        return self

    @property
    def has_memory(self) -> bool:
        """Whether its judgments depend on a memory."""
        return self.use_guidelines or self.use_episodes or self.decide == "evidence"

    @property
    def mode(self) -> Decide:
        """The source of the value; without memory the verdict."""
        return self.decide if self.has_memory else "verdict"

    @property
    def weighs(self) -> bool:
        """Whether the evidence may decide."""
        return self.mode != "verdict"

    @property
    def measures(self) -> bool:
        """Whether its judgments have a confidence."""
        return self.confidence or self.weighs

    @property
    def options(self) -> "JudgeOptions":
        """The options as keywords, all but the criterion."""
        names = JudgeOptions.__annotations__
        return cast("JudgeOptions", {name: getattr(self, name) for name in names})

    def but(self, **options: Any) -> "Judge":
        """Return the judge with other options."""
        return Judge(**{**dict(self), **options})


class JudgeOptions(TypedDict, total=False):
    """The options of a `Judge` by name, for builders that take them as keywords."""

    model: ChatModelLike
    distill_model: ChatModelLike | None
    embeddings: EmbeddingsLike
    k: int
    use_guidelines: bool
    use_episodes: bool
    max_guideline_tokens: int
    on_embedding_error: OnEmbeddingError
    swap: bool
    cite_guidelines: bool
    checks: ChecksMode
    small_model: bool | None
    models: tuple[str, ...] | None
    require_namespace: bool
    keep_judgments: timedelta | None
    confidence: bool
    samples: int
    decide: Decide


class Uncertain(Settings):
    """When `review="uncertain"` asks an expert; `"uncertain"` alone means `Uncertain()`.

    It asks while there is too little feedback on this verdict, if the confidence is below the
    threshold that keeps agreement at `target_agreement`, if the memory has no similar case, and
    about a random `sample_share`; at most `per_day` times a day. The target holds for each verdict
    at a level of 95 %, whenever you look, for cases like those in memory: docs/confidence.md.

    Raises:
        InvalidInputError: If an option is invalid.
    """

    target_agreement: float = Field(default=0.9, gt=0, le=0.9999)
    """How often judgments that nobody is asked about must agree with the experts. To show 0.9 for a
    verdict takes 40 cases that all agree, 0.95 takes 82."""
    per_day: int | None = Field(default=None, ge=1)
    """The maximum of questions a day (UTC); None for no limit. After that nobody is asked, and a
    message is logged."""
    sample_share: float = Field(default=0.05, ge=0, le=1)
    """The share of judgments asked about at random, to check whether the judge still agrees."""


Review = ReviewMode | Uncertain | Callable[[Judgment], bool]
"""When the expert is asked: a mode, or a function that decides on the judgment."""


class ReviewSettings(Settings):
    """When a graph asks the expert about a judgment, and whether it asks to clarify a comment."""

    judge: Judge
    review: Annotated[Review, _review_validator(ReviewMode, "the Judgment")]
    clarify: bool

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if mode_of(self.review) == "uncertain" and not self.judge.measures:
            raise ValueError(UNCERTAIN_NEEDS_CONFIDENCE)
        return self


def mode_of(review: Any) -> ReviewMode | None:
    """Return the review mode; None where a function decides."""
    if isinstance(review, Uncertain):
        return "uncertain"
    return cast("ReviewMode", review) if isinstance(review, str) else None


class Alignment(Settings):
    """How an alignment learns. `create_alignment_graph` takes these options by name."""

    judge: Judge
    """The deployed judge, for the guard and `judge_cases`."""
    learn_from: LearnFrom = "both"
    """What is stored and learned of the feedback: `both`, or for comparison only its `labels` or
    its `words` (the comments)."""
    conflicts: OnConflict = "newest"
    """Of guidelines that contradict each other the `newest` stays, unless as many other experts
    support the older one: then both stay, and the report's `warnings` name them. With `ask` one
    interrupt asks an expert about all conflicts. `history()` and the report name the guidelines
    that were retired."""
    guard: Guard | None = None
    """`replay` judges stored cases again before the commit. If more of them get a wrong verdict
    than chance explains, the guideline at fault is dropped and reported."""
    batch_size: int = Field(default=DEFAULT_BATCH_SIZE, ge=1)
    """The maximum of feedback items that one call distills."""
    replay_cases: int = Field(default=DEFAULT_REPLAY_CASES, ge=1)
    """The maximum of stored cases that the guard judges again."""
    judge_cases: bool = False
    """True to judge each case in memory that has an expert's value and no verdict, as if it were
    new, by the judge that has learned. `decide`, the calibrated confidence and
    `review="uncertain"` learn from these verdicts."""
    distill: bool = True
    """False to only store and judge: new feedback stays pending for a later run."""


class LearningOptions(JudgeOptions, total=False):
    """The options of learning and of its judge that an evaluation takes, too."""

    learn_from: LearnFrom
    guard: Guard | None
    batch_size: int
    replay_cases: int
    judge_cases: bool


class AlignmentOptions(LearningOptions, total=False):
    """The options of an `Alignment` and of its `Judge` by name."""

    conflicts: OnConflict
    distill: bool


ExampleFrom = Callable[[Any], ExampleLike]
"""A function of a parent's state that gives the example, or its fields."""

Sees = Literal["turn", "answer", "conversation"]

GateReviewMode = Literal["never", "always", "exhausted", "uncertain"]
GateReview = GateReviewMode | Uncertain | Callable[[Judgment], bool]
"""When a gate asks the expert: as a review graph, with `uncertain` whether the answer passed or
not; or `exhausted`, about an answer that did not pass when no revision is left."""


def _node_name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ValueError("expected a text that is not blank.")
    if ":" in name or "|" in name:
        raise ValueError(f"{name!r} is not a node name. It may not contain : or |.")
    if name in (START, END):
        raise ValueError(f"{name!r} is reserved by LangGraph. Choose another name.")
    return name


def _fallback_text(fallback: Any) -> str | None:
    if fallback is not None and not (isinstance(fallback, str) and fallback.strip()):
        raise ValueError("expected the text to answer instead, or None.")
    check_json(fallback, "the text")
    return fallback


class Gate(Settings):
    """A gate: which values pass, and what happens to an answer that does not.

    Functions that build gates take these options as keywords, those of `Judge`, with
    `cite_guidelines=True` by default, and `clarify` of `create_review_graph`.
    """

    name: Annotated[str, PlainValidator(_node_name)] = "quality_gate"
    """The name of the gate's node, and of the state's key with its verdict."""
    passes: SkipValidation[Passes | None] = None
    """Which values pass: the lowest one on a `Numeric` or ordered scale, the only one on others; a
    set of them; or a function of the value. True by default on a `Boolean` scale."""
    max_revisions: int = Field(default=2, ge=0)
    """How often an answer is sent back in one turn."""
    on_judge_error: OnJudgeError = "closed"
    """What happens if the judge's model or embeddings fail: with `closed` the answer does not pass,
    with `open` it continues with the status `judge_error`. A store that fails, or feedback that
    can't be stored, fails the run in both cases."""
    review: Annotated[GateReview, _review_validator(GateReviewMode, "the Judgment")] = "never"
    """When the expert is asked, by an interrupt. The expert's value overrides the judge's, and
    memory learns from it."""
    example: Annotated[
        ExampleFrom | None,
        typed(
            lambda it: it is None or callable(it),
            "a function of the state that returns `inputs` and `outputs`, or None",
        ),
        AfterValidator(_no_coroutine),
    ] = None
    """A function of the state that returns `inputs` and `outputs`, in place of `sees`."""
    sees: Sees = "turn"
    """What is judged. `turn`: tool calls, their results and the answer as `outputs`, the request
    and the conversation before it as `inputs`. `answer`: the request and the answer.
    `conversation`: all of it as `outputs`, the first request as `inputs`. Without tool calls and
    earlier turns all three are the same."""
    fallback: Annotated[str | None, PlainValidator(_fallback_text)] = None
    """The text that replaces an answer that is neither let through nor sent back; this turn's
    drafts and critiques are removed, too. None to leave the messages as they are."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.example is not None and "sees" in self.model_fields_set:
            raise ValueError("sees: `example` selects what is judged. Leave out one of the two.")
        return self


class GateOptions(JudgeOptions, total=False):
    """The options of a `Gate` and of its `Judge` by name, for builders that take them so."""

    name: str
    passes: Passes | None
    max_revisions: int
    on_judge_error: OnJudgeError
    review: GateReview
    example: ExampleFrom | None
    sees: Sees
    fallback: str | None
    clarify: bool


PanelMode = Literal["always", "never"]
PanelReview = PanelMode | Callable[[dict[str, Judgment]], bool]
"""When a panel asks the expert."""


class PanelSettings(Settings):
    """When a panel asks the expert."""

    review: Annotated[PanelReview, _review_validator(PanelMode, "the judgments by criterion")]


class MemAlignContext(FrozenModel):
    """Settings of one run. A field that is not set stays as the graph was built.

    `context={"namespace": [...]}`, or the same under `memalign`, where a judge inside another graph
    reads it.

    Raises:
        InvalidInputError: If a field is unknown, or its value is invalid.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    namespace: Annotated[tuple[str, ...], BeforeValidator(check_namespace)] = DEFAULT_NAMESPACE
    """The memory's namespace in the store, to separate teams or customers: one or more labels
    without dots."""
    k: int | None = Field(default=None, ge=0, le=MAX_K, strict=True)
    """How many similar examples the judge is shown; 0 for none, empty for the graph's own."""
    model: Annotated[str | None, AfterValidator(lambda model: (model or "").strip() or None)] = None
    """The chat model as 'provider:name', such as 'openai:gpt-6-luna'; empty for the graph's
    own."""
    review: ReviewMode | None = None
    """When the expert is asked; empty for the graph's own. 'uncertain' needs a graph with a
    confidence, or without decide='verdict', and not a panel."""

    def __init__(self, **fields: Any) -> None:
        if fields.keys() == {"memalign"} and isinstance(fields["memalign"], Mapping):
            fields = {str(name): value for name, value in fields["memalign"].items()}
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise InvalidInputError(f"context: {describe_validation_error(error)}") from error


ResolvedSettings = dict[str, Any]
"""One run's settings by the names of `MemAlignContext`'s fields; JSON values."""


def resolve_context(context: Any, defaults: Mapping[str, Any], judge: Judge) -> ResolvedSettings:
    """Return a run's settings: the graph's defaults, changed by the context.

    Raises:
        InvalidInputError: The context has no namespace and one is required, or it names a model
            that a context may not choose.
    """
    fields = context_settings(context) or {}
    if judge.require_namespace and "namespace" not in fields:
        raise InvalidInputError(
            "context: it has no namespace, and the judge was built with require_namespace=True. "
            'Pass one, such as context={"namespace": ["acme"]}, or {"memalign": {"namespace": '
            '["acme"]}} if a graph around the judge has a context of its own.'
        )
    _check_model(fields.get("model"), judge)
    return {**defaults, **fields}


def _check_model(model: str | None, judge: Judge) -> None:
    if model is None or model in (judge.model, *(judge.models or ())):
        return
    check_model_string(model, "context: model")
    if judge.models is not None:
        allowed = ", ".join(map(repr, judge.models)) or "only the judge's own"
        raise InvalidInputError(f"context: model: {model!r} is not allowed. Allowed: {allowed}.")
    if model.partition(":")[0] == "local":
        raise InvalidInputError(
            "context: model: 'local' would download a model and start a server. To allow it, build "
            "the judge with models=['local']."
        )


def context_settings(context: Any) -> ResolvedSettings | None:
    """Return what a context sets for the judge, itself or under `memalign`; None if nothing."""
    own = context
    if not isinstance(own, MemAlignContext | None):
        fields = context if isinstance(context, Mapping) else fields_of(context)
        own = fields.get("memalign")
        own = MemAlignContext(memalign=own) if isinstance(own, Mapping) else own
        if not isinstance(own, MemAlignContext | None):
            kind = type(own).__name__
            raise InvalidInputError(f"context: memalign: expected a dict of fields, got {kind}.")
        _check_spelling(fields, own)
    if own is None:
        return None
    return own.model_dump(mode="json", exclude_unset=True, exclude_none=True)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of an object, such as a pydantic model, a dataclass or a named tuple."""
    if isinstance(value, BaseModel):
        return dict(value)  # with extra fields
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [*getattr(value, "__dict__", ()), *slots, *getattr(value, "_fields", ())]
    return {name: getattr(value, name, None) for name in names}


def _check_spelling(fields: Mapping[str, Any], own: MemAlignContext | None) -> None:
    """Refuse a context that was meant for the judge but would not reach it.

    If it were ignored, one customer's feedback could be written to another's memory.
    """
    has_namespace = own is not None and "namespace" in own.model_fields_set
    for name, value in fields.items():
        plain = re.sub(r"[^a-z]", "", str(name).lower())
        is_namespace = get_close_matches(plain, ["namespace"], 1, 0.92)
        if is_namespace and value is not None and not has_namespace:
            raise InvalidInputError(
                f"context: {name!r} is next to 'memalign', where no judge reads it. Use "
                'context={"memalign": {"namespace": [...]}}.'
            )
        if "memalign" not in fields and get_close_matches(plain, ["memalign"], 1, 0.8):
            raise InvalidInputError(f"context: {name!r} is not known: did you mean 'memalign'?")
