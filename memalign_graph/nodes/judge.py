"""Judging: similar episodes retrieved, guidelines assembled, and the one judge of them all."""

from collections.abc import Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import Field, model_validator

from memalign_graph.alignment.drafts import KeepReplies
from memalign_graph.errors import EmbeddingError, InvalidInputError
from memalign_graph.evidence.confidence import (
    Decision,
    Measured,
    Said,
    in_both_orders,
    measure_confidence,
)
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import key_of
from memalign_graph.memory.index.vectors import Vector, encode_vector
from memalign_graph.memory.judgments import keep_judgment
from memalign_graph.memory.recall import (
    Recall,
    known_vector,
    recall,
    recall_besides,
    recall_without_episodes,
)
from memalign_graph.memory.view import MemoryView
from memalign_graph.models import ask, max_input_tokens
from memalign_graph.pairwise import settle_orders, swap_outputs
from memalign_graph.prompts.judge import (
    JudgePrompt,
    fit_guidelines,
    judge_prompt,
    read_answer,
    read_broken,
)
from memalign_graph.reading import read_example
from memalign_graph.runtime import DEFAULT_MAX_CONCURRENCY, Node, Parts, Run, State, Update
from memalign_graph.scales import Pairwise, Value
from memalign_graph.settings import CANT_CHOOSE, Judge, RunSettings, resolve_context
from memalign_graph.types import Example, FrozenModel, Guideline, Judgment, RecalledExample


class Retrieved(FrozenModel):
    """What memory gives for one example."""

    version: str
    """The memory's version."""

    recalled: list[RecalledExample] = Field(default_factory=list)
    """Similar examples, most similar first."""

    vector: str | None = None
    """The example's own embedding in base64, so that feedback on it embeds nothing again."""

    nearness: Mapping[str, float] = Field(default_factory=dict)
    """The similarity of episodes, by id, until it has told which guidelines bear on the example."""

    guidelines: list[Guideline] = Field(default_factory=list)
    """Those that are given for every case."""

    relevant: list[Guideline] = Field(default_factory=list)
    """Those that are given for this case besides, where not all fit."""

    warnings: list[str] = Field(default_factory=list)
    """What was done without, a sentence each."""

    @classmethod
    def of(cls, found: Recall) -> "Retrieved":
        """Take what a look into memory gave."""
        recalled = {
            episode.id: case.similarity for case in found.examples for episode in case.episodes
        }
        return cls(
            version=found.version,
            recalled=found.examples,
            vector=found.vector,
            nearness={**recalled, **found.nearness},
            warnings=[found.warning] if found.warning else [],
        )

    def with_guidelines(
        self, standing: Sequence[Guideline], parts: Parts, named: str | None = None
    ) -> "Retrieved":
        """Add the guidelines that fit into the judge's prompt."""
        fitted = fit_guidelines(
            standing if parts.judge.use_guidelines else [],
            self.nearness,
            max_guideline_tokens=parts.judge.max_guideline_tokens,
            max_input_tokens=max_input_tokens(parts.chat(named)),
        )
        more = {
            "nearness": {},
            "guidelines": fitted.always,
            "relevant": fitted.relevant,
            "warnings": [*self.warnings, *fitted.warnings],
        }
        return self.model_copy(update=more)

    def broken(self, judgment: Judgment) -> list[dict[str, Any]]:
        """Return the guidelines that the outputs break, by the judge's own account, as JSON."""
        known = {guideline.id: guideline for guideline in [*self.guidelines, *self.relevant]}
        return [known[key].to_json() for key in judgment.broken_guideline_ids]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values, without what goes without saying: it is checkpointed."""
        said_once = {"recalled": {"__all__": {"episodes": {"__all__": {"example"}}}}}
        return self.model_dump(mode="json", exclude_defaults=True, exclude=said_once)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Give an episode its example again, which `to_json` says once a case."""
        recalled = []
        for case in fields.get("recalled", []):
            if isinstance(case, dict):
                shared = {"example": Example.model_validate(case["example"])}
                episodes = [{**episode, **shared} for episode in case["episodes"]]
                recalled.append({**case, **shared, "episodes": episodes})
            else:
                recalled.append(case)
        return {**fields, "recalled": recalled}


@dataclass(frozen=True)
class _Verdict:
    prompt: JudgePrompt
    value: Value
    rationale: str
    broken: list[str]
    model: str
    warnings: list[str]
    measured: Measured = field(default_factory=Measured)


