"""Helpers for tests of the command line: a folder, and commands run in it."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command

from memalign_graph import Criterion, JudgeMemory, create_review_graph
from memalign_graph.cli import main
from memalign_graph.local import open_local_store
from tests.loopback import LoopbackServer

CRITERION = Criterion(
    name="support_tone", instructions="Is the reply appropriate for the customer?"
)
CRITERION_YAML = """\
name: support_tone
instructions: Is the reply appropriate for the customer?
scale: boolean
"""
ANN: dict[str, Any] = {
    "inputs": "My order never came.",
    "outputs": "Check the tracking page.",
    "value": False,
    "rationale": "Too cold: it must say sorry first.",
    "author": "ann",
    "id": "f-1",
}
BOB: dict[str, Any] = {
    "inputs": "The cup arrived broken.",
    "outputs": "Send us a photo.",
    "value": True,
    "rationale": "Short and to the point.",
    "author": "bob",
    "id": "f-2",
}


@dataclass(frozen=True)
class Ran:
    """The result of a command."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Stdout as one JSON document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> str:
        """The error line on stderr."""
        [line] = [line for line in self.err.splitlines() if "memalign: error: " in line]
        return line.partition("memalign: error: ")[2]

    @property
    def refusal(self) -> str:
        """The error line of a command that was refused for a mistake in it."""
        assert (self.status, self.out) == (2, "")
        return self.error


@dataclass
class Shell:
    """A folder, and commands run in it."""

    folder: Path
    server: LoopbackServer
    capture: pytest.CaptureFixture[str]
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str) -> Ran:
        """Run a command in this process."""
        self.capture.readouterr()
        status = main(list(arguments))
        out, err = self.capture.readouterr()
        assert "Traceback" not in err, err
        return Ran(int(status), out, err)

    def memory(self, action: str, *arguments: str) -> Ran:
        return self.run("memory", action, "-c", "tone.yaml", *arguments)

    def align(self, *records: Mapping[str, Any], options: Sequence[str] = ()) -> Ran:
        self.write_lines("feedback.jsonl", *records)
        return self.run("align", "-c", "tone.yaml", "-f", "feedback.jsonl", *options)

    def judge(self, *records: Mapping[str, Any], options: Sequence[str] = ()) -> Ran:
        self.write_lines("examples.jsonl", *records)
        return self.run("judge", "-c", "tone.yaml", "-e", "examples.jsonl", *options)

    def settings(self, **sections: Any) -> None:
        """Add judge or alignment settings to the criterion file."""
        lines = [f"{name}: {json.dumps(section)}\n" for name, section in sections.items()]
        self.write("tone.yaml", CRITERION_YAML + "".join(lines))

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def write_lines(self, name: str, *records: Mapping[str, Any]) -> Path:
        return self.write(name, "".join(json.dumps(record) + "\n" for record in records))

    def write_csv(self, name: str, *records: Mapping[str, Any]) -> Path:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
        return self.write(name, text.getvalue())

    def opened(self, name: str = "memalign.db", **options: Any) -> Any:
        """Guidelines, episodes and version of the memory in a file."""
        with open_local_store(self.folder / name) as store:
            memory = JudgeMemory(store, CRITERION, embeddings="local", **options)
            return memory.guidelines(), memory.episodes(), memory.version()

    def review_on_a_thread(self, store: Any, checkpointer: Any) -> None:
        """Judge a case on the thread `t-1`, and answer as ann."""
        models: Any = {"model": self.server.chat_model(), "embeddings": self.server.embedder()}
        builder = create_review_graph(CRITERION, **models)
        graph = builder.compile(store=store, checkpointer=checkpointer)
        config: Any = {"configurable": {"thread_id": "t-1"}}
        graph.invoke({"inputs": ANN["inputs"], "outputs": ANN["outputs"]}, config)
        graph.invoke(Command(resume={"rationale": "Too cold.", "author": "ann"}), config)

    def process(self, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        """Start a command in a new process."""
        return subprocess.Popen(
            [sys.executable, "-m", "memalign_graph.cli", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONUNBUFFERED": "", **self.environment},
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            text=True,
            **options,
        )

    def ids(self) -> dict[str, str]:
        """Episode ids by author, and the guideline's id under `guideline`."""
        listed = self.memory("list", "--json").document
        ids = {episode["author"]: episode["id"] for episode in listed["episodes"]}
        [guideline] = listed["guidelines"]
        return {**ids, "guideline": guideline["id"]}
