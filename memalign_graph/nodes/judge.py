"""The nodes that judge, in the order they run."""

from memalign_graph.judging.case import Case, Retrieved, prepare_example, retrieve
from memalign_graph.judging.verdict import run_judge
from memalign_graph.memory.recall import decode_optional_vector
from memalign_graph.runtime import NodeCall, StateUpdate, require_channel
from memalign_graph.tracing import emit_evaluation


async def retrieve_episodes(call: NodeCall) -> StateUpdate:
    """Check the example, find similar ones, and keep the run's settings."""
    example = prepare_example(call)
    retrieved = await retrieve(call, example)
    while call.judge.use_guidelines:
        # Cached from here on, and of the version that was recalled from.
        version, _ = await call.access.guidelines_at(call.io, retrieved.version)
        if version == retrieved.version:
            break
        retrieved = await retrieve(call, example, decode_optional_vector(retrieved.vector))
    return {
        "judge_run": {"example": example.to_json(), "settings": call.settings},
        "judge_memory": retrieved.to_json(),
        # LangGraph drops what the state has no channel for: so `collect_feedback` finds that out
        # before it asks.
        "feedback": None,
        "judge_lesson": {},
    }


async def assemble_guidelines(call: NodeCall) -> StateUpdate:
    """Read the active guidelines, and choose those that fit."""
    fields = require_channel(call.state, "judge_memory")
    if not call.judge.use_guidelines:
        return {"judge_memory": fields}
    version, guidelines = await call.access.guidelines_at(call.io, fields["version"])
    # What was recalled goes on as it is: nothing of it is read or written again.
    recalled = {name: fields[name] for name in ("nearness", "warnings") if name in fields}
    fitted = Retrieved(version=version, **recalled).with_guidelines(guidelines, call)
    return {"judge_memory": {**fields, "nearness": {}, **fitted.to_json()}}


async def judge_example(call: NodeCall) -> StateUpdate:
    """Judge; where nobody is asked about it, what memory gave is not kept."""
    fields = require_channel(call.state, "judge_memory")
    retrieved = await Retrieved.load(call.io, call.access, fields)
    judgment = await run_judge(Case(call, call.example, retrieved))
    mode = call.settings["review"] if call.resources.review is not None else "never"
    if mode != "uncertain":  # else it is emitted when that is decided
        emit_evaluation(judgment, asked={"always": True, "never": False}.get(mode or ""))
    # What an earlier judgment on the same thread may have left is not this one's.
    update: StateUpdate = {"judgment": judgment.to_json(), "feedback": None, "learned": None}
    if call.resources.review is None:
        update["judge_memory"] = None
    if call.judge.cite_guidelines:
        broken = retrieved.guidelines_by_ids(judgment.broken_guideline_ids)
        update["broken_guidelines"] = [guideline.to_json() for guideline in broken]
    return update