async def judge(
    io: IO,
    parts: Parts,
    access: MemoryAccess,
    example: Example,
    retrieved: Retrieved,
    *,
    model: str | None = None,
    thread_id: str | None = None,
    limit: int = DEFAULT_MAX_CONCURRENCY,
    besides: Container[str] = (),
) -> Judgment:
    """Judge an example with what memory gave; `besides` are vector keys of cases with no vote."""
    settings = parts.judge
    verdict = await _verdict(io, parts, example, retrieved, model, limit)
    measured = verdict.measured
    said = Said(verdict.value, measured.probabilities, measured.source)
    decision = Decision(said.verdict)
    if settings.measures:
        from memalign_graph.evidence.process import decide_case

        vector = known_vector(retrieved.vector)
        decision = await decide_case(
            io, access, said, settings.decide, vector=vector, besides=besides
        )
    judgment = Judgment(
        criterion=parts.criterion.name,
        example_id=example.id,
        value=decision.value,
        confidence=decision.confidence,
        confidence_source=decision.confidence_source,
        calibrated_on=decision.calibrated_on,
        probabilities=measured.probabilities,
        evidence=decision.evidence,
        rationale=verdict.rationale,
        guideline_ids=[guideline.id for guideline in verdict.prompt.guidelines],
        broken_guideline_ids=verdict.broken,
        episode_ids=[episode.id for episode in verdict.prompt.episodes],
        memory_version=retrieved.version,
        thread_id=thread_id,
        model=verdict.model,
        warnings=[*retrieved.warnings, *verdict.warnings],
    )
    if settings.keep_judgments is None:
        return judgment
    warning = await keep_judgment(
        io,
        access,
        judgment,
        example,
        vector=retrieved.vector,
        keep_for=settings.keep_judgments,
    )
    if warning is None:
        return judgment
    return judgment.model_copy(update={"warnings": [*judgment.warnings, warning]})


async def _verdict(
    io: IO, parts: Parts, example: Example, retrieved: Retrieved, model: str | None, limit: int
) -> _Verdict:
    scale = parts.criterion.scale
    if not (parts.judge.swap and isinstance(scale, Pairwise)):
        return await _ask(io, parts, example, retrieved, model, limit)
    orders = [
        _ask(io, parts, ordered, retrieved, model, limit)
        for ordered in (example, swap_outputs(example))
    ]
    straight, swapped = await io.gather(orders, min(len(orders), limit))
    value, rationale, warning = settle_orders(
        scale, (straight.value, straight.rationale), (swapped.value, swapped.rationale)
    )
    measured = in_both_orders(straight.measured, swapped.measured)
    warnings = [*straight.warnings, measured.warning, warning]
    return replace(
        straight,
        value=value,
        rationale=rationale,
        broken=straight.broken if warning is None else [],
        measured=measured,
        warnings=list(dict.fromkeys(sentence for sentence in warnings if sentence)),
    )


async def _ask(
    io: IO, parts: Parts, example: Example, retrieved: Retrieved, model: str | None, limit: int
) -> _Verdict:
    settings = parts.judge
    chat = parts.chat(model)
    cites = settings.cite_guidelines and bool(retrieved.guidelines or retrieved.relevant)
    structured = parts.clients.structured(chat, parts.schemas[cites])
    prompt = judge_prompt(
        parts.criterion,
        example,
        guidelines=retrieved.guidelines,
        relevant=retrieved.relevant,
        recalled=retrieved.recalled,
        max_input_tokens=max_input_tokens(chat),
    )

    def read(answer: dict[str, Any], _last: bool) -> tuple[Value, str, list[str]]:  # noqa: FBT001 - as `ask` calls it
        broken = read_broken(answer, prompt.guidelines) if cites else []
        return (*read_answer(answer, parts.criterion), broken)

    (value, rationale, broken), reply = await ask(
        io, structured, prompt.messages, read, purpose="judge"
    )
    answered = reply.model or structured.name
    verdict = _Verdict(prompt, value, rationale, broken, answered, prompt.warnings)
    if not settings.confidence:
        return verdict
    measured = await measure_confidence(
        io,
        chat,
        parts.criterion,
        prompt.messages,
        value,
        samples=settings.samples,
        limit=limit,
    )
    warnings = [*verdict.warnings, *([measured.warning] if measured.warning else [])]
    return replace(verdict, measured=measured, warnings=warnings)


async def retrieve(
    io: IO,
    parts: Parts,
    access: MemoryAccess,
    example: Example,
    settings: RunSettings,
    *,
    vector: Vector | EmbeddingError | None = None,
) -> Retrieved:
    """Look for similar examples, as the judge's options say; by a vector that is known, if any."""
    judge = parts.judge
    k = settings["k"] if judge.use_episodes else 0
    try:
        if isinstance(vector, EmbeddingError):
            raise vector
        found = await recall(
            io, access, example, k, vector=vector, embeds=judge.decide == "evidence"
        )
    except EmbeddingError as error:
        if judge.on_embedding_error == "raise":
            raise
        found = await recall_without_episodes(io, access, error)
    return Retrieved.of(found)


