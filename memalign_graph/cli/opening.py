"""What commands that ask a model do first: everything that can be checked, checked."""

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from memalign_graph.cli.criteria import load_criterion
from memalign_graph.cli.options import CRITERION_VARIABLE
from memalign_graph.cli.output import Output
from memalign_graph.cli.places import choose_models, memory_path, read_namespace
from memalign_graph.cli.records import Records, read_records
from memalign_graph.errors import InvalidInputError
from memalign_graph.types import Criterion


@dataclass(frozen=True)
class Place:
    """Which memory is meant."""

    criterion: Criterion
    """What it is about."""

    path: Path
    """Its file."""

    namespace: tuple[str, ...]
    """Where it lies in the file."""

    def __str__(self) -> str:
        labels = ".".join(self.namespace)
        return f"{self.path} (namespace {labels}, criterion {self.criterion.name})"


def read_criterion(parsed: Namespace) -> Criterion:
    """Read the criterion that the command line names."""
    if not parsed.criterion:
        raise InvalidInputError(
            f"--criterion: say what is judged: name a YAML or JSON file, or set "
            f"{CRITERION_VARIABLE}."
        )
    return load_criterion(parsed.criterion)


def read_place(parsed: Namespace, *, must_exist: bool) -> Place:
    """Read which memory the command line means."""
    criterion = read_criterion(parsed)
    namespace = read_namespace(parsed.namespace)
    return Place(criterion, memory_path(parsed.memory, must_exist=must_exist), namespace)


def read_models(parsed: Namespace, output: Output) -> tuple[str, str]:
    """Choose the models, and say which."""
    model, embeddings = choose_models(parsed.model, parsed.embeddings)
    distill_model = getattr(parsed, "distill_model", None)
    if distill_model:
        choose_models(distill_model, embeddings)
    distils = f", distilled by {distill_model}" if distill_model else ""
    output.note(f"chat model {model}{distils}, embeddings {embeddings}")
    return model, embeddings


def read_named(parsed: Namespace, source: str, option: str, output: Output) -> Records:
    """Read a file of records by the options of the command line."""
    records = read_records(source, option, given=parsed.format, columns=parsed.field)
    if records.ignored:
        names = ", ".join(records.ignored)
        output.warn(f"{option}: not used: {names} (--field FIELD=COLUMN names what a column is).")
    return records
