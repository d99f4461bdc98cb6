"""Small changes that a machine makes of a source: operators, constants, fields, statements."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType
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
"""Calls that do nothing in interpreted kernels: without them a mutant is none."""

Fields = Mapping[str, tuple[str, ...]]
"""Name in `layout` → names whose values come next to its own, among those with the same prefix."""


class Key(NamedTuple):
    """What a mutant is known by, whatever else changes in its file."""

    file: str
    function: str
    before: str
    after: str
    nth: int = 0
    """How many changes of the same words come before it in the function."""


class Change(NamedTuple):
    """A place in a tree, and what stands there in a mutant."""

    node: ast.AST
    field: str
    index: int | None
    new: object


class Place(NamedTuple):
    """A statement, and where it stands."""

    node: ast.AST
    field: str
    index: int
    statement: ast.stmt


class Mutant(NamedTuple):
    """A source with one change in one function."""

    key: Key
    kind: str
    lines: tuple[int, ...]
    """The lines of the statement that is changed, without those of the statements in it."""
    node: ast.FunctionDef
    text: str
    """The docstring of the function."""
    tree: ast.Module
    change: Change


# ---------------------------------------------------------------- finding
def mutants(file: str, source: str, fields: Fields) -> Iterator[Mutant]:
    """Yield all mutants of a file, in the order of its lines."""
    tree = ast.parse(source)
    seen: Counter[tuple[str, ...]] = Counter()
    for name, function in _functions(tree):
        text = ast.get_docstring(function) or ""
        for place in _statements(function):
            before = _first_line(place.statement)
            for kind, change in _changes(place, fields):
                with made(change):
                    gone = isinstance(change.new, ast.Pass)
                    after = "pass" if gone else _first_line(place.statement)
                key = Key(file, name, before, after)
                nth = seen[key]
                seen[key] += 1
                lines = _lines(place.statement)
                yield Mutant(key._replace(nth=nth), kind, lines, function, text, tree, change)


def _functions(tree: ast.AST, above: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield above + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{above}{node.name}.")
        elif isinstance(node, ast.If):
            yield from _functions(node, above)


def _statements(node: ast.AST) -> Iterator[Place]:
    """Yield the statements of a function, not those of functions in it."""
    for field in ("body", "orelse", "handlers", "finalbody"):
        for index, child in enumerate(getattr(node, field, ())):
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)) or _says_nothing(child):
                continue
            if isinstance(child, ast.stmt):
                yield Place(node, field, index, child)
            yield from _statements(child)


def _says_nothing(node: ast.AST) -> bool:
    """Say whether a statement is a text or an idle call."""
    if not isinstance(node, ast.Expr):
        return False
    call = node.value
    idle = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in IDLE
    return idle or (isinstance(call, ast.Constant) and isinstance(call.value, str))


def _first_line(statement: ast.stmt) -> str:
    return ast.unparse(statement).splitlines()[0]


def _lines(statement: ast.stmt) -> tuple[int, ...]:
    inner = [child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)]
    if getattr(statement, "body", None):
        last = max((getattr(child, "end_lineno", 0) for child in inner), default=0)
        return tuple(range(statement.lineno, max(last, statement.lineno) + 1))
    return tuple(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))


def _expressions(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Yield each part of a statement's own expressions, and where it hangs."""
    for field, value in ast.iter_fields(node):
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not isinstance(child, (ast.stmt, ast.ExceptHandler)):
                yield node, field, index, child
                yield from _expressions(child)


# ---------------------------------------------------------------- changing
def _changes(place: Place, fields: Fields) -> Iterator[tuple[str, Change]]:
    statement = place.statement
    for parent, field, index, node in _expressions(statement):
        for kind, new in _instead(node, fields):
            yield kind, Change(parent, field, index, new)
    if isinstance(statement, (ast.If, ast.While)) and not _is_negated_otherwise(statement.test):
        kind = "branches" if statement.orelse else "condition"
        yield kind, Change(statement, "test", None, ast.UnaryOp(ast.Not(), statement.test))
    if isinstance(statement, ast.Return) and isinstance(statement.value, COMPUTED):
        yield "return", Change(statement, "value", None, ast.Constant(0))
    if _can_go(statement):
        yield "statement", Change(place.node, place.field, place.index, ast.Pass())


def _is_negated_otherwise(test: ast.expr) -> bool:
    """Say whether a change of a part of a condition negates the whole."""
    if isinstance(test, ast.UnaryOp):
        return isinstance(test.op, ast.Not)
    return isinstance(test, ast.Constant) or (isinstance(test, ast.Compare) and len(test.ops) == 1)


def _instead(node: ast.AST, fields: Fields) -> Iterator[tuple[str, ast.AST]]:
    """Yield what may stand in the place of a part of an expression."""
    for operator in OPERATORS.get(type(node), ()):
        kind = "comparison" if isinstance(node, ast.cmpop) else "operator"
        yield kind, operator()
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
            for name in fields.get(node.attr, ()):
                yield "field", ast.Attribute(node.value, name, node.ctx)
    elif isinstance(node, ast.Name) and node.id in ("min", "max"):
        yield "operator", ast.Name("max" if node.id == "min" else "min", node.ctx)


def _can_go(statement: ast.stmt) -> bool:
    """Say whether a statement can be left out without a name being missing then."""
    if isinstance(statement, ast.Assign):
        return not any(isinstance(target, (ast.Name, ast.Tuple)) for target in statement.targets)
    kinds = (ast.Expr, ast.AugAssign, ast.Break, ast.Continue, ast.Return)
    return isinstance(statement, kinds)


@contextmanager
def made(change: Change) -> Iterator[None]:
    """Make a change in its tree, and take it back."""
    node, field, index, new = change
    old = getattr(node, field)
    value = new
    if index is not None:
        value = [*old[:index], new, *old[index + 1 :]]
    setattr(node, field, value)
    try:
        yield
    finally:
        setattr(node, field, old)


def neighbours(names: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Return for each field those with the next smaller and the next larger value and the same prefix."""

    def prefix(name: str) -> str:
        return name.split("_")[0] if "_" in name else ""

    found = {}
    for name, value in names.items():
        like = [other for other in names if prefix(other) == prefix(name)]
        smaller = max((o for o in like if names[o] < value), key=lambda o: names[o], default=None)
        larger = min((o for o in like if names[o] > value), key=lambda o: names[o], default=None)
        found[name] = tuple(o for o in (smaller, larger) if o is not None)
    return found


# ---------------------------------------------------------------- compiling
def code_of(mutant: Mutant, path: str) -> CodeType:
    """Compile a mutant; return the code of the function that is changed."""
    with made(mutant.change):
        module = compile(ast.fix_missing_locations(mutant.tree), path, "exec")
    return next(code for code in _codes(module) if is_of(code, mutant))


def _codes(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _codes(const)


def is_of(code: CodeType, mutant: Mutant) -> bool:
    """Say whether code was made from the function of a mutant, changed or not."""
    node = mutant.node
    first = min(part.lineno for part in (node, *node.decorator_list))
    return code.co_name == node.name and code.co_firstlineno == first
