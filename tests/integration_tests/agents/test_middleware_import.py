"""The package without langchain: all of it works but what needs langchain, which says so."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
HIDDEN = """
import sys

class Hides:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "langchain":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hides())
"""
WAYS = (
    "from memalign_graph import QualityGateMiddleware",
    "import memalign_graph; memalign_graph.QualityGateMiddleware",
    "from memalign_graph.agents import QualityGateMiddleware",
)


def run(code: str, before: str = HIDDEN) -> list[str]:
    """Run code where langchain can't be imported; returns the lines it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", before + code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_package_is_imported_and_gates_are_built_without_langchain() -> None:
    code = """
import memalign_graph
from memalign_graph import Criterion, create_quality_gate_tool
tool = create_quality_gate_tool(Criterion(name="tone", instructions="Kind?"))
print(tool.name, hasattr(memalign_graph, "QualityGate"))
"""
    assert run(code) == ["check_quality False"]


def test_middleware_says_what_to_install() -> None:
    code = f"""
for way in {WAYS!r}:
    try:
        exec(way)
    except ImportError as error:
        print(type(error.__cause__).__name__, str(error))
"""
    told = "needs the package langchain: pip install 'memalign-graph[agents]'."
    assert run(code) == [f"ModuleNotFoundError QualityGateMiddleware {told}"] * 3


def test_star_import_works_without_langchain() -> None:
    assert run("from memalign_graph import *\nprint(Criterion.__name__)") == ["Criterion"]


def test_package_does_not_import_langchain_until_it_is_asked_to() -> None:
    code = """
import sys
import memalign_graph
print("langchain" in sys.modules)
print(memalign_graph.QualityGateMiddleware.__name__, "langchain" in sys.modules)
"""
    assert run(code, before="") == ["False", "QualityGateMiddleware True"]