def retrieve_node(parts: Parts, built: Mapping[str, Any], *, stores_feedback: bool = False) -> Node:
    """Make the first node: it checks the example, and resolves the run's settings."""

    async def retrieve_episodes(io: IO, state: State, run: Run) -> Update:
        example = read_example(
            {name: state[name] for name in Example.model_fields if name in state}
        )
        if parts.judge.swap:
            swap_outputs(example)  # called for its error, before any model is
        settings = resolve_context(run.context, built)
        if stores_feedback and settings["review"] == "uncertain" and not parts.judge.measures:
            raise InvalidInputError(CANT_CHOOSE)
        access = parts.memory(run.store, settings)
        if stores_feedback and settings["review"] != "never":
            access.embedder.embeddings  # noqa: B018 - resolved here, so that it fails here
        found = await retrieve(io, parts, access, example, settings)
        while parts.judge.use_guidelines:
            # Known from here on, and of the version that was recalled from.
            version, _ = await access.standing_guidelines(io, found.version)
            if version == found.version:
                break
            vector = known_vector(found.vector)
            found = await retrieve(io, parts, access, example, settings, vector=vector)
        return {
            "judge_run": {"example": example.to_json(), "settings": settings},
            "judge_memory": found.to_json(),
        }

    return Node("retrieve_episodes", retrieve_episodes)


def assemble_node(parts: Parts) -> Node:
    """Make the node that reads the guidelines that stand, and chooses those that fit."""

    async def assemble_guidelines(io: IO, state: State, run: Run) -> Update:
        settings = own_channel(state, "judge_run")["settings"]
        found = own_channel(state, "judge_memory")
        if not parts.judge.use_guidelines:
            return {"judge_memory": found}
        access = parts.memory(run.store, settings)
        version, standing = await access.standing_guidelines(io, found["version"])
        # What was recalled goes on as it is: reading and writing it would cost a millisecond.
        known = {name: found[name] for name in ("nearness", "warnings") if name in found}
        fitted = Retrieved(version=version, **known).with_guidelines(
            standing, parts, settings["model"]
        )
        return {"judge_memory": {**found, "nearness": {}, **fitted.to_json()}}

    return Node("assemble_guidelines", assemble_guidelines)


def judge_node(parts: Parts, *, is_last: bool = False) -> Node:
    """Make the node that judges; where it is the last, what memory gave is not kept."""

    async def judge_example(io: IO, state: State, run: Run) -> Update:
        own = own_channel(state, "judge_run")
        retrieved = Retrieved.model_validate(own_channel(state, "judge_memory"))
        settings = own["settings"]
        judgment = await judge(
            io,
            parts,
            parts.memory(run.store, settings),
            Example.model_validate(own["example"]),
            retrieved,
            model=settings["model"],
            thread_id=run.thread_id,
            limit=run.max_concurrency,
        )
        # What an earlier judgment on the same thread may have left is not this one's.
        update: Update = {"judgment": judgment.to_json(), "feedback": None, "learned": None}
        if is_last:
            update["judge_memory"] = None
        if parts.judge.cite_guidelines:
            update["broken_guidelines"] = retrieved.broken(judgment)
        return update

    return Node("judge", judge_example)


def own_channel(state: State, name: str) -> dict[str, Any]:
    """Read a channel that a node before this one has written."""
    value: dict[str, Any] | None = state.get(name)
    if value is None:
        raise InvalidInputError(
            f"state: the channel {name!r} is not there: derive the graph's state from "
            "memalign_graph.state.JudgeState, or from ReviewState where experts are asked, and "
            "run `retrieve_episodes` and `assemble_guidelines` before the judge."
        )
    return value


def value_judge(judge: Judge) -> Judge:
    """Return a judge that says the same, without what changes no value."""
    weighs = judge.decide == "evidence"
    return judge.but(
        keep_judgments=None,
        confidence=judge.confidence and weighs,
        samples=judge.samples if weighs else 0,
    )


async def judge_again(
    io: IO,
    parts: Parts,
    access: MemoryAccess,
    example: Example,
    *,
    guidelines: Sequence[Guideline],
    besides: AbstractSet[str],
    settings: RunSettings,
    limit: int = 1,
) -> Judgment:
    """Judge an example that memory holds, with some guidelines, as if some episodes were not there.

    The same answer is not paid for twice until something is committed.
    """
    k = settings["k"] if parts.judge.use_episodes else 0
    found = Retrieved.of(recall_besides(access, example, k, besides))
    own = key_of(access, example)
    vector = access.view.index.get(own)
    if vector is not None:
        found = found.model_copy(update={"vector": encode_vector(vector)})
    return await judge(
        KeepReplies(io, access),
        parts,
        access,
        example,
        found.with_guidelines(guidelines, parts, settings["model"]),
        model=settings["model"],
        limit=limit,
        besides=_Voteless(access.view, own, besides),
    )


@dataclass(frozen=True)
class _Voteless(Container[str]):
    """The vector keys of the cases that have no vote."""

    view: MemoryView
    own: str
    besides: AbstractSet[str]

    def __contains__(self, key: object) -> bool:
        return key == self.own or set(self.view.episodes_at(str(key))) <= self.besides
