"""Cases and what experts said on them, as every prompt shows them."""

from collections.abc import Iterable, Sequence

from memalign_graph.agreement import majority_value
from memalign_graph.prompts.fences import estimate_tokens, fence
from memalign_graph.types import Criterion, Episode, Example


def by_case(episodes: Iterable[Episode]) -> list[list[Episode]]:
    """Bring the experts' episodes on one example together."""
    cases: dict[str, list[Episode]] = {}
    for episode in episodes:
        cases.setdefault(episode.example_id, []).append(episode)
    return [sorted(case, key=lambda one: (one.given_at, one.id)) for case in cases.values()]


def render_example(
    tag: str | None, example: Example, *, max_tokens: int | None = None
) -> tuple[str, bool]:
    """Write an example for a prompt, each of its parts fenced."""
    values = {"inputs": example.inputs, "outputs": example.outputs}
    if example.reference_outputs is not None:
        values["reference_outputs"] = example.reference_outputs
    parts = {name: fence(name, value) for name, value in values.items()}
    is_cut = False
    if max_tokens is not None:
        sizes = {name: estimate_tokens(part) for name, part in parts.items()}
        is_cut = sum(sizes.values()) > max_tokens
        if is_cut:
            limits = _share(sizes, max_tokens)
            parts = {
                name: fence(name, value, max_tokens=limits[name]) for name, value in values.items()
            }
    text = "\n".join(parts.values())
    return (text if tag is None else f"<{tag}>\n{text}\n</{tag}>"), is_cut


def render_words(
    episodes: Sequence[Episode],
    criterion: Criterion,
    *,
    names: Sequence[str] | None = None,
    value_label: str = "The expert's value",
    reason_label: str | None = "The expert's reason",
    max_tokens: int,
) -> tuple[list[str], bool]:
    """Write what experts said on one example: the value of most of them, and each one's words."""
    lines: list[str] = []
    is_cut = False
    several = len(episodes) > 1
    for place, episode in enumerate(episodes):
        name = f"{names[place] if names else place + 1}. " if several else ""
        if episode.value is not None:
            lines.append(f"{name}{value_label}: {criterion.scale.show(episode.value)}")
        if episode.rationale is not None:
            is_cut = is_cut or estimate_tokens(episode.rationale) > max_tokens
            words = fence("rationale", episode.rationale, max_tokens=max_tokens)
            label = f"{name}{reason_label}:\n" if reason_label else name
            lines.append(f"{label}{words}")
    value = majority_value(episodes)
    if several and value is not None:
        lines.append(f"The value that counts here: {criterion.scale.show(value)}")
    return lines, is_cut


def _share(sizes: dict[str, int], budget: int) -> dict[str, int]:
    """Divide a budget: the smallest parts get what they need, the largest share the rest."""
    limits: dict[str, int] = {}
    for left, name in enumerate(sorted(sizes, key=lambda one: sizes[one])):
        share = budget // (len(sizes) - left)
        limits[name] = min(sizes[name], share)
        budget -= limits[name]
    return limits
