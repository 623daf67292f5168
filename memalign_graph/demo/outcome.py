"""The demo's printed result: cases before and after, what was learned, how much it helped."""

import random
import sys
import textwrap
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.table import Table
from rich.text import Text

from memalign_graph.cli.terminal import clean, table
from memalign_graph.scales import Numeric, Scale
from memalign_graph.types import Guideline

_WHEN = ("before", "after")
_NEXT = "\nNext: memalign demo --interactive (you are the expert), --sql or --fresh."


def render_result(scale: Scale, result: Mapping[str, Any]) -> list[Table | Text]:
    """Return the result as tables and text."""
    picture = Table("", *_WHEN, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    short, seconds = [], result["seconds"]
    for number, row in enumerate(result["cases"], 1):
        begins = textwrap.shorten(row["outputs"], 50, placeholder=" ...")
        short.append({**row, "id": None, "case": f"{number}  {begins}"})
        picture.add_row(f"{number}", *(_bar(scale, _distance(scale, row, when)) for when in _WHEN))
    learned = [clean(_guideline_text(item, result["episodes"])) for item in result["guidelines"]]
    timings = ", ".join(f"{part} {taken:.0f} s" for part, taken in seconds.items())
    return [
        table(short),
        Text("\n".join(["\nWhat it learned:", *(learned or ["- nothing yet"])])),
        Text("\nHow far it was from the expert, case by case:"),
        picture,
        Text(f"\n{result['conclusion']}"),
        Text(f"It took {sum(seconds.values()):.0f} s: {timings}.\n{_NEXT}"),
    ]


def conclusion(scale: Scale, rows: Sequence[Mapping[str, Any]]) -> str:
    """Say in a sentence how far the judge was from the experts, before and after."""
    was, now = ([_distance(scale, row, when) for row in rows] for when in _WHEN)
    if not isinstance(scale, Numeric):
        right = f"{was.count(0)} of {len(rows)} unseen cases before it learned"
        return f"The judge was right on {right}, and on {now.count(0)} after."
    nearer = [before - after for before, after in zip(was, now, strict=True)]
    low, high = bootstrap_interval(nearer)
    moved = "nearer" if fmean(nearer) >= 0 else "farther"
    return (
        f"On {len(rows)} unseen cases the judge was {fmean(was):.2f} away from the experts before "
        f"it learned, and {fmean(now):.2f} after: {moved} by {abs(fmean(nearer)):.2f} (90 % "
        f"interval of the gain {low:.2f} to {high:.2f}"
        f"{', so it may be chance' if low <= 0 <= high else ''})."
    )


def bootstrap_interval(changes: Sequence[float]) -> tuple[float, float]:
    """Return the 90 % interval of the mean of paired changes, by a bootstrap."""
    rng = random.Random(0)  # noqa: S311 - no secret
    means = sorted(fmean(rng.choices(changes, k=len(changes))) for _ in range(2_000))
    return means[100], means[-101]


def _distance(scale: Scale, row: Mapping[str, Any], when: str) -> float:
    """Return the distance to the expert's value; 1 is the whole scale, or a wrong value."""
    if isinstance(scale, Numeric):
        return float(abs(row[when] - row["expert"]) / (scale.maximum - scale.minimum))
    return float(row[when] != row["expert"])


def _bar(scale: Scale, distance: float) -> Text:
    block = "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    label = f"{distance:.2f}" if isinstance(scale, Numeric) else ("wrong" if distance else "right")
    color = "red" if 2 * distance > 1 else "green"
    return Text(f"{block * round(20 * distance):20} {label}", style=color)


def _guideline_text(guideline: Guideline, cases: Mapping[str, str]) -> str:
    measured, worth = "not measured yet", guideline.worth
    if worth is not None:
        share = f"{100 * worth.auc:.0f} % of the time, on {worth.cases} cases"
        measured = f"tells the better of two answers {share}"
    unused = "; not used" if guideline.status == "unproven" else ""
    sources = ", ".join(cases[episode_id] for episode_id in guideline.episode_ids)
    return f"- {guideline.text}\n  from {sources or 'hand'}; {measured}{unused}"
