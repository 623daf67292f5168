"""A small model's guideline from one comment: the wording of its check that works on the case.

The expert's value says how the case itself has to be answered, so that a question about something
else, or one that is answered the same for every case, is found out before it judges anything. The
other side is the same case as the expert wants it, rewritten by the model, and cases in memory that
the experts accepted.
"""

import logging
from collections.abc import Iterable, Sequence
from statistics import fmean

from memalign_graph.agreement import value_or_none
from memalign_graph.errors import ChatModelError, ModelAnswerError
from memalign_graph.evidence.check_value import log_odds_of, share_of_scale
from memalign_graph.evidence.checks import YES_THRESHOLD, ask_questions
from memalign_graph.identity import asked_id
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.guidelines import GuidelineOperation
from memalign_graph.memory.learning import record_check_answers
from memalign_graph.models import BaseChatModel, ask_with_retry, model_name_of, with_schema
from memalign_graph.prompts import distill_small as prompts
from memalign_graph.prompts.checks import turn_around
from memalign_graph.prompts.distill import DistillPrompt, Proposal
from memalign_graph.types import Episode, Example

logger = logging.getLogger(__name__)

_ASKED_SOURCES = 3  # of a question that several comments led to
_ACCEPTED_CASES = 2  # in memory that every wording is asked of
_MIN_CONTRAST = 0.15
"""Log-odds by which a wording has to tell accepted outputs from the case, to count as doing so."""


async def distill_comments(
    io: IO, access: MemoryAccess, chat: BaseChatModel, episodes: Sequence[Episode]
) -> tuple[DistillPrompt, Proposal]:
    """Make a guideline of each comment: the comment as its text, and the check that works best."""
    operations: list[GuidelineOperation] = []
    refused: list[str] = []
    for episode in episodes:
        proposal = await _distill_comment(io, access, chat, episode)
        operations += proposal.operations
        refused += proposal.refused
    return prompts.comments_prompt(access.criterion, episodes), Proposal(operations, refused)


async def _distill_comment(
    io: IO, access: MemoryAccess, chat: BaseChatModel, episode: Episode
) -> Proposal:
    criterion, comment = access.criterion, episode.rationale or ""
    wordings, _ = await ask_with_retry(
        io,
        with_schema(chat, prompts.expert_questions_schema(prompts.WORDINGS)),
        prompts.wordings_prompt(criterion, comment),
        lambda answer, last: prompts.read_wordings(answer, criterion, comment, last=last),
        purpose="put a comment as a question",
    )
    if quoting := prompts.quoting_question(comment):
        wordings.append(quoting)
    level = share_of_scale(value_or_none(episode.value, criterion.scale), criterion.scale)
    is_accepted = level == 1
    chosen = await _choose(io, access, chat, episode, wordings, is_accepted=is_accepted)
    text = prompts.guideline_text(comment)
    if chosen is None:
        answer = "yes" if is_accepted else "no"
        why = f"no question made of it is answered {answer} for the case that it comes from"
        return Proposal([], [prompts.not_kept(text, why)])
    operation = GuidelineOperation(
        action="add", text=text, question=chosen, episode_ids=[episode.id]
    )
    return Proposal([operation], [])


async def drop_refuted(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    proposal: Proposal,
    episodes: Iterable[Episode],
) -> Proposal:
    """Drop questions that the cases they come from answer otherwise than the experts' values."""
    scale = access.criterion.scale
    sources = {episode.id: episode for episode in episodes}
    questions: dict[str, list[str]] = {}
    for operation in proposal.operations:
        for key in operation.episode_ids[:_ASKED_SOURCES] if operation.question else ():
            questions.setdefault(key, []).append(operation.question or "")
    answers: dict[str, dict[str, float]] = {}
    for key, wanted in questions.items():
        found = await _answers(io, chat, sources[key].example, list(dict.fromkeys(wanted)))
        if found is None:
            return proposal
        for question, answer in found.items():
            answers.setdefault(question, {})[key] = answer
    kept, refused, recorded = [], list(proposal.refused), {}
    for operation in proposal.operations:
        by_source = answers.get(operation.question or "", {})
        levels = {
            key: level
            for key in by_source
            if (level := share_of_scale(value_or_none(sources[key].value, scale), scale))
            is not None
        }
        low = [by_source[key] for key in levels if levels[key] < YES_THRESHOLD]
        high = [by_source[key] for key in levels if levels[key] == 1]
        if low and fmean(low) >= YES_THRESHOLD and not (high and fmean(high) > fmean(low)):
            why = "it is answered yes for cases that the experts rejected"
            refused.append(prompts.not_kept(operation.text or "", why))
            continue
        kept.append(operation)
        recorded[asked_id(operation.question or "", model_name_of(chat))] = {
            sources[key].example_id: answer for key, answer in by_source.items()
        }
    await record_check_answers(io, access, recorded)
    return Proposal(kept, refused)


