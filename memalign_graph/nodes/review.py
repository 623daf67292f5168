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
from memalign_graph.runtime import Node, Parts, Run, State, Update
from memalign_graph.settings import Uncertain, resolve_context
from memalign_graph.types import Example, Feedback, Guideline, Judgment

logger = logging.getLogger(__name__)


def decide_node(parts: Parts, uncertain: Uncertain) -> Node:
    """Make the node that decides whether an expert is asked about a judgment, and logs it.

    It stands before the interrupt, whose node runs again from its top when the reply comes.
    """

    async def decide_review(io: IO, state: State, run: Run) -> Update:
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

    return Node("decide_review", decide_review)


def collect_node(parts: Parts) -> Node:
    """Make the node that asks the expert about the judgment, and waits for the reply.

    Nothing is done before the interrupt: LangGraph runs the node again from its top.
    """

    async def collect_feedback(_io: IO, state: State, run: Run) -> Update:
        run.warn_without_checkpointer("review")
        example = Example.model_validate(own_channel(state, "judge_run")["example"])
        memory = Retrieved.model_validate(own_channel(state, "judge_memory"))
        judgment = Judgment.model_validate(state["judgment"])
        shown = [*memory.guidelines, *memory.relevant]
        told = [episode for similar in memory.recalled for episode in similar.episodes]
        said = review_form(
            parts.criterion,
            example,
            judgment,
            guidelines=[one for one in shown if one.id in set(judgment.guideline_ids)],
            episodes=[one for one in told if one.id in set(judgment.episode_ids)],
        ).ask()
        feedback = None
        if said is not None:
            feedback = Feedback(
                example=example, judgment=judgment, thread_id=run.thread_id, **said
            ).to_json()
        return {"feedback": feedback, "judge_lesson": {}}

    return Node("collect_feedback", collect_feedback)


def question_node(parts: Parts) -> Node:
    """Make the node that finds out whether an expert's words are too vague to make a rule.

    One call of the model that distils; where it fails nobody is asked, and the lesson says so. The
    call is not made again when the answer comes, since it is not in the node that asks.
    """
    schema = clarify_schema()

    async def ask_model(
        io: IO, feedback: Feedback, guidelines: list[Guideline], named: str | None
    ) -> Question | None:
        chat = parts.distiller(named)
        prompt = clarify_prompt(
            parts.criterion,
            feedback,
            guidelines=guidelines,
            max_input_tokens=max_input_tokens(chat),
        )

        def read(answer: dict[str, Any], last: bool) -> Question | None:  # noqa: FBT001 - as `ask` calls it
            return read_question(answer, prompt, last=last)

        structured = parts.clients.structured(chat, schema)
        purpose = "see whether the expert's words make a rule"
        question, _ = await ask(io, structured, prompt.messages, read, purpose=purpose)
        return question

    async def question_feedback(io: IO, state: State, run: Run) -> Update:
        feedback = Feedback.model_validate(state["feedback"])
        if feedback.rationale is None:
            return {"judge_lesson": {}}
        settings = own_channel(state, "judge_run")["settings"]
        access = parts.memory(run.store, settings)
        key = feedback.episode_id
        known = said_before(feedback, (await access.episodes(io, [key])).get(key))
        if known is not None:
            return {"feedback": known.to_json(), "judge_lesson": {}}
        guidelines = await access.all_guidelines(io)
        try:
            question = await ask_model(io, feedback, guidelines, settings["model"])
        except MemAlignError as error:
            warning = f"The expert was not asked back, since no question could be made: {error}"
            logger.warning("%s", warning)
            return {"judge_lesson": {"warnings": [warning]}}
        if question is None:
            return {"judge_lesson": {}}
        # The id tells a purge that this thread carries the expert's words.
        asked = {"question": question.question, "example": question.example, "episode_id": key}
        return {"judge_lesson": {"clarification": asked}}

    return Node("question_feedback", question_feedback)


def clarify_node(parts: Parts) -> Node:
    """Make the node that asks the expert what vague words mean, and waits for the answer."""

    async def clarify_feedback(_io: IO, state: State, _run: Run) -> Update:
        feedback = Feedback.model_validate(state["feedback"])
        asked = own_channel(state, "judge_lesson")["clarification"]
        question = Question(asked["question"], asked["example"])
        answer = clarify_form(parts.criterion, feedback, question).ask()
        answered = clarified(feedback, question, answer)
        return {"feedback": answered.to_json(), "judge_lesson": {}}

    return Node("clarify_feedback", clarify_feedback)


def find_node(parts: Parts, built: Mapping[str, Any]) -> Node:
    """Make the node that finds the judgment which an expert's later word is on."""

    async def find(io: IO, state: State, run: Run) -> Update:
        settings = resolve_context(run.context, built)
        access = parts.memory(run.store, settings)
        kept = await find_judgment(io, access, state.get("judgment_id", ""))
        try:
            said = read_review(state.get("reply"), parts.criterion, kept.judgment)
        except ValueError as error:
            raise InvalidInputError(f"reply: {error}") from error
        feedback = None
        if said is not None:
            feedback = Feedback(
                example=kept.example, judgment=kept.judgment, thread_id=run.thread_id, **said
            ).to_json()
        vector = kept.vector if kept.embedder == access.embedder.id else None
        memory = Retrieved(version=kept.judgment.memory_version, vector=vector)
        return {
            "judge_run": {"example": kept.example.to_json(), "settings": settings},
            "judge_memory": memory.to_json(),
            "judge_lesson": {},
            "judgment": kept.judgment.to_json(),
            "feedback": feedback,
            "learned": None,
        }

    return Node("find_judgment", find)
