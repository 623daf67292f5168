"""What a judge says of an example: the verdict, how sure it is, and what it rests on."""

from typing import Any, Literal
from uuid import uuid4

from pydantic import Field, field_validator

from memalign_graph.frozen import FrozenModel
from memalign_graph.identity import check_json
from memalign_graph.scales import Value

Decide = Literal["verdict", "evidence"]
"""What a judgment's value comes from.

- `verdict`: what the judge says.
- `evidence`: the judge's verdict and the experts' values of the most similar cases, weighed by how
  well each foretold the experts' values in memory.
"""

ConfidenceSource = Literal["logprobs", "samples", "evidence"]
"""What a confidence was measured by.

- `logprobs`: the log-probabilities of the permitted values.
- `samples`: how many of several answers agree.
- `evidence`: the model that weighs the evidence.
"""

ReviewReason = Literal[
    "too_little_feedback",
    "unsure",
    "no_similar_episode",
    "episodes_disagree",
    "sample",
    "no_budget",
]
"""Why an expert is asked about a judgment, or is not.

- `too_little_feedback`: there is too little to tell how far the judge can be trusted.
- `unsure`: its confidence is below the threshold, or unknown.
- `no_similar_episode`: memory holds nothing like the case.
- `episodes_disagree`: the experts' values of the most similar cases differ.
- `sample`: drawn at random, so that drift is seen.
- `no_budget`: it would be asked for the other reasons, but the budget is spent.
"""

Probabilities = dict[str, float]
"""A probability for each value of a finite scale, by the value as the scale renders it."""


class Neighbour(FrozenModel):
    """A similar case in memory, as evidence."""

    example_id: str
    """The example's id."""

    episode_ids: list[str]
    """The experts' episodes on it."""

    value: Value
    """What most of them say."""

    similarity: float
    """Cosine similarity to the case judged."""

    weight: float
    """Its share of the neighbours' vote, from 0 to 1."""


class Evidence(FrozenModel):
    """What a judgment's value was weighed from, and which part decided."""

    decided_by: Decide
    """Whether the value is the judge's own verdict or the evidence's estimate."""

    reason: str
    """Why, in a sentence."""

    verdict: Value
    """What the judge itself says."""

    estimate: Value | None = None
    """What the evidence says; None where there is too little to weigh."""

    probabilities: Probabilities | None = None
    """How likely the evidence holds each value of a finite scale."""

    vote: Probabilities | float | None = None
    """What the neighbours say: the share of each value, or their mean on a numeric scale."""

    neighbours: list[Neighbour] = Field(default_factory=list)
    """The similar cases that voted, most similar first."""

    weights: dict[str, float] = Field(default_factory=dict)
    """The coefficients of the model, by what they weigh: `judge`, `neighbours`, `intercept`."""

    cases: int = 0
    """How many cases in memory it was fitted to: those that the judge had judged, too."""

    verdict_error: float | None = None
    """How far the judge's verdicts on them are off: the share of wrong ones, or on a numeric scale
    the mean distance."""

    evidence_error: float | None = None
    """The same of the evidence, each case estimated as if it were not in memory."""


class ReviewChoice(FrozenModel):
    """Whether an expert is asked about a judgment, and why."""

    asks: bool
    """Whether one is asked."""

    reasons: list[ReviewReason] = Field(default_factory=list)
    """Why, or why not; empty where the judge is sure enough."""

    threshold: float | None = None
    """The confidence from which on no expert is asked; None while there is too little feedback, or
    where no confidence reaches the target."""


class Judgment(FrozenModel):
    """A judge's verdict, and the memory it was made with."""

    id: str = Field(default_factory=lambda: uuid4().hex)
    """Names this judgment."""

    criterion: str
    """The criterion's name."""

    example_id: str
    """The id of the example judged."""

    value: Value
    """The verdict, on the criterion's scale; with `decide="evidence"` what the evidence says, where
    `evidence.decided_by` tells so."""

    rationale: str
    """Why, in the judge's words, written before the value."""

    confidence: float | None = Field(default=None, ge=0, le=1)
    """How likely the value is the expert's, from 0 to 1; None where that was not measured."""

    confidence_source: ConfidenceSource | None = None
    """What the confidence was measured by."""

    calibrated_on: int | None = None
    """The number of experts' verdicts that the confidence is calibrated on; None if it is raw."""

    probabilities: Probabilities | None = None
    """How likely the judge itself holds each value of a finite scale, before calibration."""

    evidence: Evidence | None = None
    """What the value was weighed from; None with `decide="verdict"`."""

    review: ReviewChoice | None = None
    """Whether an expert was asked, and why, with `review="uncertain"`."""

    guideline_ids: list[str] = Field(default_factory=list)
    """The guidelines in the judge's prompt, in its order."""

    broken_guideline_ids: list[str] = Field(default_factory=list)
    """The guidelines that the outputs break, by the judge's own account, where a gate asked."""

    episode_ids: list[str] = Field(default_factory=list)
    """The episodes in the judge's prompt, most similar first."""

    memory_version: str
    """The version of the memory at the time."""

    thread_id: str | None = None
    """The LangGraph thread it was made in, if any."""

    model: str | None = None
    """The model that answered, as it names itself."""

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
