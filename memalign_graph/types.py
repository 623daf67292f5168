"""What the package speaks about; as JSON it is what graphs keep in states, memories in stores."""

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

from memalign_graph.errors import InvalidInputError, describe_validation_error
from memalign_graph.identity import check_json, check_label, digest, episode_id
from memalign_graph.scales import Boolean, Scale, Value
from memalign_graph.transcript import read_messages

EpisodeStatus = Literal["pending", "distilled"]  # whether distilling has read it
Decide = Literal["auto", "verdict", "evidence"]  # what a judge is told
Decider = Literal["verdict", "evidence"]  # what decided
ConfidenceSource = Literal["logprobs", "samples", "evidence"]

GuidelineStatus = Literal["standing", "pending", "unproven"]
"""Where a guideline stands. One that is `pending` lost a source since it was worded: the judge is
given it, and the next learning rewords it from those that are left. One that is `unproven` was
measured to say the opposite of the experts' values: the judge is not given it."""

# Why an expert is asked about a judgment, or is not.
ReviewReason = Literal[
    "too_little_feedback",  # to tell how far the judge can be trusted
    "unsure",  # the confidence is below the threshold, or unknown
    "no_similar_episode",  # memory holds nothing like the case
    "episodes_disagree",  # the experts' values of the most similar cases differ
    "sample",  # drawn at random, so that drift is seen
    "no_budget",  # it would be asked for the other reasons, but the budget is spent
    # Of a tool call alone:
    "always_ask",  # the application says so
    "untrusted_text",  # it repeats an address, amount or identifier that only a tool named
    "judged_wrong",  # the judge does not pass it
]

Probabilities = dict[str, float]
"""A probability for each value of a finite scale, by the value as the scale renders it."""

UtcDatetime = Annotated[
    datetime, AfterValidator(lambda at: at if at.tzinfo else at.replace(tzinfo=UTC))
]
"""A time; in UTC, unless it says otherwise, so that all can be compared."""


_DEPTH = 10  # of an example's value in a store's item


def _stored_form(value: Any, name: str) -> Any:
    """Check a value of an example, and copy it; messages, also those of a pair, as plain JSON."""
    parts = value if isinstance(value, dict) and value.keys() == {"A", "B"} else {}
    if isinstance(value, list) and len(value) == 2:  # noqa: PLR2004 - a pair
        parts = dict(enumerate(value))
    messages = read_messages(value, name)
    if messages is not None:
        value = messages
    elif read := {key: read_messages(parts[key], f"{name}[{key!r}]") for key in parts}:
        made = {key: part if read[key] is None else read[key] for key, part in parts.items()}
        value = made if isinstance(value, dict) else list(made.values())
    check_json(value, name, depth=_DEPTH)
    # A copy: what the caller does to the value later must not reach the memory.
    return deepcopy(value)


class FrozenModel(BaseModel):
    """A model that can't be changed, and refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """Return the model as plain JSON values, for graph state and stores."""
        return self.model_dump(mode="json")


class Criterion(FrozenModel):
    """What is judged, and on which scale."""

    name: str = Field(max_length=100)
    """Names the criterion and its memory; without dots, which separate namespaces."""
    instructions: str
    """The question put to the judge, in the author's words."""
    scale: Scale = Boolean()
    """The kind of value; yes or no unless given."""

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
    """What a judge looks at: what the application was given, and what it made of it."""

    inputs: Any
    """What the application was given: text, messages, or any other JSON value."""
    outputs: Any
    """What the application answered or did; for a pairwise criterion both, first A, then B.

    A list of LangChain or OpenAI-style messages is kept as OpenAI-style JSON; the ids of messages,
    usage and times are not part of it."""
    reference_outputs: Any = None
    """What it should have answered, where that is known."""

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
    """Take an example from a store as it is: what an earlier version wrote keeps its id."""
    if not isinstance(value, Mapping) or not {"inputs", "outputs"} <= value.keys():
        return value
    if not value.keys() <= Example.model_fields.keys():
        return value
    for name, part in value.items():
        check_json(part, name, depth=_DEPTH)
    return Example.model_construct(**deepcopy(dict(value)))


