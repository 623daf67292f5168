"""The results as a picture: how many times better ours is, row by row."""

from pathlib import Path

from benchmarks.rows import ratio
from benchmarks.table import Run, row_title, show_ratio

_MOST = 1_000.0
"""Longer bars end here; what they stand for is written beside them."""


def draw(run: Run, path: Path) -> None:
    """Draw a bar for each row that both sides were measured by.

    Args:
        run: The run.
        path: The file, whose ending says the format.
    """
    # Heavy, and not needed where nothing is drawn.
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    bars = [
        (row_title(row, run.sizes), factor)
        for row in run.rows()
        if (factor := ratio(row, row.number(run.ours), row.number(run.peer))) is not None
    ]
    if not bars:
        return
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(bars) + 1.4), layout="constrained")
    lengths = [min(factor, _MOST) for _, factor in bars]
    colours = ["#2b7a78" if factor >= 1 else "#b5523b" for _, factor in bars]
    places = range(len(bars))
    # Bars grow from 1, where both sides are equal.
    axes.barh(places, [length - 1 for length in lengths], left=1, color=colours)
    axes.set_yticks(list(places), [title for title, _ in bars])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(y=0.02)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlim(min(0.5, min(lengths) / 1.5), _MOST * 3)
    for place, (_, factor) in enumerate(bars):
        axes.text(max(1.0, lengths[place]) * 1.08, place, show_ratio(factor), va="center")
    axes.set_xlabel("times better than the peer, by medians; 1 is equal (log scale)")
    axes.set_title(
        "Quick run: no result" if run.quick else "memalign-graph beside MLflow's MemAlign"
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
