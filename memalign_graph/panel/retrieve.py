"""What a panel's memories have on an example, which is embedded once for all of them."""

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from memalign_graph.context import resolve_context
from memalign_graph.errors import EmbeddingError, InvalidInputError, MemAlignError
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.index.vectors import Vector, encode_vector
from memalign_graph.memory.recall import embed_once, recall, recall_without_episodes
from memalign_graph.models import EmbeddingsLike
from memalign_graph.nodes.base import Memories, OperationNode, Run, State, Update, example_of
from memalign_graph.nodes.retrieve import OnEmbeddingError
from memalign_graph.pairwise import swap_outputs
from memalign_graph.types import Criterion, Example

T = TypeVar("T")

Criteria = Mapping[str, Criterion]
"""A panel's criteria by name."""


@dataclass(frozen=True)
class Looking:
    """How a panel looks into its memories."""

    settings: Mapping[str, Any]
    """The graph's settings by the names of `MemAlignContext`'s fields."""

    use_guidelines: bool
    """Whether the judges are given guidelines."""

    use_episodes: bool
    """Whether the judges are shown similar cases."""

    on_embedding_error: OnEmbeddingError
    """What to do when an embedding call fails."""

    swap: bool
    """Whether the outputs have to be two, to be judged in both orders."""

    embeds: bool
    """Whether the example's embedding is wanted also where no similar cases are shown."""


CANT_CHOOSE = (
    'review: "uncertain" is not for panels, which do not measure how sure their judges are: give '
    '"always" or "never", or build the panel with a function of the judgments by criterion.'
)
"""What is wrong with `uncertain` here."""


def create_panel_retrieve_node(
    criteria: Criteria, embeddings: EmbeddingsLike, looking: Looking
) -> OperationNode:
    """Create the node that looks into every memory; the first of its graph."""
    memories = {name: Memories(one, embeddings) for name, one in criteria.items()}

    async def retrieve_episodes(io: IO, state: State, run: Run) -> Update:
        example = example_of({name: state[name] for name in Example.model_fields if name in state})
        if looking.swap:
            swap_outputs(example)  # called for its error, before any model is
        settings = resolve_context(run.context, looking.settings)
        if settings["review"] == "uncertain":
            raise InvalidInputError(CANT_CHOOSE)
        accesses = {name: one.get(run, settings) for name, one in memories.items()}
        if settings["review"] != "never":
            next(iter(accesses.values())).embedder.embeddings  # noqa: B018 - so that it fails here
        look = _Lookup(
            example=example,
            k=settings["k"] if looking.use_episodes else 0,
            use_guidelines=looking.use_guidelines,
            raises=looking.on_embedding_error == "raise",
            embeds=looking.embeds,
        )
        found = await look.into(io, accesses, run.max_concurrency)
        return {
            "judge_example": example.to_json(),
            "judge_settings": settings,
            "memories": found,
            # What an earlier run on the same thread left.
            **dict.fromkeys(("judgments", "errors", "kinds", "aggregate", "feedback", "learned")),
        }

    return OperationNode("retrieve_episodes", retrieve_episodes)


@dataclass(frozen=True)
class _Lookup:
    """One example looked up in several memories."""

    example: Example
    k: int
    use_guidelines: bool
    raises: bool
    embeds: bool

    async def into(
        self, io: IO, accesses: Mapping[str, MemoryAccess], limit: int
    ) -> dict[str, Any]:
        """Look into them all; a memory that can't be read has an `error` instead."""
        refreshed = await io.gather([attempt(one.refresh(io)) for one in accesses.values()], limit)
        errors = {
            name: str(one)
            for name, one in zip(accesses, refreshed, strict=True)
            if isinstance(one, MemAlignError)
        }
        whole = {name: one for name, one in accesses.items() if name not in errors}
        failure: EmbeddingError | None = None
        vector: Vector | None = None
        if self.k or self.embeds:
            try:
                vector = await embed_once(io, list(whole.values()), self.example)
            except EmbeddingError as error:
                if self.raises:
                    raise
                failure = error
        looks = [attempt(self._one(io, one, vector, failure)) for one in whole.values()]
        found = await io.gather(looks, limit)
        parts: dict[str, Any] = {name: {"error": error} for name, error in errors.items()}
        for name, one in zip(whole, found, strict=True):
            parts[name] = {"error": str(one)} if isinstance(one, MemAlignError) else one
        return {name: parts[name] for name in accesses}

    async def _one(
        self, io: IO, access: MemoryAccess, vector: Vector | None, failure: EmbeddingError | None
    ) -> Update:
        try:
            if failure is not None:
                raise failure
            found = await recall(
                io, access, self.example, self.k, vector=vector, embeds=self.embeds
            )
        except EmbeddingError as error:
            if self.raises:
                raise
            found = await recall_without_episodes(io, access, error)
        standing = (await access.all_guidelines(io)) if self.use_guidelines else []
        known = found.vector or (None if vector is None else encode_vector(vector))
        return {
            "recalled": [one.to_json() for one in found.examples],
            "recall_version": found.version,
            "recall_vector": known,
            "recall_nearness": dict(found.nearness),
            "recall_warnings": [found.warning] if found.warning else [],
            "guidelines": [one.to_json() for one in standing],
        }


def create_embed_node(criteria: Criteria, embeddings: EmbeddingsLike) -> OperationNode:
    """Create the node that embeds the example for what is to be learned, if it was not before."""
    memories = {name: Memories(one, embeddings) for name, one in criteria.items()}

    async def embed_example(io: IO, state: State, run: Run) -> Update:
        found = state["memories"]
        known = [one["recall_vector"] for one in found.values() if one.get("recall_vector")]
        if not known:
            accesses = [memories[name].get(run, state["judge_settings"]) for name in found]
            vector = await embed_once(io, accesses, example_of(state), always=True)
            known = [] if vector is None else [encode_vector(vector)]
        blank = {"recalled": [], "recall_version": "", "recall_warnings": [], "guidelines": []}
        return {
            "memories": {
                name: {**blank, **one, "recall_vector": known[0]} for name, one in found.items()
            }
        }

    return OperationNode("embed_example", embed_example)


async def attempt(operation: Coroutine[Any, Any, T]) -> T | MemAlignError:
    """Carry out one of several operations; what fails in it is its result, and harms no other."""
    try:
        return await operation
    except (InvalidInputError, EmbeddingError):
        raise
    except MemAlignError as error:
        return error
