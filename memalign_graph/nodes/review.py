"""Asking the expert: whether to, the question itself, asking back, and a word that comes later."""

import logging
from collections.abc import Mapping
from typing import Any

from memalign_graph.errors import InvalidInputError, MemAlignError
from memalign_graph.interrupts import clarify_form, read_review, review_form
from memalign_graph.io import IO
from memalign_graph.memory.judgments import find_judgment
from memalign_graph.memory.recall import known_vector
from memalign_graph.memory.reviews import log_review, now
from memalign_graph.models import ask, max_input_tokens
from memalign_graph.nodes.judge import Retrieved, own_channel
from memalign_graph.prompts.clarify import (
    Question,
    clarified,
    clarify_prompt,
    clarify_schema,
    read_question,
    said_before,
)
from memalign_graph.runtime import Parts, Run, State, Update, makes_node
from memalign_graph.settings import Uncertain, resolve_context
from memalign_graph.types import Example, Feedback, Judgment

logger = logging.getLogger(__name__)

_QUESTION = clarify_schema()


@makes_node("decide_review")
async def decide_node(io: IO, state: State, run: Run, parts: Parts, uncertain: Uncertain) -> Update:
    """Decide whether an expert is asked about a judgment, and log it."""
    from memalign_graph.evidence.asking import choose_review

    judgment = Judgment.model_validate(state["judgment"])
    settings = own_channel(state, "judge_run")["settings"]
    access = parts.memory(run.store, settings)
    judge, at = parts.judge, now()
    choice = await choose_review(
        io,
        access,
        judgment,
        uncertain=uncertain,
        decide=judge.decide,
        vector=known_vector(own_channel(state, "judge_memory").get("vector")),
        looked=judge.decide == "evidence" or (judge.use_episodes and settings["k"] > 0),
        at=at,
    )
    await log_review(io, access, judgment, choice, at)
    return {"judgment": judgment.model_copy(update={"review": choice}).to_json()}


@makes_node("collect_feedback")
async def collect_node(_io: IO, state: State, run: Run, parts: Parts) -> Update:
    """Ask the expert about the judgment, and wait: when the reply comes this runs from its top."""
    run.warn_without_checkpointer("review")
    example = Example.model_validate(own_channel(state, "judge_run")["example"])
    memory = Retrieved.model_validate(own_channel(state, "judge_memory"))
    judgment = Judgment.model_validate(state["judgment"])
    guidelines = [*memory.guidelines, *memory.relevant]
    episodes = [episode for similar in memory.recalled for episode in similar.episodes]
    said = review_form(
        parts.criterion,
        example,
        judgment,
        guidelines=[rule for rule in guidelines if rule.id in judgment.guideline_ids],
        episodes=[episode for episode in episodes if episode.id in judgment.episode_ids],
    ).ask()
    return {"feedback": _feedback(said, example, judgment, run), "judge_lesson": {}}


@makes_node("question_feedback")
async def question_node(io: IO, state: State, run: Run, parts: Parts) -> Update:
    """Find out whether an expert's words make a rule; where that fails, the lesson says so."""
    feedback = Feedback.model_validate(state["feedback"])
    settings = own_channel(state, "judge_run")["settings"]
    access = parts.memory(run.store, settings)
    key = feedback.episode_id
    known = said_before(feedback, (await access.episodes(io, [key])).get(key))
    if known is not None:
        return {"feedback": known.to_json(), "judge_lesson": {}}
    guidelines = await access.guidelines(io)
    try:
        chat = parts.distiller(settings["model"])
        window = max_input_tokens(chat)
        prompt = clarify_prompt(
            parts.criterion, feedback, guidelines=guidelines, max_input_tokens=window
        )
        question, _ = await ask(
            io,
            parts.clients.structured(chat, _QUESTION),
            prompt.messages,
            lambda answer, last: read_question(answer, prompt, last=last),
            purpose="see whether the expert's words make a rule",
        )
    except MemAlignError as error:
        warning = f"The expert was not asked back, since no question could be made: {error}"
        logger.warning("%s", warning)
        return {"judge_lesson": {"warnings": [warning]}}
    if question is None:
        return {"judge_lesson": {}}
    # The id tells a purge that this thread carries the expert's words.
    asked = {"question": question.question, "example": question.example, "episode_id": key}
    return {"judge_lesson": {"clarification": asked}}


@makes_node("clarify_feedback")
async def clarify_node(_io: IO, state: State, _run: Run, parts: Parts) -> Update:
    """Ask the expert what vague words mean, and wait for the answer."""
    feedback = Feedback.model_validate(state["feedback"])
    asked = own_channel(state, "judge_lesson")["clarification"]
    question = Question(asked["question"], asked["example"])
    answer = clarify_form(parts.criterion, feedback, question).ask()
    return {"feedback": clarified(feedback, question, answer).to_json(), "judge_lesson": {}}


@makes_node("find_judgment")
async def find_node(
    io: IO, state: State, run: Run, parts: Parts, built: Mapping[str, Any]
) -> Update:
    """Find the judgment which an expert's later word is on."""
    settings = resolve_context(run.context, built)
    access = parts.memory(run.store, settings)
    kept = await find_judgment(io, access, state.get("judgment_id", ""))
    try:
        said = read_review(state.get("reply"), parts.criterion, kept.judgment)
    except ValueError as error:
        raise InvalidInputError(f"reply: {error}") from error
    vector = kept.vector if kept.embedder == access.embedder.id else None
    memory = Retrieved(version=kept.judgment.memory_version, vector=vector)
    return {
        "judge_run": {"example": kept.example.to_json(), "settings": settings},
        "judge_memory": memory.to_json(),
        "judge_lesson": {},
        "judgment": kept.judgment.to_json(),
        "feedback": _feedback(said, kept.example, kept.judgment, run),
        "learned": None,
    }


def _feedback(
    said: dict[str, Any] | None, example: Example, judgment: Judgment, run: Run
) -> dict[str, Any] | None:
    if said is None:
        return None
    return Feedback(example=example, judgment=judgment, thread_id=run.thread_id, **said).to_json()
