"""Small changes that a machine makes of a source: operators, constants, fields, statements."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitAnd,),
}
"""What may stand in the place of an operator."""

COMPUTED = (ast.Call, ast.BinOp, ast.Name, ast.Subscript, ast.IfExp)
"""Answers that a mutant replaces by 0; other answers are constants and conditions, changed as such."""

IDLE = ("fail_point", "pause")
"""Calls that do nothing in interpreted kernels: a mutant without one is the same program."""


class Fields(NamedTuple):
    """What is known of the names in `layout`."""

    near: Mapping[str, tuple[str, ...]] = {}
    """Those whose values come next to a name's own, among those with the same prefix."""
    zeros: Collection[str] = ()
    """Names whose value is 0: it makes no difference whether they are added or subtracted."""


class Key(NamedTuple):
    """What a mutant is known by, whatever else changes in its file."""

    file: str
    """Below `simpler_ref`, e.g. ``jit/ring.py``."""
    function: str
    before: str
    after: str
    nth: int = 0
    """How many changes of the same words come before it in the function."""


class Place(NamedTuple):
    """A place in a tree, and what stands there, or will stand there in a mutant."""

    node: ast.AST
    field: str
    index: int | None
    what: ast.AST


class Mutant(NamedTuple):
    """A source with one change in one function."""

    key: Key
    kind: str
    line: int
    text: str
    """The docstring of the function."""
    tree: ast.Module
    change: Place


NO_FIELDS = Fields()


# ---------------------------------------------------------------- finding
def mutants(file: str, source: str, fields: Fields = NO_FIELDS) -> Iterator[Mutant]:
    """Yield all mutants of a file, in the order of its lines."""
    tree = ast.parse(source)
    seen: Counter[tuple[str, ...]] = Counter()
    for name, function in functions(tree):
        text = ast.get_docstring(function) or ""
        for place in statements(function):
            before = _first_line(place.what)
            for kind, change in _changes(place, fields):
                with made(change):
                    after = "pass" if kind == "statement" else _first_line(place.what)
                key = Key(file, name, before, after)
                nth = seen[key]
                seen[key] += 1
                line = place.what.lineno
                yield Mutant(key._replace(nth=nth), kind, line, text, tree, change)


def functions(tree: ast.AST, above: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield all functions below a node, those in classes and in functions too, with their names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield above + node.name, node
        named = isinstance(node, (ast.FunctionDef, ast.ClassDef))
        if named or isinstance(node, ast.stmt):
            yield from functions(node, f"{above}{node.name}." if named else above)


def statements(node: ast.AST) -> Iterator[Place]:
    """Yield the statements of a function, not those of functions in it."""
    for field in ("body", "orelse", "handlers", "finalbody"):
        for index, child in enumerate(getattr(node, field, ())):
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)) or _says_nothing(child):
                continue
            if isinstance(child, ast.stmt):
                yield Place(node, field, index, child)
            yield from statements(child)


def _says_nothing(node: ast.AST) -> bool:
    """Say whether a statement is a text or an idle call."""
    if not isinstance(node, ast.Expr):
        return False
    call = node.value
    idle = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in IDLE
    return idle or (isinstance(call, ast.Constant) and isinstance(call.value, str))


def _first_line(statement: ast.stmt) -> str:
    return ast.unparse(statement).splitlines()[0]


def _expressions(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Yield each part of a statement's own expressions, and where it hangs."""
    for field, value in ast.iter_fields(node):
        if field == "annotation":
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not isinstance(child, (ast.stmt, ast.ExceptHandler)):
                yield node, field, index, child
                yield from _expressions(child)


# ---------------------------------------------------------------- changing
def _changes(place: Place, fields: Fields) -> Iterator[tuple[str, Place]]:
    statement = place.what
    for parent, field, index, node in _expressions(statement):
        right = getattr(parent, "right", None)
        if field == "op" and isinstance(right, ast.Attribute) and right.attr in fields.zeros:
            continue
        for kind, new in _instead(node, fields):
            yield kind, Place(parent, field, index, new)
    if isinstance(statement, (ast.If, ast.While)) and not _is_negated_otherwise(statement.test):
        kind = "branches" if statement.orelse else "condition"
        yield kind, Place(statement, "test", None, ast.UnaryOp(ast.Not(), statement.test))
    if isinstance(statement, ast.Return) and isinstance(statement.value, COMPUTED):
        yield "return", Place(statement, "value", None, ast.Constant(0))
    if _can_go(statement):
        never = ast.If(ast.Constant(False), [statement], [])  # a generator stays one
        yield "statement", Place(place.node, place.field, place.index, never)


def _is_negated_otherwise(test: ast.expr) -> bool:
    """Say whether a change of a part of a condition negates the whole."""
    if isinstance(test, ast.UnaryOp):
        return isinstance(test.op, ast.Not)
    return isinstance(test, ast.Constant) or (isinstance(test, ast.Compare) and len(test.ops) == 1)


def _instead(node: ast.AST, fields: Fields) -> Iterator[tuple[str, ast.AST]]:
    """Yield what may stand in the place of a part of an expression."""
    for operator in OPERATORS.get(type(node), ()):
        yield "comparison" if isinstance(node, ast.cmpop) else "operator", operator()
    if isinstance(node, ast.BoolOp):
        for i in range(len(node.values)):
            left = node.values[:i] + node.values[i + 1 :]
            yield "operand", left[0] if len(left) == 1 else ast.BoolOp(node.op, left)
    elif isinstance(node, ast.IfExp):
        yield "branches", ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "condition", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "constant", ast.Constant(node.value + 1)
        yield "constant", ast.Constant(node.value - 1)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        if node.value.id == "L":
            for name in fields.near.get(node.attr, ()):
                yield "field", ast.Attribute(node.value, name, node.ctx)
    elif isinstance(node, ast.Name) and node.id in ("min", "max"):
        yield "operator", ast.Name("max" if node.id == "min" else "min", node.ctx)


def _can_go(statement: ast.stmt) -> bool:
    """Say whether a statement can be left out without a name being missing then."""
    if isinstance(statement, ast.Assign):
        return not any(isinstance(target, (ast.Name, ast.Tuple)) for target in statement.targets)
    kinds = (ast.Expr, ast.AugAssign, ast.Break, ast.Continue, ast.Return, ast.Raise)
    return isinstance(statement, kinds)


@contextmanager
def made(change: Place) -> Iterator[None]:
    """Make a change in its tree, and take it back."""
    node, field, index, what = change
    old = getattr(node, field)
    setattr(node, field, what if index is None else [*old[:index], what, *old[index + 1 :]])
    try:
        yield
    finally:
        setattr(node, field, old)


def fields_of(names: Mapping[str, int]) -> Fields:
    """Return what is to be known of names with these values."""

    def prefix(name: str) -> str:
        return name.split("_")[0] if "_" in name else ""

    near = {}
    for name, value in names.items():
        like = [other for other in names if prefix(other) == prefix(name)]
        smaller = max((o for o in like if names[o] < value), key=lambda o: names[o], default=None)
        larger = min((o for o in like if names[o] > value), key=lambda o: names[o], default=None)
        near[name] = tuple(o for o in (smaller, larger) if o is not None)
    return Fields(near, {name for name, value in names.items() if value == 0})
