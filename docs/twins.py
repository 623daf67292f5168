"""Documents pairs of blocking and async functions, which the package makes when it is imported.

In the source, `recall, arecall = sync_async_methods(_recall)` has neither parameters nor docstring.
"""

import ast
from typing import Any

from griffe import Docstring, Extension, Function, Parameters

_MAKERS = ("sync_async_methods", "sync_async_functions", "both")


class Twins(Extension):
    """Gives each pair the parameters and the docstring of its operation."""

    def on_members(self, *, node: Any, obj: Any, **_: Any) -> None:
        """Add the pairs to a class or a module."""
        for assigned in getattr(node, "body", ()):
            match assigned:
                case ast.Assign(
                    targets=[ast.Tuple(elts=[ast.Name(name), ast.Name(twin)])],
                    value=ast.Call(func=ast.Name(maker), args=[ast.Name(operation)]),
                ) if maker in _MAKERS and obj.members[operation].docstring:
                    made_of = obj.members[operation]
                    obj.set_member(name, _function(name, made_of, made_of.docstring.value))
                    words = f"Async twin of `{name}`."
                    obj.set_member(twin, _function(twin, made_of, words, {"async"}))


def _function(name: str, made_of: Any, words: str, labels: Any = ()) -> Function:
    function = Function(
        name,
        parameters=Parameters(*(each for each in made_of.parameters if each.name != "io")),
        returns=made_of.returns,
        lineno=made_of.lineno,
        endlineno=made_of.endlineno,
    )
    source = made_of.docstring
    function.docstring = Docstring(
        words, parent=function, parser=source.parser, parser_options=source.parser_options
    )
    function.labels |= {*labels}
    return function
