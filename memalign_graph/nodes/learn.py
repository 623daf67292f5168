"""Nodes that learn from an expert's reply: ask a clarifying question, distill, commit."""

from datetime import datetime
from itertools import islice

from memalign_graph.alignment.distill import (
    commit_distilled,
    count_unused,
    distill_in_batches,
    dump_operations,
    give_up_warnings,
    reword_pending,
    sources_to_try,
)
from memalign_graph.asking import ask_with_retry
from memalign_graph.errors import ChatModelError, InvalidInputError, MemAlignError
from memalign_graph.interrupts import clarify_form
from memalign_graph.memory.feedback import RememberResult, remember, take_back
from memalign_graph.models import max_input_tokens
from memalign_graph.nodes.review import date_reply
from memalign_graph.prompts import clarify
from memalign_graph.prompts.distilled import DistillResult
from memalign_graph.runtime import NodeCall, StateUpdate, require_channel

_MAX_PENDING = 20
"""The maximum of older pending episodes that are distilled with a new one."""

_NOT_DISTILLED = (
    "Feedback {} is stored, but nothing was distilled from it. It stays pending, and the next "
    "review or alignment distills it. {}"
)


async def question_feedback(call: NodeCall) -> StateUpdate:
    """Ask the model for a clarifying question, if the comment needs one; a failure is a warning."""
    if not await _has_feedback(call):
        return {"judge_lesson": {}}
    io, access, feedback = call.io, call.access, call.feedback
    key = feedback.episode_id
    clarified = clarify.already_clarified(feedback, (await access.episodes(io, [key])).get(key))
    if clarified is not None:
        return {"feedback": clarified.to_json(), "judge_lesson": {}}
    # Stored before the expert is asked, who may never answer.
    warnings = (await _store(call)).warnings
    guidelines = await access.guidelines(io)
    try:
        chat = call.distill_chat_model
        window = max_input_tokens(chat)
        prompt = clarify.clarify_prompt(
            call.resources.criterion, feedback, guidelines=guidelines, max_input_tokens=window
        )
        question, _ = await ask_with_retry(
            io,
            call.resources.clients.structured_model(chat, clarify.QUESTION_SCHEMA, "clarify"),
            prompt.messages,
            lambda answer, _last: clarify.parse_question(answer, prompt),
        )
    except MemAlignError as error:
        warning = f"No clarifying question was asked, because the model failed: {error}"
        warnings += access.log_warnings([warning])
        question = None
    if question is None:
        return {"judge_lesson": {"warnings": warnings}}
    # A purge finds by this id that the thread holds the expert's comment.
    asked = {"question": question, "episode_id": key}
    return {"judge_lesson": {"clarification": asked, "warnings": warnings}}


async def clarify_feedback(call: NodeCall) -> StateUpdate:
    feedback, lesson = call.feedback, {**require_channel(call.state, "judge_lesson")}
    question = lesson.pop("clarification")["question"]
    form = clarify_form(call.resources.criterion, feedback, question)
    await call.access.refresh(call.io)  # before the question, as in `collect_feedback`
    answer = form.ask(call.settings["namespace"])
    merged = clarify.merge_clarification(feedback, question, answer, call.resources.criterion.scale)
    if answer:  # given now: it counts after what the expert said elsewhere in the meantime
        merged = date_reply(call, merged, answer.get("given_at"))
    if merged.episode_id != feedback.episode_id:  # only the answer names its author
        lesson["replaced"] = [feedback.episode_id, feedback.given_at.isoformat()]
    return {"feedback": merged.to_json(), "judge_lesson": lesson}