StoredExample = Annotated[Example, BeforeValidator(stored_example)]
"""An example in what a memory keeps."""


class Neighbour(FrozenModel):
    """A similar case in memory, as evidence."""

    example_id: str
    episode_ids: list[str]
    value: Value  # what most of them say
    similarity: float  # cosine, to the case judged
    weight: float  # the share of the neighbours' vote, from 0 to 1


class Evidence(FrozenModel):
    """What a judgment's value was weighed from, and which part decided."""

    decided_by: Decider  # the judge's own verdict, or the evidence's estimate
    reason: str
    verdict: Value  # what the judge itself says
    estimate: Value | None = None  # what the evidence says; None where there is too little to weigh
    probabilities: Probabilities | None = None  # of each value of a finite scale, by the evidence
    vote: Probabilities | float | None = None
    """What the neighbours say: the share of each value, or their mean on a numeric scale."""
    neighbours: list[Neighbour] = Field(default_factory=list)
    """The most similar of the cases that voted, most similar first."""
    weights: dict[str, float] = Field(default_factory=dict)
    """The shares of `judge` and `neighbours` in the value. Without `judge`, which has too few
    verdicts, the rest is the median's."""
    cases: int = 0
    """How many cases with an expert's value it was fitted to."""
    verdict_error: float | None = None
    """How far the judge's verdicts on them are off: the share of wrong ones, or on a numeric scale
    the mean distance; None where fewer than ten have one."""
    evidence_error: float | None = None
    """The same of the evidence, each case estimated as if it were not in memory."""


class ReviewChoice(FrozenModel):
    """Whether an expert is asked about a judgment, and why."""

    asks: bool
    reasons: list[ReviewReason] = Field(default_factory=list)  # none where it is sure enough
    threshold: float | None = None
    """The confidence from which on no expert is asked; None while there is too little feedback, or
    where no confidence reaches the target."""


class Check(FrozenModel):
    """What a model answered when it was asked whether a case meets a guideline."""

    guideline_id: str
    asked: str  # names the question and the model that was asked: `asked_id`
    held: bool | None  # None where the model said neither yes nor no
    probability: float | None = None  # of yes; None without log-probabilities


class Worth(FrozenModel):
    """How well a guideline tells what experts value from what they do not."""

    auc: float
    """Of two cases that experts valued differently, how often the better one is likelier to meet
    it: 1 always, 0.5 as by chance."""
    cases: int
    """The number of cases with an expert's value that it was measured on."""


