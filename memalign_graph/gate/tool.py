"""A gate as a tool: an agent has its own work judged before it answers."""

import re
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import BaseModel, Field
from typing_extensions import Unpack

from memalign_graph.errors import InvalidInputError
from memalign_graph.gate.gate import GateReview, Passage, make_gate
from memalign_graph.gate.verdict import GateVerdict, OnJudgeError, Passes
from memalign_graph.graphs.options import ReviewOptions
from memalign_graph.io import AWAITING, BLOCKING, IO, run
from memalign_graph.nodes.base import Run, current_run
from memalign_graph.reading import read_example
from memalign_graph.types import Criterion

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What OpenAI takes for a tool's name."""


class ToolInput(BaseModel):
    """What the agent says to the tool."""

    inputs: str = Field(description="What was asked for, in the words of the user.")
    outputs: str = Field(description="The whole answer, as it is to be given.")


def create_quality_gate_tool(
    criterion: Criterion,
    *,
    passes: Passes | None = None,
    on_judge_error: OnJudgeError = "closed",
    review: GateReview = "never",
    name: str = "check_quality",
    description: str | None = None,
    **judge: Unpack[ReviewOptions],
) -> BaseTool:
    """Create a tool that judges an answer and tells the agent what to change.

    It is called within a graph that was compiled with a store, such as `create_agent(store=...)`.
    What the agent tells it is the agent's own word: a gate after the agent can't be talked around.

    Args:
        criterion: What is judged.
        passes: Which values pass.
        on_judge_error: `closed`, or `open` to tell the agent to go on when the judge fails.
        review: When the expert is asked, by an interrupt: `never`, `always`, `uncertain`, or a
            function of the `Judgment`.
        name: The tool's name.
        description: What it is for, told to the agent; made of the criterion unless given.
        judge: The judge's own options: see `create_review_graph`.

    Returns:
        The tool; its messages carry the `GateVerdict` as their artifact.

    Raises:
        InvalidInputError: If an option can't be used.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"name: {name!r} is no name for a tool: give up to 64 letters, digits, _ and -."
        )
    if not isinstance(description, str | None):
        raise InvalidInputError("description: give a text, or None.")
    if review == "exhausted":
        raise InvalidInputError(
            "review: a tool does not count revisions: give 'never', 'always', 'uncertain' or a "
            "function."
        )
    gate = make_gate(
        criterion,
        name=name,
        passes=passes,
        max_revisions=1,  # whether there is a next answer is the agent's choice
        escalates=False,
        review=review,
        on_judge_error=on_judge_error,
        **judge,
    )

    async def decide(io: IO, inputs: str, outputs: str, run_: Run) -> tuple[str, GateVerdict]:
        try:
            example = read_example({"inputs": inputs, "outputs": outputs})
        except InvalidInputError as error:
            raise ToolException(str(error)) from error
        passage = Passage(found=example, loop=None)
        verdict, _ = await gate.decide(io, passage, gate.graph, run_)
        # Whether and how often it tries again is the agent's own affair.
        return _told(verdict), {**verdict, "revisions": 0}

    def check(inputs: str, outputs: str) -> tuple[str, GateVerdict]:
        return run(decide(BLOCKING, inputs, outputs, current_run()))

    async def acheck(inputs: str, outputs: str) -> tuple[str, GateVerdict]:
        return await decide(AWAITING, inputs, outputs, current_run())

    about = f"Checks an answer before it is given: {criterion.instructions.strip()}"
    options: dict[str, Any] = {"handle_tool_error": True}
    return StructuredTool.from_function(
        func=check,
        coroutine=acheck,
        name=name,
        description=description or about,
        args_schema=ToolInput,
        response_format="content_and_artifact",
        **options,
    )


def _told(verdict: GateVerdict) -> str:
    if verdict["passed"]:
        return "The answer passed."
    if verdict["status"] != "judge_error":
        return verdict["critique"]
    outcome = "give it as it is" if verdict["let_through"] else "it did not pass"
    return f"The answer could not be checked, and {outcome}."