async def distill_feedback(call: NodeCall) -> StateUpdate:
    if not await _has_feedback(call):
        return {"judge_lesson": {}}
    io, access = call.io, call.access
    lesson = {**require_channel(call.state, "judge_lesson")}
    # Stored before the model is called: if that fails, the next run distills it.
    stored = await _store(call)
    [episode] = stored.episodes
    if "replaced" in lesson:
        key, given_at = lesson.pop("replaced")
        replaced_at = datetime.fromisoformat(given_at)
        await take_back(io, access, key, replaced_at, author=episode.author)
    lesson = {**lesson, "warnings": [*lesson.get("warnings", []), *stored.warnings]}
    if episode.status != "pending":
        return {"judge_lesson": {**lesson, "read": {episode.id: episode.word}}}
    view = await access.refresh(io)
    result, rewordings, warnings = DistillResult(), DistillResult(), list[str]()
    unused = dict[str, str]()
    try:
        chat = call.distill_chat_model
        others = view.pending() - {episode.id}
        rows = [row for row in view.rows() if row.id in others]
        # A comment says more than a value alone, of which there may be thousands.
        rows.sort(key=lambda row: (not row.content.get("rationale"), row.given_at, row.id))
        rows = [*islice(sources_to_try(access, chat, rows), _MAX_PENDING)]
        pending = await access.episodes(io, [row.id for row in rows])
        warnings += give_up_warnings(access, chat, "piece(s) of feedback", [episode])
        waiting = [*sources_to_try(access, chat, [episode]), *pending.values()]
        result = await distill_in_batches(io, access, chat, waiting, leaves_rest=True)
        used = {key for operation in result.operations for key in operation.episode_ids}
        # Pending for now: another review may be distilling it.
        left = result.read.keys() - used
        unused = count_unused(access, chat, [row for row in rows if row.id in left])
        # Guidelines of feedback that this expert has replaced may have to be reworded.
        rewordings = await reword_pending(
            io, access, chat, limit=call.max_concurrency, max_guidelines=_MAX_PENDING
        )
    except (ChatModelError, InvalidInputError) as error:
        # The expert's feedback is stored, so a later run can learn from it.
        warnings.append(_NOT_DISTILLED.format(episode.id, error))
    warnings += [*result.all_warnings, *rewordings.warnings]
    access.log_warnings(warnings)
    attempts = [*result.failed_attempts, *unused.values(), *rewordings.failed_attempts]
    learned = {
        "operations": dump_operations(result.operations),
        "read": result.read,
        "rewordings": dump_operations(rewordings.operations),
        "reworded": rewordings.read,
        "left_pending": [*unused],
        "failed_attempts": attempts,
        "warnings": [*lesson["warnings"], *warnings],
    }
    return {"judge_lesson": {**lesson, **learned}}


async def commit_memory(call: NodeCall) -> StateUpdate:
    """Commit what was learned; idempotent."""
    if not await _has_feedback(call):
        return {"learned": None}
    io, access, feedback = call.io, call.access, call.feedback
    lesson = require_channel(call.state, "judge_lesson")
    lesson = {"read": lesson.get("distilled", {}), **lesson}  # its name in runs of release 0.2
    warnings = [*lesson.get("warnings", [])]
    stored = await _store(call) if feedback.agrees else None  # nothing was distilled
    learned, _ = await commit_distilled(
        io, access, {} if stored else lesson, author=feedback.author
    )
    if stored:
        warnings += stored.warnings
        learned["episode_ids"] = [episode.id for episode in stored.episodes]
    warnings += access.log_warnings(learned["warnings"])
    return {"learned": {**learned, "warnings": warnings}}


async def _has_feedback(call: NodeCall) -> bool:
    """Return whether the expert answered, and it was not forgotten while the run was broken off."""
    if call.state.get("feedback") is None:
        return False
    view, feedback = await call.access.refresh(call.io), call.feedback
    return view.forgotten_at(feedback.episode_id) <= feedback.given_at


async def _store(call: NodeCall) -> RememberResult:
    """Store a reviewer's feedback, with the embedding that retrieval left in the state."""
    feedback = call.feedback
    vector = call.access.load_vector((call.state.get("judge_memory") or {}).get("vector"))
    vectors = {} if vector is None else {feedback.example.id: vector}
    return await remember(call.io, call.access, [feedback], known_vectors=vectors)
