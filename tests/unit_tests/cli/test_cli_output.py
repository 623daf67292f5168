"""What goes to a terminal."""

import io
import json
import sys
from typing import Any

import pytest

from memalign_graph.cli.output import Output, clean, one_line, to_json_text, without_secrets

EVIL = "\x1b[2J \x07\x08\r\x9b31m \u202e\u2066 \x7f \x00"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_control_characters_are_spelt_out() -> None:
    assert clean("a\x1b[31mb") == "a\\x1b[31mb"
    assert clean("\u202e") == "\\u202e"
    assert clean("tab\tand\nline, ü, 漢字, 🙂") == "tab\tand\nline, ü, 漢字, 🙂"
    assert clean(EVIL).isprintable()


def test_one_line_is_one_line() -> None:
    assert one_line(" a\n\tb\x0b c ") == "a b c"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("abcd", 4) == "abcd"
    assert one_line("abc", 0) == "…"


@pytest.mark.parametrize("only_ascii", [True, False])
@pytest.mark.parametrize("indent", [None, 2])
def test_json_is_the_same_value_without_control_characters(only_ascii: Any, indent: Any) -> None:
    value = {"a": [EVIL, "ü\n\t\U0001f642"], EVIL: None}
    text = to_json_text(value, indent=indent, only_ascii=only_ascii)
    assert json.loads(text) == value
    assert text.replace("\n", "").isprintable()
    assert text.isascii() or not only_ascii


def test_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-1234567890")
    monkeypatch.setenv("SHORT_KEY", "a")
    assert without_secrets("bad key: sk-1234567890, a") == "bad key: ***, a"


def test_results_and_messages_go_apart(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    output.line("result")
    output.note("note")
    output.warn("careful")
    output.error("no")
    out, err = capsys.readouterr()
    assert out == "result\n"
    assert err == "memalign: note\nmemalign: warning: careful\nmemalign: error: no\n"


def test_quiet_keeps_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(quiet=True)
    output.note("note")
    output.progress("judged", 2, 2)
    output.warn("careful")
    assert capsys.readouterr().err == "memalign: warning: careful\n"


def test_progress_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    for done in range(4):
        output.progress("judged", done, 3)
    output.progress("nothing", 0, 0)
    assert capsys.readouterr().err == "memalign: judged 3 of 3\n"


def test_progress_at_a_terminal_stands_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    output = Output()
    output.progress("consolidate", 10, 10)
    output.progress("x", 1, 2)
    output.note("done")
    first, second = "memalign: consolidate 10 of 10", "memalign: x 1 of 2"
    assert terminal.getvalue() == f"\r{first}\r{second.ljust(len(first))}\nmemalign: done\n"


def test_what_the_encoding_has_no_place_for(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    Output().line("Zoë \udcff")
    Output().document({"a": "Zoë"})
    sys.stdout.flush()
    first, rest = raw.getvalue().split(b"\n", 1)
    assert first == b"Zo\\xeb \\udcff"
    assert json.loads(rest) == {"a": "Zoë"}
