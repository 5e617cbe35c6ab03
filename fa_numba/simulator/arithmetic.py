"""Floating-point operations, counted: a kernel's function compiled anew, with a call around each operation.

Kernels compute with plain NumPy numbers, which count nothing. So the traced launch runs a copy of the function, made
from its syntax tree, in which ``a * b`` on line 7 reads ``flop(7, a * b)`` and ``s[i] += x`` reads
``add_to(7, s, i, add, x)``. Lines stay where they are, results are the same bits, and an untraced launch knows nothing
of it.

What counts is +, -, *, / and the like with a floating-point result, so a multiply-add counts as two. Signs,
comparisons, ``max`` and the functions of ``math`` do not count.
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import operator
import textwrap
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np

_FUTURES = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
_OPERATORS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
}
_FLOATS = (float, np.floating)


class Arithmetic:
    """The counter of a launch.

    Parameters
    ----------
    add : callable
        Given code, line and number: counts so many operations of the running thread.

    Attributes
    ----------
    is_complete : bool
        Whether the source of every function was found.
    """

    def __init__(self, add: Callable[[CodeType, int, int], None]):
        self._add = add
        self.is_complete = True

    def counting(self, code: CodeType) -> tuple[CodeType, dict[str, Any]]:
        """Return a function's code with its operations counted, and what it needs among its globals.

        The code as it is, and nothing, if its source cannot be found.
        """
        counting = counting_code(code)
        if counting is None:
            self.is_complete = False
            return code, {}
        return counting, self._names(counting)

    def _names(self, code: CodeType) -> dict[str, Any]:
        """Return the counting functions by names with a dot, which no source can have."""
        add = self._add

        def flop(line: int, result: Any) -> Any:
            if isinstance(result, _FLOATS):
                add(code, line, 1)
            return result

        def add_to(line: int, array: Any, index: Any, operation: Any, value: Any) -> None:
            array[index] = flop(line, operation(array[index], value))

        functions = {f"lens.{name}": getattr(operator, name) for name in _OPERATORS.values()}
        return {"lens.flop": flop, "lens.add_to": add_to, **functions}


@functools.lru_cache(maxsize=1024)
def counting_code(code: CodeType) -> CodeType | None:
    """Compile a function's source anew, with calls that count; None if there is no source, or not of one function."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError):
        return None
    function = tree.body[0]
    if len(tree.body) != 1 or not isinstance(function, ast.FunctionDef) or function.name != code.co_name:
        return None
    function.decorator_list = []
    ast.increment_lineno(tree, code.co_firstlineno - 1)
    function.body = [_Counting().visit(statement) for statement in function.body]
    tree.body = [_enclosing(function, code.co_freevars)]
    flags = code.co_flags & _FUTURES
    module = compile(ast.fix_missing_locations(tree), code.co_filename, "exec", flags=flags, dont_inherit=True)
    return _code_named(_code_named(module, "_enclosing"), code.co_name)


def _enclosing(function: ast.FunctionDef, free: tuple[str, ...]) -> ast.FunctionDef:
    """Wrap a function, so that its free variables are free again."""
    (outer,) = ast.parse(f"def _enclosing({', '.join(free)}):\n    pass").body
    outer.body = [function]
    return outer


def _code_named(code: CodeType, name: str) -> CodeType:
    return next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name)


class _Counting(ast.NodeTransformer):
    """Puts a call around each operation."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return _call("lens.flop", [node], node) if type(node.op) in _OPERATORS else node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        target = node.target
        if type(node.op) not in _OPERATORS or isinstance(target, ast.Attribute):
            return node
        if isinstance(target, ast.Name):
            before = ast.copy_location(ast.Name(target.id, ast.Load()), target)
            result = ast.copy_location(ast.BinOp(before, node.op, node.value), node)
            return ast.copy_location(ast.Assign([target], _call("lens.flop", [result], node)), node)
        operation = ast.copy_location(ast.Name(f"lens.{_OPERATORS[type(node.op)]}", ast.Load()), node)
        call = _call("lens.add_to", [target.value, target.slice, operation, node.value], node)
        return ast.copy_location(ast.Expr(call), node)


def _call(name: str, arguments: list[ast.expr], place: ast.AST) -> ast.Call:
    function = ast.copy_location(ast.Name(name, ast.Load()), place)
    line = ast.copy_location(ast.Constant(place.lineno), place)
    return ast.copy_location(ast.Call(function, [line, *arguments], []), place)
