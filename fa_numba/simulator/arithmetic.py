"""Floating-point operations, counted: a kernel's function compiled anew, with a call around each operation.

Kernels compute with plain NumPy numbers, which count nothing. So the traced launch runs a copy of the function, made
from its syntax tree, in which ``a * b`` reads ``flop(a * b)`` and ``s[i] += x`` reads ``add_to(s, i, add, x)``. Lines
stay where they are, results are the same bits, and an untraced launch knows nothing of it.

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

    Attributes
    ----------
    flops : int
        Operations so far.
    is_complete : bool
        Whether the source of every function was found.
    """

    def __init__(self):
        self.flops = 0
        self.is_complete = True

    def names(self) -> dict[str, Any]:
        """Return what counting functions need among their globals; names with a dot, which no source can have."""
        functions = {f"lens.{name}": getattr(operator, name) for name in _OPERATORS.values()}
        return {"lens.flop": self._flop, "lens.add_to": self._add_to, **functions}

    def counting(self, code: CodeType) -> CodeType:
        """Return a function's code with its operations counted; as it is if its source cannot be found."""
        counting = counting_code(code)
        if counting is None:
            self.is_complete = False
        return counting or code

    def add(self, operations: int) -> None:
        """Count operations that the source writes as a call."""
        self.flops += operations

    def _flop(self, result: Any) -> Any:
        if isinstance(result, _FLOATS):
            self.flops += 1
        return result

    def _add_to(self, array: Any, index: Any, operation: Any, value: Any) -> None:
        array[index] = self._flop(operation(array[index], value))


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
    function.body = [_Counting().visit(statement) for statement in function.body]
    ast.increment_lineno(tree, code.co_firstlineno - 1)
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
    return ast.copy_location(ast.Call(function, arguments, []), place)
