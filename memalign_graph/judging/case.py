"""A case to be judged: an example, and what memory recalls for it."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field

from memalign_graph.errors import EmbeddingError, InvalidInputError
from memalign_graph.evidence.confidence import ConfidenceMeasurement
from memalign_graph.evidence.value_from_checks import AnchoredCheck
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.feedback import check_pair_order
from memalign_graph.memory.index import Vector
from memalign_graph.memory.recall import (
    RecallResult,
    load_examples,
    recall,
    recall_without_episodes,
)
from memalign_graph.memory.view import MemoryView
from memalign_graph.models import max_input_tokens
from memalign_graph.prompts.judge import fit_guidelines
from memalign_graph.runtime import NodeCall
from memalign_graph.scales import Value
from memalign_graph.settings import UNCERTAIN_NEEDS_CONFIDENCE
from memalign_graph.types import (
    Check,
    Example,
    FrozenModel,
    Guideline,
    RecalledExample,
    parse_example,
)

_GUIDELINES_NOT_SHOWN = (
    "{} guideline(s) were left out, since on the cases in memory they state the opposite of the "
    "experts' values."
)


class Retrieved(FrozenModel):
    """What memory recalls for one example."""

    version: str
    recalled: list[RecalledExample] = Field(default_factory=list)
    vector: str | None = None
    """The example's vector as of `MemoryAccess.dump_vector`, for feedback on it."""
    nearness: Mapping[str, float] = Field(default_factory=dict)
    """Similarities by episode id, until the relevant guidelines are chosen."""
    guidelines: list[Guideline] = Field(default_factory=list)
    relevant: list[Guideline] = Field(default_factory=list)
    """Further guidelines for this case, if not all fit."""
    warnings: list[str] = Field(default_factory=list)
    guideline_warnings: list[str] = Field(default_factory=list)
    """Logged once until memory changes, as they are the same for each case."""

    @classmethod
    def of(cls, recall: RecallResult, view: MemoryView) -> "Retrieved":
        return cls(**{**vars(recall), "recalled": load_examples(view, recall.recalled)})

    def with_guidelines(
        self, active_guidelines: Sequence[Guideline], call: NodeCall
    ) -> "Retrieved":
        """Add the guidelines that fit into the judge's prompt."""
        candidates = active_guidelines if call.judge.use_guidelines else []
        proven = [guideline for guideline in candidates if guideline.status != "unproven"]
        fitted = fit_guidelines(
            proven,
            self.nearness,
            max_guideline_tokens=call.judge.max_guideline_tokens,
            max_input_tokens=max_input_tokens(call.chat_model),
        )
        unproven = len(candidates) - len(proven)
        warnings = [_GUIDELINES_NOT_SHOWN.format(unproven)] if unproven else []
        warnings += fitted.warnings
        logged = call.access.view.derive("logged warnings", set[str])
        call.access.log_warnings(text for text in warnings if text not in logged)
        logged.update(warnings)
        update = {"guidelines": fitted.always, "relevant": fitted.relevant}
        return self.model_copy(update={"nearness": {}, **update, "guideline_warnings": warnings})

    @property
    def all_guidelines(self) -> list[Guideline]:
        return [*self.guidelines, *self.relevant]

    def without_guidelines(self, ids: Container[str]) -> Self:
        """Return a copy without these guidelines."""
        always = [guideline for guideline in self.guidelines if guideline.id not in ids]
        relevant = [guideline for guideline in self.relevant if guideline.id not in ids]
        return self.model_copy(update={"guidelines": always, "relevant": relevant})

    def guidelines_by_ids(self, ids: Iterable[str]) -> list[Guideline]:
        by_id = {guideline.id: guideline for guideline in self.all_guidelines}
        return [by_id[key] for key in ids if key in by_id]

    def to_json(self) -> dict[str, Any]:
        """Return JSON with ids in the place of episodes and guidelines.

        So no stream shows other users' cases.
        """
        return {
            **self.model_dump(mode="json", exclude={"recalled", "guidelines", "relevant"}),
            "recalled": [
                {"episodes": [item.id for item in case.episodes], "similarity": case.similarity}
                for case in self.recalled
            ],
            "guidelines": [guideline.id for guideline in self.guidelines],
            "relevant": [guideline.id for guideline in self.relevant],
        }

    @classmethod
    async def load(cls, io: IO, access: MemoryAccess, fields: Mapping[str, Any]) -> "Retrieved":
        """Load the episodes and guidelines that the ids name, except those removed since."""
        fields = {"recalled": [], "guidelines": [], "relevant": [], **fields}
        by_id: dict[str, Guideline] = {}
        if fields["recalled"] or fields["guidelines"] or fields["relevant"]:
            await access.refresh_if_old(io)  # the run may have been paused
            active = await access.guidelines_at(io, fields["version"])
            by_id = {guideline.id: guideline for guideline in active.guidelines}
        for name in ("guidelines", "relevant"):
            fields[name] = [by_id[key] for key in map(_id_of, fields[name]) if key in by_id]
        fields["recalled"] = load_examples(
            access.view,
            [
                {"episodes": [*map(_id_of, case["episodes"])], "similarity": case["similarity"]}
                for case in fields["recalled"]
            ],
        )
        fields.pop("wordings", None)
        return cls.model_validate(fields)