class Judgment(FrozenModel):
    """A judge's verdict, and the memory it was made with."""

    id: str = Field(default_factory=lambda: uuid4().hex)
    criterion: str
    """The criterion's name."""
    example_id: str
    value: Value
    """The verdict, on the criterion's scale; what the evidence says where `evidence.decided_by`
    tells so."""
    rationale: str
    """Why, in the judge's words, written before the value; where the evidence says otherwise, a
    sentence at its end tells so."""
    confidence: float | None = Field(default=None, ge=0, le=1)
    """How likely the value is the expert's, from 0 to 1; None where that was not measured."""
    confidence_source: ConfidenceSource | None = None
    """What the confidence was measured by: the log-probabilities of the permitted values, how many
    of several answers agree, or the model that weighs the evidence."""
    calibrated_on: int | None = None
    """The number of experts' verdicts that the confidence is calibrated on; None if it is raw."""
    probabilities: Probabilities | None = None
    """How likely the judge itself holds each value of a finite scale, before calibration."""
    evidence: Evidence | None = None
    """What the value was weighed from, which part decided, and why; None with `decide="verdict"`,
    and for a judge without memory."""
    review: ReviewChoice | None = None
    """Whether an expert was asked, and why, with `review="uncertain"`."""
    guideline_ids: list[str] = Field(default_factory=list)
    """The guidelines in the judge's prompt, in its order."""
    broken_guideline_ids: list[str] = Field(default_factory=list)
    """The guidelines that the outputs break, by the judge's own account, where a gate asked."""
    checks: list[Check] = Field(default_factory=list)
    """Which guidelines the case meets, each asked as a question of its own; with `checks=True`."""
    episode_ids: list[str] = Field(default_factory=list)
    """The episodes in the judge's prompt, most similar first."""
    memory_version: str
    """The version of the memory at the time."""
    thread_id: str | None = None
    """The LangGraph thread it was made in, if any."""
    model: str | None = None
    """The model that answered, as it names itself."""
    judge_key: str | None = None
    """Names the judge that gave it: model with its settings, prompt version, options that change
    the verdict. None where an earlier version made it."""
    warnings: list[str] = Field(default_factory=list)
    """What the judge had to do without: text cut, guidelines left out, retrieval that failed."""

    @field_validator("rationale", "thread_id")
    @classmethod
    def _check_text(cls, text: str | None, info: Any) -> str | None:
        check_json(text, info.field_name)
        return text

    @property
    def verdict(self) -> Value:
        """What the judge itself says, whatever decided."""
        return self.value if self.evidence is None else self.evidence.verdict


class Feedback(FrozenModel):
    """An expert's judgment of an example: a value, a rationale, or both.

    The example may also be given flat, as `inputs`, `outputs` and `reference_outputs`.
    """

    example: Example
    value: Value | None = None
    """What the value should be, on the criterion's scale."""
    rationale: str | None = None
    """Why, in the expert's words."""
    author: str | None = None
    id: str | None = None
    """The id the feedback has where it came from; tells anonymous experts apart."""
    judgment: Judgment | None = None
    """The judgment the feedback is on, if there was one."""
    thread_id: str | None = None
    """The LangGraph thread it was given in, if any."""
    given_at: UtcDatetime = Field(default_factory=lambda: datetime.now(UTC))
    """When it was given; now by default, and in UTC if it has no zone. Of two pieces of feedback of
    one author on one example the newer counts."""

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
    def _check_said_something(self) -> Self:
        if self.value is None and self.rationale is None:
            raise ValueError("feedback needs a value or a rationale: give at least one of them.")
        return self

    @property
    def episode_id(self) -> str:
        """The id of the episode this feedback becomes."""
        return episode_id(self.example.id, self.author, self.id)

    @property
    def agrees(self) -> bool:
        """Whether the expert only confirms the judge's value, so that there is nothing to learn."""
        judgment = self.judgment
        return judgment is not None and self.rationale is None and self.value == judgment.value


