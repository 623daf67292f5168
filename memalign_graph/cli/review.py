"""`memalign review`: an expert at a shell answers for the judgments that wait for a word."""

from typing import Annotated

import typer

from memalign_graph.cli.options import JudgeFlags, Place, Status
from memalign_graph.cli.terminal import Terminal, count, listed


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

    answers = []  # where each was, its episode, and what the same expert had said of it before
    at = 0
    place.check(must_exist=True)
    with place.open(is_new=True) as memory:
        judge = flags.judge(place.criterion, terminal)
        scale = judge.criterion.scale
        builder = create_feedback_graph(judge.criterion, **judge.options)
        graph = builder.compile(store=memory.access.store)
        waiting = memory.judgments(waiting=True)
        while at < len(waiting):
            kept, judgment = waiting[at], waiting[at].judgment
            said = f"{scale.show(judgment.value)}: {judgment.rationale}"
            case = {"case": f"{at + 1} of {len(waiting)}", **kept.example.to_json(), "judge": said}
            terminal.show(listed({**case, "confidence": judgment.confidence}))
            reply = terminal.ask_expert(scale)
            if reply == "quit":
                break
            if reply == "undo":
                if answers:
                    at, episode_id, earlier = answers.pop()
                    if earlier is None:
                        memory.forget(episode_id, by=author)
                    else:
                        words = {"value": earlier.value, "rationale": earlier.rationale}
                        memory.revise(episode_id, words)
                    terminal.note("taken back")
                continue
            if isinstance(reply, dict):
                known = {episode.id: episode for episode in memory.episodes()}
                answer = {"judgment_id": judgment.id, "reply": {**reply, "author": author}}
                result = graph.invoke(answer, context=place.context)
                # Not what was learned of: that can be others' words that were pending, too.
                episode_id = Feedback.model_validate(result["feedback"]).episode_id
                answers.append((at, episode_id, known.get(episode_id)))
                for change in result["learned"]["guidelines"]:
                    terminal.note(f"learned: {change['action']}: {change['text']}")
            at += 1
        version = memory.version()
    left = len(waiting) - len(answers)
    terminal.result(
        {"episode_ids": [key for _, key, _ in answers], "waiting": left, "version": version},
        f"{count(len(answers), 'answer')}, {left} still waiting; memory at version {version[:8]}",
    )
    return Status.DONE
