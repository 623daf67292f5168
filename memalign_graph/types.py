"""The data of this package; its JSON is what graph states and stores keep."""

import math
from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeVar
from uuid import uuid4

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from memalign_graph.errors import InvalidInputError, describe_validation_error, excerpt
from memalign_graph.identity import check_json, check_label, digest, episode_id
from memalign_graph.scales import Boolean, Scale, Value
from memalign_graph.transcript import read_messages, sides_of

EpisodeStatus = Literal["pending", "distilled"]
Decide = Literal["auto", "verdict", "evidence"]  # the option
Decider = Literal["verdict", "evidence"]  # what decided a judgment
ConfidenceSource = Literal["logprobs", "samples", "evidence"]

GuidelineStatus = Literal["standing", "pending", "unproven"]
"""`standing`: active. `pending`: it lost a source episode; the judge still uses it, and the next
learning redistills it from the remaining episodes. `unproven`: on the cases in memory it predicts
the opposite of the experts' values; the judge does not use it."""

ReviewReason = Literal[
    "too_little_feedback",
    "unsure",
    "no_similar_episode",
    "episodes_disagree",  # of judgments by version 0.2
    "sample",
    "no_budget",  # the other reasons apply, and nobody is asked
    # For tool calls only:
    "always_ask",
    "untrusted_text",
    "judged_wrong",
    "refused_before",
    "too_long",
]
"""Why an expert is asked about a judgment, or is not; `interrupts.REASONS` says it in words."""

Probabilities = dict[str, float]
"""The probability of each value of a finite scale, by the rendered value."""

UtcDatetime = Annotated[
    datetime, AfterValidator(lambda time: time if time.tzinfo else time.replace(tzinfo=UTC))
]
"""A time with a zone; UTC by default."""

_UNIX_DIGITS = range(9, 14)  # of seconds since 1973, and of milliseconds


def read_compact_date(value: Any) -> Any:
    """Convert a number such as 20240531, which pydantic would take for seconds, to a date."""
    text = str(value).strip()
    whole = text.lstrip("-").partition(".")[0]
    if not whole.isdecimal() or len(whole) in _UNIX_DIGITS:
        return value
    try:
        return datetime.fromisoformat(text.removesuffix(".0"))
    except ValueError as error:
        expected = "write it as 2024-05-31 or 2024-05-31T10:00:00Z."
        raise ValueError(f"given_at: {excerpt(text, 40)} is not a date: {expected}") from error


def _check_is_in_utc(time: datetime) -> datetime:
    try:
        time.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{time} is not a date: its year in UTC is not 1 to 9999.") from error
    return time


GivenAt = Annotated[
    UtcDatetime, BeforeValidator(read_compact_date), AfterValidator(_check_is_in_utc)
]


_DEPTH = 10  # of an example's value within a store's item


def _stored_form(value: Any, name: str) -> Any:
    """Check and copy a value of an example; messages, also in a pair, become plain JSON."""
    messages = read_messages(value, name)
    if messages is not None:
        value = messages
    elif sides := sides_of(value):
        read = {key: read_messages(side, f"{name}[{key!r}]") for key, side in sides.items()}
        pair = {key: side if read[key] is None else read[key] for key, side in sides.items()}
        value = pair if isinstance(value, dict) else list(pair.values())
    check_json(value, name, depth=_DEPTH)
    # A copy, so that the caller's later changes do not reach the memory.
    return deepcopy(value)


class FrozenModel(BaseModel):
    """An immutable model that rejects unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """Return the model as plain JSON values, for graph state and stores."""
        return self.model_dump(mode="json")


class Criterion(FrozenModel):
    """What is judged, and on which scale."""

    name: str = Field(max_length=100)
    """The name of the criterion and its memory; without dots, which separate namespaces."""
    instructions: str
    """The question put to the judge, in the author's words."""
    scale: Scale = Boolean()
    """The kind of value; yes or no by default."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return check_label(name, "the criterion's name")

    @field_validator("instructions")
    @classmethod
    def _check_instructions(cls, instructions: str) -> str:
        if not instructions.strip():
            raise ValueError("must not be empty: say what the judge has to decide.")
        check_json(instructions, "instructions")
        return instructions


class Example(FrozenModel):
    """What is judged: an application's inputs and outputs."""

    inputs: Any
    """The application's inputs: text, messages, or any other JSON value."""
    outputs: Any
    """What the application answered or did; for a pairwise criterion both outputs, A first.

    A list of LangChain or OpenAI-style messages is kept as OpenAI-style JSON, without message ids,
    usage and times."""
    reference_outputs: Any = None
    """What it should have answered, if known."""

    @field_validator("inputs", "outputs", "reference_outputs", mode="plain")
    @classmethod
    def _check_value(cls, value: Any, info: Any) -> Any:
        value = _stored_form(value, info.field_name)
        is_blank = isinstance(value, str) and not value.strip()
        if info.field_name != "reference_outputs" and (is_blank or value in (None, {}, [])):
            raise ValueError("must not be empty: pass the text or JSON value to judge.")
        return value

    @cached_property
    def id(self) -> str:
        """The hash of the example's canonical JSON."""
        return digest(self.to_json())


