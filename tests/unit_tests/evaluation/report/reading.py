"""What a page and a Markdown text hold, as a browser and GitHub read them."""

import re
from html.parser import HTMLParser

_VOID = frozenset({"meta", "col", "br", "link", "img", "input", "hr"})


class Page(HTMLParser):
    """Reads a page; fails where its elements are not properly nested."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> ends nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.tags}

    @property
    def text(self) -> str:
        """Everything that is read, with single blanks."""
        words = " ".join(data for tag, data in self.texts if tag != "style")
        return " ".join(words.replace("\u00a0", " ").split())


def outside_fences(markdown: str) -> list[str]:
    """The lines of a Markdown text that are Markdown; fails where a fence is not closed."""
    lines, fence = [], ""
    for line in markdown.split("\n"):
        ticks = re.match(r"`{3,}", line)
        if fence:
            if re.fullmatch(f"`{{{len(fence)},}}\\s*", line):
                fence = ""
        elif ticks:
            fence = ticks[0]
        else:
            lines.append(line)
    assert fence == ""
    return lines


def check_markdown(markdown: str) -> None:
    """Check that nothing in a text breaks out of where it stands."""
    lines = outside_fences(markdown)
    depth = 0
    columns = 0
    for line in lines:
        depth += line.count("<details>") - line.count("</details>")
        assert depth in {0, 1}
        tags = set(re.findall(r"<[^>]*>?", line))
        known = {"<br>", "<sub>", "</sub>", "<details>", "<summary>", "</summary>", "</details>"}
        assert tags <= known, line
        cells = len(re.findall(r"(?<!\\)\|", line))
        if line.startswith("|"):
            assert columns in {0, cells}, line
            columns = cells
        else:
            columns = 0
        assert not re.search(r"@\w|#\d|://|www\.", line), line
        assert not re.search(r"(?<!\\)[`\[\]$]", line), line
    assert depth == 0
