"""`question_feedback`: whether an expert's words make a rule; `clarify_feedback`: asking back.

The model is called in the first, which ends before the interrupt, and so never runs again when the
answer comes.
"""

import logging
from typing import Any

from langchain_core.language_models import BaseChatModel
from langgraph.types import interrupt

from memalign_graph.clarifying import (
    clarified,
    clarify_payload,
    clarify_reply_schema,
    said_before,
)
from memalign_graph.errors import MemAlignError
from memalign_graph.io import IO
from memalign_graph.models import (
    DEFAULT_CHAT_MODEL,
    DEFAULT_EMBEDDINGS,
    EmbeddingsLike,
    ask,
    max_input_tokens,
)
from memalign_graph.nodes.base import Memories, Models, OperationNode, Run, State, Update
from memalign_graph.prompts.clarify import (
    Question,
    clarify_prompt,
    clarify_schema,
    read_question,
)
from memalign_graph.state import Retrieved, ReviewOutput
from memalign_graph.types import Criterion, Feedback, Guideline

logger = logging.getLogger(__name__)


class QuestionView(Retrieved, ReviewOutput):
    """What `question_feedback` reads of the state."""


class ClarifyView(ReviewOutput):
    """What `clarify_feedback` reads of the state: plain, to fit channels of another kind."""

    clarification: dict[str, Any]
    """What is to be asked: `question` and `example`."""


def create_question_node(
    criterion: Criterion,
    *,
    model: BaseChatModel | str = DEFAULT_CHAT_MODEL,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    use_context_model: bool = True,
) -> OperationNode:
    """Create the node that finds out whether an expert's words are too vague to make a rule.

    One call of the model. Where it fails or gives nothing that can be used, nobody is asked, and
    `learning_warnings` says so: the words go on as they are. Nor is an expert asked who says no
    words, or says again what memory has learned from.

    Args:
        criterion: The criterion.
        model: The chat model that distils, or a `"provider:name"` string.
        embeddings: What the memory embeds with; nothing is embedded here.
        use_context_model: Whether the model that a run's context names goes before this one.

    Returns:
        The node; it reads `QuestionView` and writes `Questioned`; and `feedback`, where the same
        words were made clear before.
    """
    memories = Memories(criterion, embeddings)
    models = Models(model)
    schema = clarify_schema()

    async def ask_model(
        io: IO, feedback: Feedback, guidelines: list[Guideline], override: str | None
    ) -> Question | None:
        bound = models.bound(schema, override)
        prompt = clarify_prompt(
            criterion,
            feedback,
            guidelines=guidelines,
            max_input_tokens=max_input_tokens(bound.chat),
        )

        def read(answer: dict[str, Any], last: bool) -> Question | None:  # noqa: FBT001 - as `ask` calls it
            return read_question(answer, prompt, last=last)

        purpose = "see whether the expert's words make a rule"
        question, _ = await ask(io, bound.structured, prompt.messages, read, purpose=purpose)
        return question

    async def question_feedback(io: IO, state: State, run: Run) -> Update:
        feedback = Feedback.model_validate(state["feedback"])
        nothing: Update = {"clarification": None, "learning_warnings": []}
        if feedback.rationale is None:
            return nothing
        settings = state["judge_settings"]
        access = memories.get(run, settings)
        key = feedback.episode_id
        known = said_before(feedback, (await access.episodes(io, [key])).get(key))
        if known is not None:
            return {**nothing, "feedback": known.to_json()}
        guidelines = await access.all_guidelines(io)
        override = settings["model"] if use_context_model else None
        try:
            question = await ask_model(io, feedback, guidelines, override)
        except MemAlignError as error:
            warning = f"The expert was not asked back, since no question could be made: {error}"
            logger.warning("%s", warning)
            return {**nothing, "learning_warnings": [warning]}
        if question is None:
            return nothing
        asked = {"question": question.question, "example": question.example, "episode_id": key}
        return {**nothing, "clarification": asked}

    return OperationNode("question_feedback", question_feedback)


def create_clarify_node(criterion: Criterion) -> OperationNode:
    """Create the node that asks the expert what vague words mean, and waits for the answer.

    Nothing is done before the interrupt.

    Args:
        criterion: The criterion.

    Returns:
        The node; it reads `ClarifyView` and writes `feedback`, with the answer joined to it.
    """

    async def clarify_feedback(_io: IO, state: State, _run: Run) -> Update:
        feedback = Feedback.model_validate(state["feedback"])
        asked = state["clarification"]
        question = Question(asked["question"], asked["example"])
        reply: Any = interrupt(
            clarify_payload(criterion, feedback, question),
            response_schema=clarify_reply_schema(criterion, feedback),
        )
        answered = clarified(feedback, question, reply.root)
        return {"feedback": answered.to_json(), "clarification": None}

    return OperationNode("clarify_feedback", clarify_feedback)