class Episode(FrozenModel):
    """Stored feedback: one example, and one expert's feedback on it."""

    id: str
    """The hash of example and author."""
    example_id: str
    """The id of the example, shared by all experts' episodes on it."""
    example: StoredExample
    value: Value | None = None
    rationale: str | None = None
    author: str | None = None
    feedback_id: str | None = None
    status: EpisodeStatus = "pending"
    """Whether its lesson has been distilled."""
    judgment: Judgment | None = None
    """The judge's verdict at the time."""
    other_verdicts: dict[str, Value] = Field(
        default_factory=dict, exclude_if=lambda verdicts: not verdicts
    )
    """The values of other judgments on the example that the expert answered, by judgment id."""
    thread_ids: list[str] = Field(default_factory=list)
    """The threads it passed through."""
    given_at: UtcDatetime
    """When the expert said it."""
    created_at: UtcDatetime
    updated_at: UtcDatetime

    @classmethod
    def from_feedback(cls, feedback: Feedback, status: EpisodeStatus = "pending") -> Self:
        """Make the episode that a piece of feedback becomes; it is not yet stored."""
        now = datetime.now(UTC)
        judged_in = feedback.judgment.thread_id if feedback.judgment else None
        threads = dict.fromkeys(filter(None, (judged_in, feedback.thread_id)))
        same = {name: value for name, value in feedback if name not in ("id", "thread_id")}
        return cls(
            **same,
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
        """Names what the expert says here: the hash of example, author, value and rationale."""
        return digest([self.id, self.example_id, self.value, self.rationale])

    @property
    def verdicts(self) -> dict[str, Value]:
        """The values of the judgments that the expert answered, by judgment id."""
        own = {} if self.judgment is None else {self.judgment.id: self.judgment.value}
        return {**self.other_verdicts, **own}

    def says_the_same_as(self, other: "Episode") -> bool:
        """Return whether two episodes hold the same feedback, whenever it was stored."""
        return self.word == other.word


class Guideline(FrozenModel):
    """A general rule that a judge can check on a new case."""

    id: str
    """Names the guideline; stays when its text is revised."""
    text: str
    """The rule, in the expert's terms."""
    question: str | None = None
    """The rule as a yes/no question about one case, where yes means that the case meets it; None
    where there is none yet, empty where the rule can't be asked so."""
    episode_ids: list[str] = Field(default_factory=list)
    """The episodes it was distilled from; none where an expert wrote it."""
    origin: Literal["distilled", "expert"] = "distilled"
    """Who wrote it: a model from feedback, or an expert by hand."""
    author: str | None = None
    """The expert who wrote or last edited it by hand, if known."""
    status: GuidelineStatus = "standing"
    """Whether it is to be reworded, or was measured to be of no use."""
    worth: Worth | None = None
    """What it was measured at; None where it was not. Worked out when it is read, never stored."""
    position: int
    """Where it stands among the guidelines: microseconds since 1970 at its making, lowest first."""
    created_at: UtcDatetime
    updated_at: UtcDatetime


class RecalledExample(FrozenModel):
    """An example that memory holds, as similar to the one being judged."""

    example: Example
    episodes: list[Episode]  # every expert's word on it, oldest first
    similarity: float  # cosine, to the example asked about, from -1 to 1


Read = TypeVar("Read", Example, Feedback)

FeedbackLike = Feedback | Mapping[str, Any]
ExampleLike = Example | Mapping[str, Any]


def parse_feedback(feedback: FeedbackLike) -> Feedback:
    if isinstance(feedback, Mapping):
        # A table has cells without a value: what is not told is not there.
        given = {name: to_python_scalar(value) for name, value in feedback.items()}
        feedback = {
            name: value
            for name, value in given.items()
            if not (is_missing(value) or (name, value) == ("given_at", None))
        }
        number = feedback.get("id")
        if isinstance(number, int) or (isinstance(number, float) and number.is_integer()):
            feedback["id"] = str(int(number))  # 3.0 where a column has gaps
    fields = "`inputs`, `outputs`, and `value`, `rationale` or both"
    return _read(Feedback, feedback, f"feedback: give Feedback, or an object with {fields}")


def parse_example(example: ExampleLike) -> Example:
    wanted = "example: give an Example, or an object with `inputs` and `outputs`"
    return _read(Example, example, wanted)


def _read(model: type[Read], given: Any, wanted: str) -> Read:
    if not isinstance(given, model | Mapping):
        raise InvalidInputError(f"{wanted}, not a value of type {type(given).__name__}.")
    try:
        return model.model_validate(dict(given) if isinstance(given, Mapping) else given)
    except ValidationError as error:
        raise InvalidInputError(describe_validation_error(error)) from error


def is_missing(value: Any) -> bool:
    """Tell whether a value is how pandas and others write that there is none."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return is_nan or type(value).__name__ in ("NAType", "NaTType")


def to_python_scalar(value: Any) -> Any:
    """Turn a single number or truth value of numpy into Python's own."""
    is_numpy = type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0
    return value.item() if is_numpy else value
