"""`memalign review`: an expert at a shell answers for the judgments that wait for a word."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from memalign_graph.cli.options import JudgeFlags, Place, Status
from memalign_graph.cli.terminal import Terminal, count

if TYPE_CHECKING:
    from memalign_graph.scales import Scale

_COMMANDS = {"s": "skip", "u": "undo", "q": "quit", "": "words"}
_SHORT = {"y": "yes", "n": "no"}


def review(
    *,
    place: Place,
    flags: JudgeFlags,
    terminal: Terminal,
    author: Annotated[str | None, typer.Option(metavar="NAME", help="Who answers.")] = None,
) -> int:
    """Walk through the judgments that wait for an expert's word, and learn from each answer.

    They are those that were kept: by a graph with `keep_judgments`, or by `memalign judge` where
    the criterion's file says so.
    """
    from memalign_graph.graphs import create_feedback_graph

    scale = place.criterion.criterion.scale
    judge = flags.judge(place.criterion, terminal)
    answered: list[tuple[int, str]] = []
    at = 0
    with place.open() as memory:
        builder = create_feedback_graph(judge.criterion, **judge.options)
        graph = builder.compile(store=memory.access.store)
        waiting = memory.judgments(waiting=True)
        while at < len(waiting):
            kept, judgment = waiting[at], waiting[at].judgment
            shown = {
                "case": f"{at + 1} of {len(waiting)}",
                **kept.example.to_json(),
                "the judge": f"{scale.show(judgment.value)}: {judgment.rationale}",
            }
            terminal.fields(shown, to_stderr=True)
            reply = _ask(terminal, scale)
            if reply == "quit":
                break
            if reply == "undo":
                if answered:
                    at, episode_id = answered.pop()
                    memory.forget(episode_id, by=author)
                    terminal.note("taken back")
                continue
            at += 1
            if reply == "skip":
                continue
            learned = graph.invoke(
                {"judgment_id": judgment.id, "reply": {**reply, "author": author}},
                context=place.context,
            )["learned"]
            answered.append((at - 1, learned["episode_ids"][0]))
            for guideline in learned["guidelines"]:
                terminal.note(f"{guideline['action']}: {guideline['text']}")
        version = memory.version()
    left = len(waiting) - len(answered)
    terminal.result(
        {"answered": [key for _, key in answered], "waiting": left, "version": version},
        f"{count(len(answered), 'answer')}, {left} still waiting; memory at version {version[:8]}",
    )
    return Status.DONE


def _ask(terminal: Terminal, scale: "Scale") -> Any:
    """Ask for a value and words; return what was said, or what to do instead."""
    fields: dict[str, Any] = {}
    while True:
        said = terminal.ask(f"\nValue, {scale.describe()} Enter for words alone; skip, undo, quit:")
        if said is None:
            return "quit"
        for text in (said, _SHORT.get(said.lower(), said)):
            try:
                fields["value"] = scale.validate_value(text)
                break
            except ValueError as error:
                problem = str(error)
        command = _COMMANDS.get(said.lower(), said.lower())
        if "value" not in fields and command in ("skip", "undo", "quit"):
            return command
        if "value" in fields or command == "words":
            break
        terminal.warn(problem)
    fields["rationale"] = terminal.ask("Why, in your own words; Enter for none:") or None
    return fields if any(value is not None for value in fields.values()) else "skip"