def stored_example(value: Any) -> Any:
    """Load a stored example unchanged, so that those of earlier versions keep their ids."""
    if not isinstance(value, Mapping) or not {"inputs", "outputs"} <= value.keys():
        return value
    if not value.keys() <= Example.model_fields.keys():
        return value
    for name, part in value.items():
        check_json(part, name, depth=_DEPTH)
    return Example.model_construct(**deepcopy(dict(value)))


StoredExample = Annotated[Example, BeforeValidator(stored_example)]
"""An example in a store."""


class Neighbour(FrozenModel):
    """A similar case in memory that the evidence is based on."""

    example_id: str
    episode_ids: list[str]
    value: Value  # the experts' consensus value
    similarity: float  # cosine, to the judged case
    weight: float  # its share of the vote, from 0 to 1


class Evidence(FrozenModel):
    """The verdict, the evidence model's estimate, and which of them decided the value."""

    decided_by: Decider  # the judge's verdict, or the estimate
    reason: str
    verdict: Value  # the judge's own value
    estimate: Value | None = None  # None if memory has too few cases
    probabilities: Probabilities | None = None  # of the estimate, on a finite scale
    vote: Probabilities | float | None = None
    """The neighbours' vote: the share of each value, or the mean on a numeric scale."""
    neighbours: list[Neighbour] = Field(default_factory=list)
    """The cases that voted, most similar first."""
    weights: dict[str, float] = Field(default_factory=dict)
    """The shares of `judge` and `neighbours` in the estimate. If the judge has too few verdicts,
    `judge` is missing and the rest is the median's."""
    cases: int = 0
    """The number of labeled cases that the evidence model was fitted to."""
    verdict_error: float | None = None
    """The error of the judge's verdicts on these cases: the share of wrong verdicts, or the mean
    absolute error on a numeric scale; None if fewer than five cases have a verdict."""
    evidence_error: float | None = None
    """The same error of the evidence model, by leave-one-out."""


class ReviewChoice(FrozenModel):
    """Whether an expert is asked about a judgment, and why."""

    asks: bool
    reasons: list[ReviewReason] = Field(default_factory=list)  # empty if it is sure enough
    threshold: float | None = None
    """The confidence from which on no expert is asked; None if there is too little feedback, or no
    confidence reaches the target."""


class Check(FrozenModel):
    """A model's answer to whether a case meets a guideline."""

    guideline_id: str
    asked: str  # the key of the question and the model
    held: bool | None  # None if the answer is neither yes nor no
    probability: float | None = None  # of yes; None without log-probabilities


class Worth(FrozenModel):
    """How well a guideline separates what experts rate good from what they rate bad."""

    auc: float
    """How often the better of two cases with different labels is the likelier one to meet the
    guideline: 1 is always, 0.5 is chance."""
    cases: int
    """The number of labeled cases that the AUC was measured on."""


