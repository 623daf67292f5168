"""`replay_cases`: seen cases judged again with what is to be committed."""

from langchain_core.language_models import BaseChatModel

from memalign_graph.alignment.replay import DEFAULT_REPLAY_CASES, Judge, replay
from memalign_graph.io import IO
from memalign_graph.judgment import Decide
from memalign_graph.models import DEFAULT_CHAT_MODEL, DEFAULT_EMBEDDINGS, EmbeddingsLike
from memalign_graph.nodes.base import Memories, Models, OperationNode, Run, State, Update
from memalign_graph.nodes.consolidate import to_commit
from memalign_graph.nodes.measured import measured_node, progress
from memalign_graph.prompts.judge import DEFAULT_MAX_GUIDELINE_TOKENS
from memalign_graph.state import Consolidated, Received, Settled
from memalign_graph.types import Criterion, Guideline


class ReplayView(Received, Consolidated, Settled):
    """What the node reads of the state."""


def create_replay_node(
    criterion: Criterion,
    *,
    model: BaseChatModel | str = DEFAULT_CHAT_MODEL,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    cases: int = DEFAULT_REPLAY_CASES,
    use_guidelines: bool = True,
    use_episodes: bool = True,
    max_guideline_tokens: int = DEFAULT_MAX_GUIDELINE_TOKENS,
    swap: bool = False,
    confidence: bool = False,
    samples: int = 0,
    decide: Decide = "verdict",
) -> OperationNode:
    """Create the node that keeps guidelines from breaking what worked.

    Args:
        criterion: The criterion.
        model: The judge's chat model, or a `"provider:name"` string.
        embeddings: What the memory embeds with.
        cases: How many seen cases are judged again at most.
        use_guidelines: Whether the judge is given guidelines.
        use_episodes: Whether the judge is shown similar cases.
        max_guideline_tokens: How much of its prompt guidelines may take.
        swap: Whether it judges two outputs in both orders.
        confidence: Whether it measures how sure it is; asked for here only where that is weighed.
        samples: How many answers that may take.
        decide: What its value comes from.

    Returns:
        The node; it reads `ReplayView` and writes `Replayed`.
    """
    memories = Memories(criterion, embeddings)
    judges = Models(model)

    async def replay_cases(io: IO, state: State, run: Run) -> Update:
        settings = state["judge_settings"]
        planned = to_commit(state)
        judge = Judge(
            chat=judges.get(settings["model"]),
            k=settings["k"] if use_episodes else 0,
            use_guidelines=use_guidelines,
            max_guideline_tokens=max_guideline_tokens,
            limit=run.max_concurrency,
            swap=swap,
            decide=decide,
            confidence=confidence,
            samples=samples,
        )
        kept, seen = await replay(
            io,
            memories.get(run, settings),
            judge,
            [*planned.rewordings, *planned.operations],
            before=[Guideline.model_validate(one) for one in state["guidelines_before"]],
            new_episodes=state["new_ids"],
            cases=cases,
            tell=lambda done, of: progress(run, "replay", done, of),
        )
        rewordings = {one.guideline_id for one in planned.rewordings}
        return {
            "guarded": {
                "operations": [
                    one.model_dump(mode="json")
                    for one in kept
                    if one.action == "merge" or one.guideline_id not in rewordings
                ],
                "rewordings": [
                    one.model_dump(mode="json")
                    for one in kept
                    if one.action != "merge" and one.guideline_id in rewordings
                ],
                "replay": seen.model_dump(mode="json"),
            }
        }

    return measured_node("replay_cases", replay_cases)