def _id_of(saved: Any) -> Any:
    """Return a saved id; a checkpoint of an earlier release has whole episodes and guidelines."""
    return saved["id"] if isinstance(saved, dict) else saved


@dataclass(frozen=True)
class Case:
    """An example to be judged, with what memory recalls for it."""

    call: NodeCall
    example: Example
    retrieved: Retrieved
    excluded_ids: Container[str] = ()
    """Ids of examples in memory that have no influence."""
    checks: Sequence[AnchoredCheck] = ()
    """The answered checks that a small model's value is based on."""


@dataclass(frozen=True)
class Answer:
    """A judge's answer on a case, before the evidence is considered."""

    value: Value
    rationale: str
    model: str | None
    confidence: ConfidenceMeasurement
    guideline_ids: list[str]
    warnings: list[str]
    broken_guideline_ids: Sequence[str] = ()
    episode_ids: Sequence[str] = ()
    checks: Sequence[Check] = ()


def swap_outputs(example: Example) -> Example:
    """Return the example with its two outputs swapped.

    Raises:
        InvalidInputError: There are not two outputs.
    """
    match example.outputs:
        case [first, second]:
            return Example(**{**example.to_json(), "outputs": [second, first]})
        case dict() as named if len(named) == 2:  # noqa: PLR2004 - a pair
            swapped = dict(zip(named, reversed(named.values()), strict=True))
            return Example(**{**example.to_json(), "outputs": swapped})
    unfit = InvalidInputError(
        "outputs: to be judged in both orders (`swap=True`) they have to be two: give a list of "
        "the two outputs, or an object with two fields, such as {'A': ..., 'B': ...}."
    )
    unfit.is_refusal = True
    raise unfit


def prepare_example(call: NodeCall) -> Example:
    """Parse the example, and check what would otherwise fail only after a model call."""
    resources, state = call.resources, call.state
    example = parse_example({name: state[name] for name in Example.model_fields & state.keys()})
    check_pair_order(example, resources.criterion)
    if call.judge.swap:
        swap_outputs(example)
    review = "never" if resources.review is None else call.settings["review"]
    if review == "uncertain" and not call.judge.measures:
        raise InvalidInputError(UNCERTAIN_NEEDS_CONFIDENCE)
    if review != "never":
        call.access.embedder.embeddings  # noqa: B018 - a wrong name fails here
    return example


async def recall_similar(
    call: NodeCall, example: Example, vector: Vector | EmbeddingError | None = None
) -> RecallResult:
    """Find similar examples, as the judge's options say; `vector` is the example's, if known."""
    io, access, judge = call.io, call.access, call.judge
    try:
        if isinstance(vector, EmbeddingError):
            raise vector
        return await recall(io, access, example, call.k, vector=vector, embed_always=judge.weighs)
    except EmbeddingError as error:
        if judge.on_embedding_error == "raise":
            raise
        return await recall_without_episodes(io, access, error)