class Judgment(FrozenModel):
    """The judge's value, rationale and confidence, and the memory it used."""

    id: str = Field(default_factory=lambda: uuid4().hex)
    criterion: str
    """The criterion's name."""
    example_id: str
    value: Value
    """The value on the criterion's scale; `evidence.decided_by` names its source."""
    rationale: str
    """Why, as the judge wrote it before the value. If the evidence overruled the judge, the last
    sentence names both values."""
    confidence: float | None = Field(default=None, ge=0, le=1)
    """The probability that the value is the expert's; None if it was not measured."""
    confidence_source: ConfidenceSource | None = None
    """What the confidence is based on: log-probabilities of the permitted values, agreement of
    several answers, or the evidence model."""
    calibrated_on: int | None = None
    """The number of labels that the confidence is calibrated on; None if it is not calibrated."""
    probabilities: Probabilities | None = None
    """The judge's own probability of each value of a finite scale, before calibration."""
    evidence: Evidence | None = None
    """The evidence and what decided; None with `decide="verdict"` or without memory."""
    review: ReviewChoice | None = None
    """Whether an expert was asked, and why, with `review="uncertain"`."""
    guideline_ids: list[str] = Field(default_factory=list)
    """The guidelines in the judge's prompt, in order."""
    broken_guideline_ids: list[str] = Field(default_factory=list)
    """The guidelines that the outputs break according to the judge, with `cite_guidelines=True`."""
    checks: list[Check] = Field(default_factory=list)
    """Which guidelines the case meets, with `checks=True`."""
    episode_ids: list[str] = Field(default_factory=list)
    """The episodes in the judge's prompt, most similar first."""
    memory_version: str
    """The version of the memory that was used."""
    thread_id: str | None = None
    """The LangGraph thread of the judge's run, if any."""
    model: str | None = None
    """The model's own name in its answer."""
    judge_key: str | None = None
    """The key of the judge: its model and settings, prompt version, and options that change the
    verdict. None if an earlier version of the package made it."""
    warnings: list[str] = Field(default_factory=list)
    """What was missing: truncated text, guidelines left out, failed retrieval."""

    @field_validator("rationale", "thread_id")
    @classmethod
    def _check_text(cls, text: str | None, info: Any) -> str | None:
        check_json(text, info.field_name)
        return text

    @property
    def verdict(self) -> Value:
        """The judge's own value, which the evidence may overrule."""
        return self.value if self.evidence is None else self.evidence.verdict


