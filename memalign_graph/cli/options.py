"""Options that several commands share; each is declared once."""

import asyncio
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, is_dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from memalign_graph.cli.files import CriterionFile, check_database, has_table, load_criterion
from memalign_graph.cli.terminal import Terminal
from memalign_graph.errors import InvalidInputError
from memalign_graph.local.stores import is_postgres, open_store, without_secrets

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

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


_DOCUMENTED = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
"""An option in the section `Options:` of a docstring."""


def as_command(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """Make a command of a function: its options are documented under `Options:` in its docstring.

    A parameter that is a dataclass becomes an option for each of its fields.
    """
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    text, helps = _documentation(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            fields = inspect.signature(groups[name]).parameters.values()
            options += [_documented(field, _documentation(groups[name])[1]) for field in fields]
        else:
            options.append(_documented(parameter, helps))

    def run(**values: Any) -> int | None:
        for name, group in groups.items():
            names = inspect.signature(group).parameters
            values[name] = group(**{name: values.pop(name) for name in names})
        return function(**values)

    run.__name__, run.__doc__ = function.__name__, text
    run.__annotations__ = {option.name: option.annotation for option in options}
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined] # read by typer
    return run


def _documentation(documented: Any) -> tuple[str, dict[str, str]]:
    """Split a docstring into its text, and the help of each option."""
    text, _, options = (inspect.getdoc(documented) or "").partition("\nOptions:\n")
    return text, {name: " ".join(lines.split()) for name, lines in _DOCUMENTED.findall(options)}


def _documented(option: inspect.Parameter, helps: dict[str, str]) -> inspect.Parameter:
    kind = option.annotation
    if option.name in helps:
        kind, info = get_args(kind) if hasattr(kind, "__metadata__") else (kind, typer.Option())
        info = copy(info)
        info.help = helps[option.name]
        kind = Annotated[kind, info]
    return option.replace(kind=option.KEYWORD_ONLY, annotation=kind)


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


@dataclass(frozen=True)
class MemoryLocation:
    """The memory that a command uses.

    Options:
        memory: SQLite file of the memory, or the postgresql:// URL of its database.
        namespace: Namespace of the memory within its database, such as shop.emea; by default
            memalign.
    """

    criterion: CriterionOption
    memory: Annotated[
        str, typer.Option("--memory", "-m", metavar="FILE|URL", envvar="MEMALIGN_STORE")
    ] = DEFAULT_MEMORY
    namespace: str | None = None

    def __str__(self) -> str:
        name, namespace = self.criterion.criterion.name, ".".join(self.context["namespace"])
        return f"{without_secrets(self.memory)} (namespace {namespace}, criterion {name})"

    @property
    def context(self) -> dict[str, Any]:
        """The context of a graph's run on it."""
        return {"namespace": ["memalign"] if self.namespace is None else self.namespace.split(".")}

    def check(self, *, must_exist: bool) -> None:
        """Check that it can be opened, without creating or changing it."""
        from memalign_graph.memory.facts import check_namespace

        if self.namespace is None and self.criterion.judge.get("require_namespace"):
            raise InvalidInputError("--namespace: give one, as --criterion has require_namespace.")
        with option_errors():
            check_namespace(self.context["namespace"])
        check_database(self.memory)
        if must_exist and not has_table(self.memory, "store"):
            raise InvalidInputError(
                f"--memory: {without_secrets(self.memory)} has no memory: `memalign align` makes "
                "one, and `memalign judge` with keep_judgments."
            )
        if sys.platform == "win32" and is_postgres(self.memory):
            # psycopg cannot connect asynchronously in the default event loop.
            asyncio.set_event_loop_policy(asyncio.WindowsSelectorEventLoopPolicy())

    def memory_in(self, store: "BaseStore", embeddings: Any) -> "JudgeMemory":
        from memalign_graph.memory.judge_memory import JudgeMemory

        return JudgeMemory(store, self.criterion.criterion, **self.context, embeddings=embeddings)

    @contextmanager
    def open(self, *, may_create: bool = False, embeddings: Any = None) -> Iterator["JudgeMemory"]:
        """Open the memory; unless `may_create`, it must not be empty."""
        from memalign_graph.models import models_from_environment

        self.check(must_exist=not may_create)
        chosen = embeddings or self.criterion.judge.get("embeddings")
        with open_store(self.memory) as store:
            memory = self.memory_in(store, chosen or models_from_environment()[1])
            if not (may_create or memory.history()):
                heads = store.list_namespaces(suffix=("head",), limit=1000)
                memories = ", ".join(sorted(".".join(head[:-1]) for head in heads))
                raise InvalidInputError(
                    f"--memory: nothing was learned in {self}. It has: {memories or 'nothing'}. "
                    "Check --namespace and --criterion, or learn from experts with `memalign "
                    "review`, or from a file with `memalign align`."
                )
            yield memory


@dataclass(frozen=True)
class JudgeFlags:
    """Settings of the judge that override those of the criterion's file.

    Options:
        model: Chat model that judges.
        embeddings: Embeddings that find similar cases.
        k: Number of similar cases that the judge is shown.
    """

    model: Annotated[str | None, typer.Option(metavar="NAME")] = None
    embeddings: Annotated[str | None, typer.Option(metavar="NAME")] = None
    k: Annotated[int | None, typer.Option("--k")] = None

    def judge(self, file: CriterionFile, terminal: Terminal) -> "Judge":
        """Make the judge, check its models and print their names."""
        from memalign_graph import models
        from memalign_graph.settings import Judge

        flags = {name: value for name, value in asdict(self).items() if value is not None}
        chosen = dict(zip(("model", "embeddings"), models.models_from_environment(), strict=True))
        names = {**file.setting_names("judge"), **{name: flag_of(name) for name in flags}}
        with option_errors(**names):
            judge = Judge(criterion=file.criterion, **{**chosen, **file.judge, **flags})
            models.resolve_chat_model(judge.model)
            models.resolve_embeddings(judge.embeddings)
        if judge.distill_model:
            with option_errors(model=names["distill_model"]):
                models.resolve_chat_model(judge.distill_model)
        terminal.note(f"chat model {judge.model}, embeddings {judge.embeddings}")
        return judge
