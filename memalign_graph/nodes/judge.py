"""The nodes that judge, in the order they run."""

from memalign_graph.judging.case import Case, Retrieved, prepare_example, recall_similar
from memalign_graph.judging.verdict import run_judge
from memalign_graph.memory.judgments import keep_judgment
from memalign_graph.runtime import NodeCall, StateUpdate, require_channel
from memalign_graph.tracing import emit_evaluation

_NO_ANSWER: StateUpdate = {"feedback": None, "judge_lesson": {}}
"""LangGraph drops keys without a channel, and `collect_feedback` checks for these before it asks.

Two nodes set them: your own node may judge, and a run of release 0.2 may go on at the judge.
"""


async def retrieve_episodes(call: NodeCall) -> StateUpdate:
    """Parse the example, find similar ones, and keep the run's settings."""
    example = prepare_example(call)
    recalled = await recall_similar(call, example)
    while call.judge.use_guidelines:
        # Both have to be of one version; the guidelines are cached from here on.
        active = await call.access.guidelines_at(call.io, recalled.version)
        if active.version == recalled.version:
            break
        recalled = await recall_similar(call, example, call.access.load_vector(recalled.vector))
    return {
        "judge_run": {"example": example.to_json(), "settings": call.settings},
        "judge_memory": vars(recalled),
        **_NO_ANSWER,
    }


async def assemble_guidelines(call: NodeCall) -> StateUpdate:
    """Read the active guidelines, and choose those that fit into the prompt."""
    fields = require_channel(call.state, "judge_memory")
    if not call.judge.use_guidelines:
        return {"judge_memory": fields}
    version, guidelines, revisions = await call.access.guidelines_at(call.io, fields["version"])
    recalled = {name: fields[name] for name in ("nearness", "warnings") if name in fields}
    fitted = Retrieved(version=version, **recalled).with_guidelines(guidelines, call)
    # The recalled examples and the vector stay as they are: none is loaded or written again.
    update = {name: fields[name] for name in ("recalled", "vector") if name in fields}
    # A purge finds by the revisions that a thread has a guideline with a certain text.
    wordings = [revisions[each.id].revision for each in fitted.all_guidelines]
    return {"judge_memory": {**fitted.to_json(), **update, "wordings": wordings}}


async def judge_example(call: NodeCall, *, decides_review: bool = True) -> StateUpdate:
    """Judge; without a review, what memory recalled is dropped.

    With `decides_review` the node `decide_review` follows if the mode is `uncertain`.
    """
    fields = require_channel(call.state, "judge_memory")
    retrieved = await Retrieved.load(call.io, call.access, fields)
    judgment = await run_judge(Case(call, call.example, retrieved))
    mode = call.settings["review"] if call.resources.review is not None else "never"
    if mode != "uncertain" or not decides_review:  # else `decide_review` keeps and emits it
        keep_for = call.judge.keep_judgments
        judgment = await keep_judgment(
            call.io, call.access, judgment, call.example, retrieved.vector, keep_for
        )
        emit_evaluation(judgment, asked={"always": True, "never": False}.get(mode or ""))
    # Clear what an earlier judgment on the same thread may have left.
    update: StateUpdate = {"judgment": judgment.to_json(), "learned": None, **_NO_ANSWER}
    if call.resources.review is None:
        update["judge_memory"] = None
    if call.judge.cite_guidelines:
        broken = retrieved.guidelines_by_ids(judgment.broken_guideline_ids)
        update["broken_guidelines"] = [guideline.to_json() for guideline in broken]
    return update
