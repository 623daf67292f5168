"""A sheet to draw on: matplotlib's shapes, with texts and colours that the page sets.

Texts are SVG texts of our own beside matplotlib's shapes: they take the page's font and colours, in
light and dark, can be read aloud and searched, and no font of this machine changes the file.
Figures are made without pyplot, and neither read nor write matplotlib's global settings, so that
drawing in one thread does not disturb another, nor a user's own plots.
"""

import re
from collections.abc import Sequence
from html import escape
from io import StringIO
from typing import Any

from memalign_graph.errors import needs_extra

AFTER, BEFORE, FAINT, LINE, GROUND = "#0f766e", "#6b7688", "#8f97a5", "#dcdad4", "#ffffff"
"""The colours of a page in light; each is a variable there, which is another in dark."""

_VARIABLES = {
    AFTER: "var(--after)",
    BEFORE: "var(--before)",
    FAINT: "var(--faint)",
    LINE: "var(--line)",
    GROUND: "var(--card)",
}

_DPI = 72
"""A point is a pixel."""

_LONG = re.compile(r"-?\d+\.\d{3,}")


class Sheet:
    """One plot."""

    def __init__(
        self,
        size: tuple[int, int],
        inside: tuple[int, int, int, int],
        *,
        x: tuple[float, float],
        y: tuple[float, float],
    ) -> None:
        """Begin."""
        with needs_extra("evaluation", "a report's plots"):
            from matplotlib.backends.backend_svg import FigureCanvasSVG
            from matplotlib.figure import Figure
        self.width, self.height = size
        self.left, self.right, self.top, self.bottom = inside
        self._figure = Figure(figsize=(self.width / _DPI, self.height / _DPI), dpi=_DPI)
        FigureCanvasSVG(self._figure)
        self._figure.patch.set_visible(False)
        area = (
            self.left / self.width,
            self.bottom / self.height,
            (self.width - self.left - self.right) / self.width,
            (self.height - self.top - self.bottom) / self.height,
        )
        self.axes: Any = self._figure.add_axes(area)
        self.axes.set_axis_off()
        self.axes.set_xlim(*x)
        self.axes.set_ylim(*y)
        self._texts: list[str] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point of the plot lies, in pixels from the top left."""
        across, up = self.axes.transData.transform((x, y))
        return float(across), self.height - float(up)

    def text(
        self, place: tuple[float, float], words: str, *, anchor: str = "start", kind: str = ""
    ) -> None:
        """Write."""
        across, down = place
        named = f' class="{kind}"' if kind else ""
        self._texts.append(
            f'<text x="{across:.1f}" y="{down:.1f}" text-anchor="{anchor}"{named}>'
            f"{escape(words)}</text>"
        )

    def line(self, x: Sequence[float], y: Sequence[float], colour: str, **more: Any) -> None:
        """Draw a line."""
        given = {"linewidth": 2, "clip_on": False, "solid_capstyle": "round", **more}
        self.axes.plot(x, y, color=colour, **given)

    def dots(self, x: Sequence[float], y: Sequence[float], colour: str, **more: Any) -> None:
        """Draw dots."""
        given = {"s": 30, "linewidths": 0, "clip_on": False, "zorder": 3, **more}
        self.axes.scatter(x, y, c=colour, **given)

    def grid(self, places: Sequence[tuple[float, str]], *, name: str) -> None:
        """Draw horizontal lines, and write what they stand for on their left."""
        for y, words in places:
            self.line(self.axes.get_xlim(), [y, y], LINE, linewidth=1, zorder=0)
            across, down = self.at(self.axes.get_xlim()[0], y)
            self.text((across - 8, down + 4), words, anchor="end", kind="tick")
        self.text((0, 12), name, kind="axis")

    def ticks(self, places: Sequence[tuple[float, str]], *, name: str, apart: int = 26) -> None:
        """Write below the plot what places along its horizontal axis stand for."""
        written: list[float] = []
        for x, words in reversed(places):
            across, down = self.at(x, self.axes.get_ylim()[0])
            if all(abs(across - other) >= apart for other in written):
                written.append(across)
                self.text((across, down + 18), words, anchor="middle", kind="tick")
        middle = (self.left + self.width - self.right) / 2
        self.text((middle, self.height - 6), name, anchor="middle", kind="axis")

    def legend(self, entries: Sequence[tuple[str, str, bool]]) -> None:
        """Say what the colours stand for, above the plot on the right."""
        across = float(self.width - self.right)
        for words, colour, dashed in reversed(entries):
            # About as wide as a page's text is at this size.
            across -= 7.0 * len(words)
            self.text((across, 34), words, kind="tick")
            dash = ' stroke-dasharray="4 3"' if dashed else ""
            self._texts.append(
                f'<path d="M{across - 24:.1f} 30h18" fill="none" stroke="{_VARIABLES[colour]}" '
                f'stroke-width="2.5"{dash}/>'
            )
            across -= 38

    def svg(self, name: str, title: str, description: str) -> str:
        """Return the plot as an element of a page."""
        drawn = StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        self._figure.savefig(drawn, format="svg", metadata=nothing)
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-labelledby="{name}-title {name}-desc">'
            f'<title id="{name}-title">{escape(title)}</title>'
            f'<desc id="{name}-desc">{escape(description)}</desc>'
            f"{_shapes(drawn.getvalue(), name)}{''.join(self._texts)}</svg>"
        )


def _shapes(drawn: str, name: str) -> str:
    """Take the shapes out of matplotlib's file, without its ids, styles and name spaces."""
    body = drawn[drawn.index("<g ") : drawn.rindex("</svg>")]
    found = list(dict.fromkeys(re.findall(r'\bid="([^"]+)"', body)))
    used = {one for one in found if f"#{one}" in body}
    places = {one: f"{name}-{number}" for number, one in enumerate(sorted(used, key=found.index))}
    body = re.sub(r' id="([^"]+)"', lambda one: _id(places.get(one[1])), body)
    for old, new in places.items():
        body = body.replace(f"#{old}", f"#{new}")
    body = body.replace("xlink:href", "href")
    body = re.sub(r' style="([^"]*)"', lambda one: _attributes(one[1]), body)
    body = re.sub(r'(fill|stroke)="(#\w{6})"', lambda one: _coloured(one[1], one[2]), body)
    body = _LONG.sub(lambda one: f"{float(one[0]):.2f}", body)
    return re.sub(r"\s*\n\s*", " ", body).strip()


def _id(name: str | None) -> str:
    return f' id="{name}"' if name else ""


def _attributes(style: str) -> str:
    pairs = [one.split(":", 1) for one in style.split(";") if ":" in one]
    return "".join(f' {name.strip()}="{value.strip()}"' for name, value in pairs)


def _coloured(name: str, colour: str) -> str:
    return f'{name}="{_VARIABLES.get(colour, colour)}"'
