"""Shows the reference what the package makes while it runs: functions with their async twins.

`recall, arecall = sync_async_methods(_recall)` has no docstring of its own in the source.
"""

import ast
from typing import Any

from griffe import Docstring, Extension, Function, Parameters

_MAKERS = ("sync_async_methods", "sync_async_functions", "both")


class Twins(Extension):
    """Gives each pair the parameters and the words of the operation that it is made of."""

    def on_members(self, *, node: Any, obj: Any, **_: Any) -> None:
        """Add the pairs to a class or a module."""
        for assigned in getattr(node, "body", ()):
            match assigned:
                case ast.Assign(
                    targets=[ast.Tuple(elts=[ast.Name(name), ast.Name(twin)])],
                    value=ast.Call(func=ast.Name(maker), args=[ast.Name(operation)]),
                ) if maker in _MAKERS:
                    made_of = obj.members[operation]
                    obj.set_member(name, _function(name, made_of, made_of.docstring.value))
                    words = f"Async twin of `{name}`."
                    obj.set_member(twin, _function(twin, made_of, words, {"async"}))


def _function(name: str, made_of: Any, words: str, labels: Any = ()) -> Function:
    function = Function(
        name,
        parameters=Parameters(*(one for one in made_of.parameters if one.name != "io")),
        returns=made_of.returns,
        lineno=made_of.lineno,
        endlineno=made_of.endlineno,
    )
    told = made_of.docstring
    options = told.parser_options
    function.docstring = Docstring(
        words, parent=function, parser=told.parser, parser_options=options
    )
    function.labels |= {*labels}
    return function