class Feedback(FrozenModel):
    """An expert's value, rationale (comment) or both on an example.

    `inputs`, `outputs` and `reference_outputs` may also be given in the place of `example`.
    """

    example: Example
    value: Value | None = None
    """What the value should be, on the criterion's scale."""
    rationale: str | None = None
    """Why, in the expert's words."""
    author: str | None = None
    id: str | None = None
    """The id in the system it comes from; distinguishes anonymous experts."""
    judgment: Judgment | None = None
    """The judgment that the feedback answers, if any."""
    thread_id: str | None = None
    """The LangGraph thread in which it was given, if any."""
    given_at: GivenAt = Field(default_factory=lambda: datetime.now(UTC))
    """When it was given; now by default, and in UTC without a zone. Of two pieces of feedback by
    one author on one example, the newer counts."""

    @model_validator(mode="before")
    @classmethod
    def _gather_example(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "example" in data:
            return data
        flat = {name: data[name] for name in Example.model_fields if name in data}
        rest = {name: value for name, value in data.items() if name not in flat}
        return {**rest, "example": flat} if flat else data

    @field_validator("rationale", "author", "id", "thread_id", mode="after")
    @classmethod
    def _drop_blank(cls, text: str | None, info: Any) -> str | None:
        check_json(text, info.field_name)
        return (text or "").strip() or None

    @model_validator(mode="after")
    def _check_not_empty(self) -> Self:
        if self.value is None and self.rationale is None:
            raise ValueError("feedback needs a value or a rationale: give at least one of them.")
        return self

    @property
    def episode_id(self) -> str:
        """The id of the episode that stores this feedback."""
        return episode_id(self.example.id, self.author, self.id)

    @property
    def agrees(self) -> bool:
        """Whether the expert only confirms the judge's value; then nothing is learned."""
        judgment = self.judgment
        return judgment is not None and self.rationale is None and self.value == judgment.value


def word_of(episode: Mapping[str, Any]) -> str:
    """Hash an episode's example, author, value and rationale."""
    return digest([episode.get(name) for name in ("id", "example_id", "value", "rationale")])


class Episode(FrozenModel):
    """Stored feedback: one example, and one expert's feedback on it."""

    id: str
    """The hash of example and author."""
    example_id: str
    """The id of the example; all experts' episodes on it share it."""
    example: StoredExample
    value: Value | None = None
    rationale: str | None = None
    author: str | None = None
    feedback_id: str | None = None
    status: EpisodeStatus = "pending"
    """Whether it has been distilled."""
    judgment: Judgment | None = None
    """The judgment that the feedback answers, if any. Feedback without one keeps it. So does the
    same feedback again, or feedback on one of the same judge that is nearer to the value."""
    other_verdicts: dict[str, Value] = Field(
        default_factory=dict, exclude_if=lambda verdicts: not verdicts
    )
    """The values of other judgments on the example that this expert answered, by judgment id."""
    thread_ids: list[str] = Field(default_factory=list)
    """The LangGraph threads of its judgment and feedback."""
    given_at: UtcDatetime
    """When the expert gave it."""
    created_at: UtcDatetime
    updated_at: UtcDatetime

    @classmethod
    def from_feedback(cls, feedback: Feedback, status: EpisodeStatus = "pending") -> Self:
        """Make an episode from feedback, without storing it."""
        now = datetime.now(UTC)
        judged_in = feedback.judgment.thread_id if feedback.judgment else None
        threads = dict.fromkeys(filter(None, (judged_in, feedback.thread_id)))
        return cls(
            **{name: value for name, value in feedback if name not in ("id", "thread_id")},
            id=feedback.episode_id,
            example_id=feedback.example.id,
            feedback_id=feedback.id,
            status=status,
            thread_ids=list(threads),
            created_at=now,
            updated_at=now,
        )

    @property
    def word(self) -> str:
        """The hash of example, author, value and rationale."""
        return word_of(vars(self))

    @property
    def verdicts(self) -> dict[str, Value]:
        """The values of all judgments that the expert answered, by judgment id."""
        latest = {} if self.judgment is None else {self.judgment.id: self.judgment.value}
        return {**self.other_verdicts, **latest}

    def says_the_same_as(self, other: "Episode") -> bool:
        """Return whether two episodes have the same example, author, value and rationale."""
        return self.word == other.word


class Guideline(FrozenModel):
    """A general rule that a judge can check on a new case."""

    id: str
    """The id; it stays when the text is revised."""
    text: str
    """The rule in the expert's terms."""
    question: str | None = None
    """The rule as a yes/no question about one case; yes means that the case meets it. None if it is
    not written yet, empty if the rule can't be asked so."""
    episode_ids: list[str] = Field(default_factory=list)
    """The episodes it was distilled from; empty if an expert wrote it."""
    origin: Literal["distilled", "expert"] = "distilled"
    """Whether a model distilled it from feedback, or an expert wrote it."""
    author: str | None = None
    """The expert who wrote or last edited it, if known."""
    status: GuidelineStatus = "standing"
    """Whether it is active, to be redistilled, or measured to contradict the experts' values."""
    worth: Worth | None = None
    """Its AUC, if measured. Computed when the guideline is read, never stored."""
    position: int
    """Its place, lowest first."""
    created_at: UtcDatetime
    updated_at: UtcDatetime


class RecalledExample(FrozenModel):
    """An example in memory that is similar to the judged one."""

    example: Example
    episodes: list[Episode]  # all experts' feedback on it, oldest first
    similarity: float  # cosine, from -1 to 1


Parsed = TypeVar("Parsed", Example, Feedback)

FeedbackLike = Feedback | Mapping[str, Any]
ExampleLike = Example | Mapping[str, Any]


def parse_feedback(feedback: FeedbackLike) -> Feedback:
    if isinstance(feedback, Mapping):
        # Empty cells of a table are missing fields.
        fields = {name: to_python_scalar(value) for name, value in feedback.items()}
        feedback = {
            name: value
            for name, value in fields.items()
            if not (is_missing(value) or (name, value) == ("given_at", None))
        }
        number = feedback.get("id")
        if isinstance(number, int) or (isinstance(number, float) and number.is_integer()):
            feedback["id"] = str(int(number))  # 3.0 in a column with empty cells
    expected = "an object with `inputs`, `outputs`, and `value`, `rationale` or both"
    return _parse(Feedback, feedback, f"feedback: give Feedback, or {expected}")


def parse_example(example: ExampleLike) -> Example:
    expected = "example: give an Example, or an object with `inputs` and `outputs`"
    return _parse(Example, example, expected)


def _parse(model: type[Parsed], value: Any, expected: str) -> Parsed:
    if not isinstance(value, model | Mapping):
        raise InvalidInputError(f"{expected}, not a value of type {type(value).__name__}.")
    try:
        return model.model_validate(dict(value) if isinstance(value, Mapping) else value)
    except ValidationError as error:
        raise InvalidInputError(describe_validation_error(error)) from error


def is_missing(value: Any) -> bool:
    """Return whether a value marks an empty cell in pandas and other tables."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return is_nan or type(value).__name__ in ("NAType", "NaTType")


def to_python_scalar(value: Any) -> Any:
    """Convert a scalar of numpy to a Python one."""
    is_numpy = type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0
    return value.item() if is_numpy else value
