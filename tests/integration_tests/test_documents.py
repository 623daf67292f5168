"""The documents' code and commands run, and their links have targets."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memalign_graph import models
from memalign_graph.cli import main
from tests.conftest import CRITERION
from tests.documents import PAGES, ROOT, blocks, without_blocks
from tests.loopback import LoopbackServer, Rule

SKILL = ROOT / "skills" / "add-quality-gate" / "SKILL.md"
LLMS = ROOT / "docs" / "llms.txt"
DOCUMENTS = [*ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md", *PAGES, SKILL, LLMS]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FILE = re.compile(r"(?<![\w/.])(?:docs|examples|tests)/[\w/-]+\.(?:py|md)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def _with(language: str) -> list[Path]:
    pages = [ROOT / "README.md", *PAGES, SKILL]
    return [page for page in pages if any(block.language == language for block in blocks(page))]


@pytest.fixture
def server(
    environment_server: LoopbackServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> LoopbackServer:
    for name in ("MEMALIGN_MODEL", "MEMALIGN_EMBEDDINGS", "MEMALIGN_CRITERION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return environment_server


@pytest.mark.parametrize("page", _with("python"), ids=lambda page: page.stem)
def test_code_runs_from_the_top_of_a_page_to_its_end(
    page: Path, server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, embeddings = server.chat_model(), server.embedder()
    monkeypatch.setattr(models, "models_from_environment", lambda: (model, embeddings))
    names: dict[str, Any] = {
        "criterion": CRITERION,
        "model": model,
        "embeddings": embeddings,
        "store": InMemoryStore(),
        "checkpointer": InMemorySaver(),
    }
    for number, (language, _, code) in enumerate(blocks(page)):
        if language == "python":
            exec(compile(code, f"{page.name}, block {number}", "exec"), names)  # noqa: S102 - ours


def test_quickstart_is_an_example_of_twenty_lines() -> None:
    code = next(text for language, _, text in blocks(ROOT / "README.md") if language == "python")
    assert code in (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20


@pytest.mark.parametrize("page", _with("bash"), ids=lambda page: page.stem)
def test_commands_run_on_the_files_that_a_page_shows(
    page: Path, server: LoopbackServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.rules.append(Rule(when=lambda request: "Sorry" not in request.text, value=False))
    for language, title, text in blocks(page):
        if title:
            (tmp_path / Path(title).name).write_text(text, encoding="utf-8")
        for line in text.replace("\\\n", "").splitlines() if language == "bash" else ():
            command, *arguments = shlex.split(line.partition(" > ")[0])
            assert command == "memalign"
            assert main(arguments) == 0, capsys.readouterr().err


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for file in _FILE.findall(text):
        assert (ROOT / file).exists(), file
    for link in _LINK.findall(without_blocks(document)):
        path, _, anchor = link.partition("#")
        if path.startswith(("http:", "https:")):
            continue
        target = document.parent / path if path else document
        assert target.exists(), link
        if anchor:
            headings = _HEADING.findall(without_blocks(target))
            plain = [re.sub(r"[^\w -]", "", heading) for heading in headings]
            slugs = [heading.lower().replace(" ", "-") for heading in plain]
            assert anchor in slugs, link


def test_description_on_a_package_index_has_no_relative_link() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.findall(r"^```.*?^```$", text, re.DOTALL | re.MULTILINE)
    for change in hook["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    links = _LINK.findall(text)
    assert links
    assert {link.partition(":")[0] for link in links} == {"https"}
    assert re.findall(r"^```.*?^```$", text, re.DOTALL | re.MULTILINE) == code


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES:
        assert page.relative_to(ROOT / "docs").as_posix() in navigation


def test_llms_txt_has_its_form_and_lists_every_page() -> None:
    title, _, quote, *_ = LLMS.read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"# \S+", title)
    assert quote.startswith("> ")
    listed = set(_LINK.findall(LLMS.read_text(encoding="utf-8")))
    pages = {page.name for page in PAGES if page.parent == LLMS.parent}
    assert pages <= listed


def test_skill_can_be_found_by_a_coding_agent() -> None:
    _, front, body = SKILL.read_text(encoding="utf-8").split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in front.splitlines())
    assert fields.keys() == {"name", "description"}
    assert fields["name"] == SKILL.parent.name
    assert 0 < len(fields["description"]) <= 1_024
    assert body.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_say_what_needs_a_clone(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    needs = re.findall(
        r"`make [a-z]+|examples/\w+\.py|python -m (?:benchmarks|tests)|tests/\w+/", text
    )
    assert not needs or "clone" in text, needs
