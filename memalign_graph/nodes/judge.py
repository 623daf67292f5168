"""`judge`: the verdict, made with the memory in its prompt."""

from typing import Any

from langchain_core.language_models import BaseChatModel

from memalign_graph.asking import ask
from memalign_graph.effects import Operation
from memalign_graph.models import DEFAULT_CHAT_MODEL, max_input_tokens
from memalign_graph.nodes.base import Models, OperationNode, Run, State, Update, example_of
from memalign_graph.prompts.judge import (
    DEFAULT_MAX_GUIDELINE_TOKENS,
    answer_schema,
    judge_prompt,
    read_answer,
)
from memalign_graph.state import Assembled, ExampleView, Retrieved
from memalign_graph.types import Criterion, Guideline, Judgment, RecalledExample


class JudgeView(ExampleView, Retrieved, Assembled, total=False):
    """What the node reads of the state."""


def create_judge_node(
    criterion: Criterion,
    *,
    model: BaseChatModel | str = DEFAULT_CHAT_MODEL,
    max_guideline_tokens: int = DEFAULT_MAX_GUIDELINE_TOKENS,
) -> OperationNode:
    """Create the node that judges.

    Args:
        criterion: The criterion.
        model: A chat model or a `"provider:name"` string; the run's settings go before it.
        max_guideline_tokens: How much of the prompt guidelines may take, in tokens.

    Returns:
        The node; it reads `JudgeView`, writes `judgment`, and clears the `feedback` and `learned`
        that an earlier judgment on the same thread may have left.
    """
    models = Models(model)
    schema = answer_schema(criterion)

    def judge(state: State, run: Run) -> Operation[Update]:
        example = example_of(state)
        model_used = models.bound(schema, state.get("judge_settings", {}).get("model"))
        prompt = judge_prompt(
            criterion,
            example,
            guidelines=[Guideline.model_validate(one) for one in state.get("guidelines", [])],
            recalled=[RecalledExample.model_validate(one) for one in state.get("recalled", [])],
            nearness=state.get("recall_nearness"),
            max_guideline_tokens=max_guideline_tokens,
            max_input_tokens=max_input_tokens(model_used.chat),
        )

        def read(answer: dict[str, Any], _last: bool) -> Any:  # noqa: FBT001 - as `ask` calls it
            return read_answer(answer, criterion)

        bound = model_used.structured
        (value, rationale), reply = yield from ask(bound, prompt.messages, read, purpose="judge")
        judgment = Judgment(
            criterion=criterion.name,
            example_id=example.id,
            value=value,
            rationale=rationale,
            guideline_ids=[one.id for one in prompt.guidelines],
            episode_ids=[one.id for one in prompt.episodes],
            memory_version=state.get("recall_version", ""),
            thread_id=run.thread_id,
            model=reply.model or bound.name,
            warnings=[*state.get("recall_warnings", []), *prompt.warnings],
        )
        return {"judgment": judgment.to_json(), "feedback": None, "learned": None}

    return OperationNode("judge", judge)
