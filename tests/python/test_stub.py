"""gcomm/_native.pyi says what the extension has: mypy believes it."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import gcomm
from gcomm import _native


def _stub() -> ast.Module:
    return ast.parse((Path(gcomm.__file__).parent / "_native.pyi").read_text())


def _public(thing: Any) -> set[str]:
    return {name for name in vars(thing) if not name.startswith("_") or name == "__init__"}


def _declared(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    names: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = node
    return names


def _parameters(text: str) -> list[str]:
    # nanobind writes default values as \0, \1, ...
    (function,) = ast.parse(re.sub(r"\\\d+", "...", text) + ": ...").body
    assert isinstance(function, ast.FunctionDef)
    return [argument.arg for argument in function.args.args]


def test_names_are_the_extensions() -> None:
    declared = _declared(_stub().body)
    assert set(declared) == _public(_native)
    for name, node in declared.items():
        if isinstance(node, ast.ClassDef):
            methods = set(_declared(node.body))
            # Classes that nobody makes from Python have an __init__ that refuses.
            assert methods - {"__init__"} == _public(getattr(_native, name)) - {"__init__"}, name


def _functions() -> list[tuple[str, ast.FunctionDef, Any]]:
    found = []
    for name, node in _declared(_stub().body).items():
        thing = getattr(_native, name)
        if isinstance(node, ast.FunctionDef):
            found.append((name, node, thing))
        elif isinstance(node, ast.ClassDef):
            for inner, method in _declared(node.body).items():
                if isinstance(method, ast.FunctionDef) and not method.decorator_list:
                    found.append((f"{name}.{inner}", method, inspect.getattr_static(thing, inner)))
    return found


@pytest.mark.parametrize(
    ("node", "function"), [row[1:] for row in _functions()], ids=[row[0] for row in _functions()]
)
def test_parameters_are_the_extensions(node: ast.FunctionDef, function: Any) -> None:
    (signature,) = function.__nb_signature__
    text = signature[0] if isinstance(signature, tuple) else signature
    assert [argument.arg for argument in node.args.args] == _parameters(text)
