"""`memalign review`: an expert at a shell answers for the judgments that wait for a word."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from memalign_graph.cli.options import JudgeFlags, Place, Status
from memalign_graph.cli.terminal import Terminal, count, listed

if TYPE_CHECKING:
    from memalign_graph.memory.judgments import KeptJudgment
    from memalign_graph.scales import Scale

_COMMANDS = {"s": "skip", "u": "undo", "q": "quit"}
_SHORT = {"y": "yes", "n": "no"}


def review(
    *,
    author: Annotated[str | None, typer.Option(metavar="NAME", help="Who answers.")] = None,
    place: Place,
    flags: JudgeFlags,
    terminal: Terminal,
) -> int:
    """Walk through the judgments that wait for an expert's word, and learn from each answer.

    They are those that were kept: by a graph with `keep_judgments`, or by `memalign judge` where
    the criterion's file says so.
    """
    from memalign_graph.graphs import create_feedback_graph
    from memalign_graph.types import Feedback

    answered: dict[int, str] = {}  # the episode of each case, in the order they were answered
    at = 0
    place.check(must_exist=True)
    with place.open(is_new=True) as memory:
        judge = flags.judge(place.criterion, terminal)
        scale = judge.criterion.scale
        builder = create_feedback_graph(judge.criterion, **judge.options)
        graph = builder.compile(store=memory.access.store)
        waiting = memory.judgments(waiting=True)
        while at < len(waiting):
            case = {"case": f"{at + 1} of {len(waiting)}", **_case(waiting[at], scale)}
            terminal.show(listed(case))
            reply = _ask(terminal, scale)
            if reply == "quit":
                break
            if reply == "undo":
                if answered:
                    at, episode_id = answered.popitem()
                    memory.forget(episode_id, by=author)
                    terminal.note("taken back")
                continue
            if isinstance(reply, dict):
                judgment_id = waiting[at].judgment.id
                later = {"judgment_id": judgment_id, "reply": {**reply, "author": author}}
                result = graph.invoke(later, context=place.context)
                # Not what was learned of: that can be others' words that were pending, too.
                answered[at] = Feedback.model_validate(result["feedback"]).episode_id
                for change in result["learned"]["guidelines"]:
                    terminal.note(f"learned: {change['action']}: {change['text']}")
            at += 1
        version = memory.version()
    left = len(waiting) - len(answered)
    terminal.result(
        {"episode_ids": list(answered.values()), "waiting": left, "version": version},
        f"{count(len(answered), 'answer')}, {left} still waiting; memory at version {version[:8]}",
    )
    return Status.DONE


def _case(kept: "KeptJudgment", scale: "Scale") -> dict[str, Any]:
    judgment = kept.judgment
    said = f"{scale.show(judgment.value)}: {judgment.rationale}"
    return {**kept.example.to_json(), "judge": said, "confidence": judgment.confidence}


def _ask(terminal: Terminal, scale: "Scale") -> dict[str, Any] | str:
    """Ask for a value and words; return what was said, or what to do instead."""
    question = f"What should it be: {scale.describe()} Enter for words alone; skip, undo, quit:"
    while (said := terminal.ask(question)) is not None:
        value, problem = None, ""
        for text in (said, _SHORT.get(said.lower(), said)):
            try:
                value = scale.validate_value(text)
            except ValueError as error:
                problem = str(error)
        command = _COMMANDS.get(said.lower(), said.lower())
        if value is None and command in _COMMANDS.values():
            return command
        if value is None and said:
            terminal.warn(problem)
            continue
        words = terminal.ask("Why, in your own words; Enter for none:")
        fields = {"value": value, "rationale": words or None}
        return fields if value is not None or words else "skip"
    return "quit"
