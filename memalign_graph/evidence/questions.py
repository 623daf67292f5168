"""Questions for guidelines that have none yet, such as those written by hand."""

from collections.abc import Sequence
from typing import Any

from memalign_graph.errors import MemAlignError
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.checking import note_questions
from memalign_graph.models import BaseChatModel, ask, is_small, with_schema
from memalign_graph.prompts.checks import question_prompt, questions_schema, read_questions
from memalign_graph.prompts.distill_small import (
    WORDINGS,
    expert_questions_schema,
    read_wordings,
    wordings_prompt,
)
from memalign_graph.types import Criterion, Guideline

_RULES = 20
"""How many rules are shown at a time; to a small model, one."""

_TOGETHER = 8


async def fill_questions(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    criterion: Criterion,
    guidelines: Sequence[Guideline],
) -> str | None:
    """Note a question for each guideline that has none; returns a warning where that fails."""
    texts = list(dict.fromkeys(one.text for one in guidelines if one.question is None))
    size = 1 if is_small(chat) else _RULES

    async def attempt(rules: Sequence[str]) -> dict[str, str] | MemAlignError:
        try:
            return dict(zip(rules, await _ask(io, chat, criterion, rules), strict=True))
        except MemAlignError as error:
            return error

    asking = [attempt(texts[at : at + size]) for at in range(0, len(texts), size)]
    outcomes: list[dict[str, str] | MemAlignError] = await io.gather(asking, _TOGETHER)
    found = [outcome for outcome in outcomes if isinstance(outcome, dict)]
    questions = {text: question for answer in found for text, question in answer.items()}
    if questions:
        await note_questions(io, access, questions)
    failed = [outcome for outcome in outcomes if isinstance(outcome, MemAlignError)]
    if not failed:
        return None
    count = len(texts) - len(questions)
    return f"{count} guideline(s) could not be made questions, and are not checked: {failed[0]}"


async def _ask(
    io: IO, chat: BaseChatModel, criterion: Criterion, rules: Sequence[str]
) -> list[str]:
    def read(answer: dict[str, Any], last: bool) -> list[str]:  # noqa: FBT001 - as `ask` calls it
        if is_small(chat):
            return read_wordings(answer, criterion, rules[0], last=last)[:1] or [""]
        return read_questions(answer, len(rules))

    if is_small(chat):
        schema, messages = expert_questions_schema(WORDINGS), wordings_prompt(criterion, rules[0])
    else:
        schema, messages = questions_schema(len(rules)), question_prompt(criterion, rules)
    purpose = "put guidelines as questions"
    return (await ask(io, with_schema(chat, schema), messages, read, purpose=purpose))[0]
