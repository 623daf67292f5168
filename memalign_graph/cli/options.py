"""Options that several commands share; each is declared once."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memalign_graph.cli.files import (
    CriterionFile,
    check_database,
    has_table,
    load_criterion,
)
from memalign_graph.cli.terminal import Terminal
from memalign_graph.errors import InvalidInputError
from memalign_graph.local.stores import without_secrets

if TYPE_CHECKING:
    from memalign_graph.memory.judge_memory import JudgeMemory
    from memalign_graph.settings import Judge


class Status(IntEnum):
    """The exit statuses; `memalign --help` explains them."""

    DONE = 0
    THRESHOLD_MISSED = 1
    USAGE_ERROR = 2
    MODEL_FAILED = 3
    PARTIAL = 4
    INTERNAL_ERROR = 70
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


@contextmanager
def option_errors(**options: str) -> Iterator[None]:
    """Name the option in errors that name the field it sets; by default it has the field's name."""
    try:
        yield
    except InvalidInputError as error:
        field, _, problem = str(error).partition(":")
        if not field.isidentifier():
            raise
        raise InvalidInputError(f"{options.get(field, flag_of(field))}:{problem}") from error


def flag_of(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def expand_option_groups(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Replace each parameter that is a dataclass by one option for each of its fields."""
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            options = inspect.signature(groups[name]).parameters.values()
            parameters += [option.replace(kind=option.KEYWORD_ONLY) for option in options]
        else:
            parameters.append(parameter)

    def run(**options: Any) -> int | None:
        for name, group in groups.items():
            names = inspect.signature(group).parameters
            options[name] = group(**{name: options.pop(name) for name in names})
        return command(**options)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # read by typer
    return run


def _criterion(path: str) -> CriterionFile:
    try:
        return load_criterion(path)
    except InvalidInputError as error:  # a ValueError, whose message typer does not show
        raise typer.TyperException(str(error)) from error


CriterionOption = Annotated[
    CriterionFile,
    typer.Option(
        "--criterion",
        "-c",
        metavar="FILE",
        envvar="MEMALIGN_CRITERION",
        parser=_criterion,
        help="File of the criterion: see `memalign --help`.",
    ),
]
Field = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD=COLUMN",
        help="Column of a field, such as value=label; outputs=A,B reads the two outputs of a "
        "pairwise criterion. May be repeated.",
    ),
]
MaxConcurrency = Annotated[
    int, typer.Option(min=1, help="Maximum number of concurrent model calls.")
]
CacheOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Database that keeps models' answers for the next run."),
]
DEFAULT_MEMORY = "memalign.db"


def check_field(field: list[str] | None, file: str | None) -> None:
    if field and not file:
        raise InvalidInputError("--field: no file with columns is read. Leave it out.")


@dataclass(frozen=True)
class MemoryLocation:
    """The memory that a command uses."""

    criterion: CriterionOption
    memory: Annotated[
        str,
        typer.Option(
            "--memory",
            "-m",
            metavar="FILE|URL",
            envvar="MEMALIGN_STORE",
            help="SQLite file of the memory, or the postgresql:// URL of its database.",
        ),
    ] = DEFAULT_MEMORY
    namespace: Annotated[
        str, typer.Option(help="Namespace of the memory within its database, such as shop.emea.")
    ] = "memalign"

    def __str__(self) -> str:
        name = self.criterion.criterion.name
        return f"{without_secrets(self.memory)} (namespace {self.namespace}, criterion {name})"

    @property
    def exists(self) -> bool:
        """Whether its database exists and has a store."""
        return has_table(self.memory, "store")

    @property
    def context(self) -> dict[str, Any]:
        """The context of a graph's run on it."""
        return {"namespace": self.namespace.split(".")}

    def check(self, *, must_exist: bool) -> None:
        """Check that it can be opened, without creating or changing it."""
        from memalign_graph.memory.facts import check_namespace

        with option_errors():
            check_namespace(self.context["namespace"])
        check_database(self.memory, "--memory", holds="store" if must_exist else None)

    @contextmanager
    def open(self, *, may_create: bool = False, embeddings: Any = None) -> Iterator["JudgeMemory"]:
        """Open the memory; unless `may_create`, it must not be empty."""
        from memalign_graph.local import open_store
        from memalign_graph.memory.judge_memory import JudgeMemory
        from memalign_graph.models import models_from_environment

        self.check(must_exist=not may_create)
        chosen = embeddings or self.criterion.judge.get("embeddings")
        embeddings = chosen or models_from_environment()[1]
        with open_store(self.memory) as store:
            memory = JudgeMemory(
                store, self.criterion.criterion, **self.context, embeddings=embeddings
            )
            if not (may_create or memory.history()):
                heads = store.list_namespaces(suffix=("head",), limit=1000)
                location = without_secrets(self.memory)
                if not heads:
                    raise InvalidInputError(
                        f"--memory: {location}: nothing was learned yet. Learn from experts with "
                        "`memalign review`, or from a file with `memalign align`."
                    )
                memories = ", ".join(sorted(".".join(head[:-1]) for head in heads))
                raise InvalidInputError(
                    f"--memory: {location} has no memory for namespace "
                    f"{self.namespace!r} and criterion {self.criterion.criterion.name!r}. It has: "
                    f"{memories}. Check --namespace and --criterion."
                )
            yield memory


@dataclass(frozen=True)
class JudgeFlags:
    """Settings of the judge that override those of the criterion's file."""

    model: Annotated[str | None, typer.Option(metavar="NAME", help="Chat model that judges.")] = (
        None
    )
    embeddings: Annotated[
        str | None, typer.Option(metavar="NAME", help="Embeddings that find similar cases.")
    ] = None
    k: Annotated[
        int | None, typer.Option("--k", help="Number of similar cases that the judge is shown.")
    ] = None

    def judge(self, file: CriterionFile, terminal: Terminal) -> "Judge":
        """Make the judge, check its models and print their names."""
        from memalign_graph import models
        from memalign_graph.settings import Judge

        flags = {name: value for name, value in asdict(self).items() if value is not None}
        chosen = dict(zip(("model", "embeddings"), models.models_from_environment(), strict=True))
        with option_errors(
            **{**file.setting_names("judge"), **{name: f"--{name}" for name in flags}}
        ):
            judge = Judge(criterion=file.criterion, **{**chosen, **file.judge, **flags})
            models.resolve_chat_model(judge.model)
            models.resolve_embeddings(judge.embeddings)
        if judge.distill_model:
            with option_errors(model=file.setting_names("judge")["distill_model"]):
                models.resolve_chat_model(judge.distill_model)
        terminal.note(f"chat model {judge.model}, embeddings {judge.embeddings}")
        return judge
