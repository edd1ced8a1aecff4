"""Errors of the extension about types of arguments, in the words of the package."""

from __future__ import annotations

import functools
import inspect
import reprlib
from types import FunctionType
from typing import Any

_RAW = "incompatible function arguments"


def _named(function: Any, args: tuple[Any, ...], keys: dict[str, Any]) -> str:
    """Returns the message for arguments of wrong types: what the function takes, and what it got."""
    signature = inspect.signature(function)
    given: dict[str, Any] = {}
    for name, value in signature.bind(*args, **keys).arguments.items():
        if name in ("self", "cls"):
            continue
        variable = signature.parameters[name].kind == inspect.Parameter.VAR_KEYWORD
        given.update(value if variable else {name: value})
    expected = [f"{name}: {each.annotation}" for name, each in signature.parameters.items() if name in given]
    got = ", ".join(f"{name}={reprlib.repr(value)}" for name, value in given.items())
    return f"{function.__qualname__}: wrong type of an argument: expected {', '.join(expected) or 'others'}, got {got}"


def _plain(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **keys: Any) -> Any:
        try:
            return function(*args, **keys)
        except TypeError as error:
            if _RAW not in str(error):
                raise
            raise TypeError(_named(function, args, keys)) from None

    return call


def with_plain_errors(public: Any) -> Any:
    """Returns a function, or a class with its methods, whose errors about types do not show the extension."""
    if isinstance(public, FunctionType):
        return _plain(public)
    if isinstance(public, type) and public.__module__.startswith("sluice."):
        for name, member in list(vars(public).items()):
            if isinstance(member, FunctionType) and (name == "__init__" or not name.startswith("_")):
                setattr(public, name, _plain(member))
            elif isinstance(member, classmethod):
                setattr(public, name, classmethod(_plain(member.__func__)))
    return public
