"""The pictures of the graphs are those of the graphs; that of a gate's events can be drawn."""

import pytest

from tests.draw_pictures import FOLDER, GRAPHS, events_picture, graph_picture


@pytest.mark.parametrize("name", GRAPHS)
def test_a_picture_shows_its_graph_as_it_is(name: str) -> None:
    drawn = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == graph_picture(name), "draw them anew: make pictures"


def test_the_events_of_a_gate_are_drawn_without_anything_from_elsewhere() -> None:
    picture = events_picture()
    assert "accepted" in picture
    assert "url(http" not in picture
