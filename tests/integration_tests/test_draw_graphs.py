"""The pictures in the README are those of the graphs."""

from tests.draw_graphs import GRAPHS, README, with_pictures


def test_readme_shows_every_graph_as_it_is() -> None:
    text = README.read_text(encoding="utf-8")
    assert with_pictures(text) == text, "draw them anew: make pictures"
    assert all(f"<!-- graph: {name} -->" in text for name in GRAPHS)
