"""`retrieve_episodes`: the examples in memory that are most like the one to be judged."""

from collections.abc import Mapping
from typing import Any, Literal

from memalign_graph.context import CANT_CHOOSE, DEFAULT_SETTINGS, resolve_context
from memalign_graph.errors import EmbeddingError, InvalidInputError
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.recall import Recall, recall, recall_without_episodes
from memalign_graph.models import DEFAULT_EMBEDDINGS, EmbeddingsLike
from memalign_graph.nodes.base import Memories, OperationNode, Run, State, Update, example_of
from memalign_graph.pairwise import swap_outputs
from memalign_graph.state import ExampleView
from memalign_graph.types import Criterion, Example

OnEmbeddingError = Literal["raise", "guidelines"]
"""What to do when an embedding call fails while judging.

- `raise`: the run fails.
- `guidelines`: judge by the guidelines alone; the judgment says so in its `warnings`.
"""

RetrieveView = ExampleView
"""What the node reads of the state."""


def create_retrieve_node(
    criterion: Criterion,
    *,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    settings: Mapping[str, Any] = DEFAULT_SETTINGS,
    use_episodes: bool = True,
    stores_feedback: bool = False,
    on_embedding_error: OnEmbeddingError = "raise",
    swap: bool = False,
    embeds: bool = False,
    chooses: bool = False,
) -> OperationNode:
    """Create the node that looks for similar examples; the first of its graph.

    It also checks the example and resolves the run's settings, and keeps both in the state: a
    context is not there any more after an interrupt.

    Args:
        criterion: The criterion.
        embeddings: LangChain embeddings, a function, or a `"provider:name"` string.
        settings: The graph's settings by the names of `MemAlignContext`'s fields; the run's
            context goes before them.
        use_episodes: False to find none, for comparison.
        stores_feedback: Whether the graph may come to embed the example also where there is
            nothing to find, so that missing embeddings show before a model is called.
        on_embedding_error: What to do when an embedding call fails.
        swap: Whether the outputs have to be two, to be judged in both orders.
        embeds: Whether the example's embedding is wanted also where no examples are shown, if
            memory holds any.
        chooses: Whether the graph can choose what to ask about, with `review="uncertain"`.

    Returns:
        The node; it reads `ExampleView` and writes `Retrieved`.
    """
    memories = Memories(criterion, embeddings)

    async def retrieve_episodes(io: IO, state: State, run: Run) -> Update:
        fresh = {name: state[name] for name in Example.model_fields if name in state}
        example = example_of(fresh)
        if swap:
            swap_outputs(example)  # called for its error, before any model is
        resolved = resolve_context(run.context, settings)
        if stores_feedback and resolved["review"] == "uncertain" and not chooses:
            raise InvalidInputError(CANT_CHOOSE)
        access = memories.get(run, resolved)
        if stores_feedback and resolved["review"] != "never":
            access.embedder.embeddings  # noqa: B018 - resolved here, so that it fails here
        found = await _look(
            io,
            access,
            example,
            resolved["k"] if use_episodes else 0,
            on_embedding_error,
            embeds=embeds,
        )
        return {
            "judge_example": example.to_json(),
            "judge_settings": resolved,
            "recalled": [one.to_json() for one in found.examples],
            "recall_version": found.version,
            "recall_vector": found.vector,
            "recall_nearness": dict(found.nearness),
            "recall_warnings": [found.warning] if found.warning else [],
        }

    return OperationNode("retrieve_episodes", retrieve_episodes)


async def _look(
    io: IO,
    access: MemoryAccess,
    example: Example,
    k: int,
    on_embedding_error: OnEmbeddingError,
    *,
    embeds: bool,
) -> Recall:
    try:
        return await recall(io, access, example, k, embeds=embeds)
    except EmbeddingError as error:
        if on_embedding_error == "raise":
            raise
        return await recall_without_episodes(io, access, error)