async def _choose(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    episode: Episode,
    wordings: Sequence[str],
    *,
    is_accepted: bool,
) -> str | None:
    """Return the wording that tells the case from accepted ones; None where none does."""
    answers = await _answers(io, chat, episode.example, wordings)
    if answers is None:
        return wordings[0] if wordings else None
    others = [] if is_accepted else await _accepted_examples(io, access, chat, episode)
    compared = [await _answers(io, chat, example, wordings) or {} for example in others]

    def contrast(wording: str) -> float:
        """Return how much likelier accepted outputs meet it; small differences are noise."""
        odds = [log_odds_of(found[wording]) for found in compared if wording in found]
        difference = fmean(odds) - log_odds_of(answers[wording]) if odds else 0.0
        return difference if abs(difference) >= _MIN_CONTRAST else 0.0

    def works(wording: str) -> bool:
        is_as_valued = (answers[wording] >= YES_THRESHOLD) == is_accepted
        return contrast(wording) > 0 or (contrast(wording) == 0 and is_as_valued)

    known = [wording for wording in wordings if wording in answers]
    if working := [wording for wording in known if works(wording)]:
        chosen = max(working, key=contrast)
        answer = answers[chosen]
    elif about_fault := [
        wording for wording in known if answers[wording] >= YES_THRESHOLD and contrast(wording) < 0
    ]:
        asked = min(about_fault, key=contrast)
        chosen, answer = turn_around(asked), 1 - answers[asked]
    else:
        return None
    key = asked_id(chosen, model_name_of(chat))
    await record_check_answers(io, access, {key: {episode.example_id: answer}})
    return chosen


async def _answers(
    io: IO, chat: BaseChatModel, example: Example, wordings: Sequence[str]
) -> dict[str, float] | None:
    """Return the probability of yes by wording; None for a model without log-probabilities."""
    answers = await ask_questions(io, chat, example, wordings, limit=1) if wordings else None
    if answers is None:
        return None
    pairs = zip(wordings, answers, strict=True)
    return {wording: float(answer) for wording, answer in pairs if answer is not None}


async def _accepted_examples(
    io: IO, access: MemoryAccess, chat: BaseChatModel, episode: Episode
) -> list[Example]:
    """Return the case as the expert wants it, and the newest cases that experts accepted."""
    scale = access.criterion.scale
    rows = [
        row
        for row in (await access.refresh(io)).newest()
        if share_of_scale(value_or_none(row.value, scale), scale) == 1
        and row.example_id != episode.example_id
    ]
    ids = [row.id for row in rows[:_ACCEPTED_CASES]]
    examples = [known.example for known in (await access.episodes(io, ids)).values()]
    rewritten = await _rewritten(io, chat, episode)
    return examples if rewritten is None else [rewritten, *examples]


async def _rewritten(io: IO, chat: BaseChatModel, episode: Episode) -> Example | None:
    """Have the model write the outputs as the expert wants them; None where it can't."""
    messages = prompts.rewrite_prompt(episode)
    if messages is None:
        return None
    try:
        outputs, _ = await ask_with_retry(
            io,
            with_schema(chat, prompts.rewrite_schema(episode)),
            messages,
            lambda answer, _last: str(answer["outputs"]),
            purpose="write outputs as the expert wants them",
        )
    except (ChatModelError, ModelAnswerError, KeyError) as error:
        logger.warning("A comment's questions are not tried on rewritten outputs: %s", error)
        return None
    example = episode.example
    if outputs.split() == str(example.outputs).split():
        return None
    return example.model_copy(update={"outputs": outputs})
