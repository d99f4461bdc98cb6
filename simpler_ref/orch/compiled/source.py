"""An orchestration function's source on its way to the compiler.

Three things are changed, each in its line, so that line numbers stay the same:

- what the function takes from around it and may differ from run to run (arrays, handles, tensors,
  numbers, …) becomes a parameter: numba would copy it into the code;
- ``with orch.scope():`` becomes a begin and an end on every way out of the block;
- `ContinuousTensor.make` becomes a function, since compiled code has no classes.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dis
import enum
import inspect
import textwrap
import types as python_types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ...callables.handles import CallableHandle
from ...errors import OrchestrationError
from ...model.arguments import TaskArgs
from ...model.config import CallConfig
from ...model.tensor import ContinuousTensor

_VALUES = (
    bool,
    int,
    float,
    str,
    tuple,
    list,
    type(None),
    np.ndarray,
    np.generic,
    CallableHandle,
    ContinuousTensor,
    TaskArgs,
    CallConfig,
)


def is_value(thing: Any) -> bool:
    """Say whether something is handed to the compiled code at each run, rather than built into it."""
    return isinstance(thing, _VALUES) or hasattr(type(thing), "data_ptr")  # the last is torch's


def _is_constant(thing: Any) -> bool:
    return callable(thing) or isinstance(thing, (python_types.ModuleType, np.dtype))


class Chain(NamedTuple):
    """A captured name, and the attributes that follow it in the source."""

    name: str
    attributes: tuple[str, ...]
    line: int

    def text(self, used: int | None = None) -> str:
        """Return it as it is written, with so many of its attributes."""
        return ".".join((self.name, *self.attributes[:used]))


class Captured(NamedTuple):
    """What a chain means now: a value, or something to build in, after so many attributes."""

    used: int
    thing: Any

    def key(self) -> tuple[Any, ...]:
        """Return what the compiled code depends on."""
        if is_value(self.thing):
            return (self.used,)
        return self.used, id(getattr(self.thing, "__func__", self.thing))


class Source:
    """The source of one orchestration function.

    Rule     SPEED-ORCH-10

    Raises
    ------
    OrchestrationError
        It cannot be read, or is not one plain function.
    """

    def __init__(self, function: python_types.FunctionType) -> None:
        self.function = function
        self.filename = function.__code__.co_filename
        try:
            lines, first = inspect.getsourcelines(function)
        except (OSError, TypeError):
            raise self.error(
                function.__code__.co_firstlineno,
                "its source cannot be read: define it in a file, or in a notebook cell",
            ) from None
        tree = ast.parse(textwrap.dedent("".join(lines)))
        ast.increment_lineno(tree, first - 1)
        node = tree.body[0]
        if not isinstance(node, ast.FunctionDef):
            raise self.error(first, "an orchestration function is made with def")
        self._refuse(node)
        self.node = node
        self.chains = list(self._chains())

    def error(self, line: int, reason: str) -> OrchestrationError:
        """Return the error for a line that cannot be compiled."""
        return OrchestrationError(reason, filename=self.filename, lineno=line)

    def _refuse(self, node: ast.FunctionDef) -> None:
        """Refuse what could never be compiled, before numba says so in its own words."""
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Yield, ast.YieldFrom, ast.Await)):
                raise self.error(inner.lineno, "an orchestration function neither yields nor waits")
            if isinstance(inner, (ast.Global, ast.Nonlocal)):
                names = ", ".join(inner.names)
                raise self.error(
                    inner.lineno, f"compiled code cannot assign to {names} outside the function"
                )

    # ------------------------------------------------------------ what it takes from around it
    def _captured_names(self) -> set[str]:
        """Return the names that the function and those inside it take from closure or globals."""
        names = set(self.function.__code__.co_freevars)
        todo = [self.function.__code__]
        while todo:
            code = todo.pop()
            todo += [one for one in code.co_consts if isinstance(one, python_types.CodeType)]
            names |= {
                one.argval
                for one in dis.get_instructions(code)
                if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")
            }
        return names

    def _chains(self) -> Iterator[Chain]:
        """Find each captured name with the attributes that follow it, once each."""
        captured = self._captured_names()
        seen = set()
        inside: set[int] = set()
        for statement in self.node.body:
            for node in ast.walk(statement):
                if id(node) in inside:
                    continue
                chain = _chain_of(node)
                if chain is None or chain.name not in captured:
                    continue
                inside |= {id(part) for part in ast.walk(node)}
                if chain[:2] not in seen:
                    seen.add(chain[:2])
                    yield chain

    def look(self) -> list[Captured | None]:
        """Return what each chain means now; None for what Python itself provides."""
        cells = self._cells()
        return [self._resolve(chain, cells) for chain in self.chains]

    def _cells(self) -> dict[str, Any]:
        names, cells = self.function.__code__.co_freevars, self.function.__closure__ or ()
        return dict(zip(names, cells, strict=True))

    def _resolve(self, chain: Chain, cells: dict[str, Any]) -> Captured | None:
        if chain.name in cells:
            try:
                thing = cells[chain.name].cell_contents
            except ValueError:
                raise self._missing(chain) from None
        elif chain.name in self.function.__globals__:
            thing = self.function.__globals__[chain.name]
        elif hasattr(builtins, chain.name):
            return None
        else:
            raise self._missing(chain)
        used = 0
        for attribute in chain.attributes:
            if is_value(thing) or (isinstance(thing, type) and issubclass(thing, enum.Enum)):
                break
            if not hasattr(thing, attribute):
                raise self.error(chain.line, f"{chain.text(used)} has no attribute {attribute}")
            thing = getattr(thing, attribute)
            used += 1
        if not is_value(thing) and not _is_constant(thing):
            raise self.error(
                chain.line,
                f"it uses {chain.text(used)}, a {type(thing).__name__}, which has no compiled form: "
                "pass what is needed of it as an argument",
            )
        return Captured(used, thing)

    def _missing(self, chain: Chain) -> NameError:
        return NameError(f"name {chain.name!r} is not defined ({self.filename}, line {chain.line})")

    # ------------------------------------------------------------ the function for the compiler
    def build(
        self, found: list[Captured | None], replaced: dict[Any, Any]
    ) -> tuple[Callable[..., Any], list[int]]:
        """Return the function to compile, and the chains that its further parameters represent.

        `replaced` says what to use instead of something that compiled code does not know.
        """
        names: dict[tuple[Any, ...], tuple[str, int]] = {}
        space: dict[str, Any] = {"__builtins__": builtins, "__name__": self.function.__module__}
        parameters: list[int] = []
        taken: dict[str, str] = {}
        for i, (chain, captured) in enumerate(zip(self.chains, found, strict=True)):
            if captured is None:
                continue
            text = chain.text(captured.used)
            if is_value(captured.thing):
                name = text.replace(".", "__")
                if text not in taken:
                    taken[text] = name
                    parameters.append(i)
                names[chain[:2]] = (name, captured.used)
                continue
            root = self._root(chain)
            instead = _replacement(captured.thing, replaced)
            if instead is None and not (captured.used == 0 or inspect.ismodule(root)):
                instead = captured.thing
            if instead is None:
                space[chain.name] = root
            else:
                name = text.replace(".", "__")
                space[name] = instead
                names[chain[:2]] = (name, captured.used)
        node = _Rewriter(self, names).function()
        node.args.args += [
            ast.arg(taken[self.chains[i].text(_used(found[i]))], lineno=node.lineno, col_offset=0)
            for i in parameters
        ]
        node.args.defaults = []
        module = ast.Module([node], [])
        ast.fix_missing_locations(module)
        exec(compile(module, self.filename, "exec"), space)
        made: Callable[..., Any] = space[node.name]
        return made, parameters

    def _root(self, chain: Chain) -> Any:
        captured = self._resolve(chain._replace(attributes=()), self._cells())
        return None if captured is None else captured.thing


def _used(captured: Captured | None) -> int:
    return 0 if captured is None else captured.used


def _replacement(thing: Any, replaced: dict[Any, Any]) -> Any:
    try:
        return replaced.get(thing)
    except TypeError:
        return None


def _chain_of(node: ast.AST) -> Chain | None:
    """Return a name and the attributes after it, if that is what a node is."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.insert(0, node.attr)
        node = node.value
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return Chain(node.id, tuple(attributes), node.lineno)
    return None


# ---------------------------------------------------------------- the rewriting
class _Rewriter(ast.NodeTransformer):
    """Carries out the changes on a copy of the function's tree.

    Rule     SPEED-ORCH-2
    """

    def __init__(self, source: Source, names: dict[tuple[Any, ...], tuple[str, int]]) -> None:
        self._source = source
        self._names = names
        self._open: list[tuple[str, str, str]] = []
        """Loops ("loop", "", "") and scopes ("scope", orch, depth) around a statement."""
        self._tries: list[list[tuple[str, str]]] = []
        """Scopes opened in the body of each try around it: orch and depth."""
        self._count = 0

    def function(self) -> ast.FunctionDef:
        """Return the changed function."""
        original = self._source.node
        node = copy.deepcopy(original)
        node.decorator_list = []
        node.returns = None
        for argument in node.args.args:
            argument.annotation = None
        node.body = self._block(node.body)
        return node

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        changed: list[ast.stmt] = []
        for statement in statements:
            result = self.visit(statement)
            changed += result if isinstance(result, list) else [result]
        return changed

    # ------------------------------------------------------------ names
    def _renamed(self, node: ast.Name | ast.Attribute) -> ast.AST | None:
        chain = _chain_of(node)
        found = self._names.get(chain[:2]) if chain is not None else None
        if chain is None or found is None:
            return None
        name, used = found
        new: ast.expr = ast.copy_location(ast.Name(name, ast.Load()), node)
        for attribute in chain.attributes[used:]:
            new = ast.copy_location(ast.Attribute(new, attribute, ast.Load()), node)
        return new

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._renamed(node) or node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return self._renamed(node) or self.generic_visit(node)

    # ------------------------------------------------------------ scopes
    def visit_With(self, node: ast.With) -> Any:
        item = node.items[0]
        orch = _scope_of(item.context_expr)
        if orch is None:
            return self.generic_visit(node)
        if item.optional_vars is not None:
            raise self._source.error(node.lineno, "orch.scope() gives nothing to name with `as`")
        self._count += 1
        depth = f"scope__{self._count}"
        for scopes in self._tries:
            scopes.append((orch, depth))
        begin = self._statement(node, f"{depth} = {orch}._enter_scope()")
        self._open.append(("scope", orch, depth))
        if len(node.items) > 1:
            inner = ast.copy_location(ast.With(node.items[1:], node.body), node)
            body = self._block([inner])
        else:
            body = self._block(node.body)
        self._open.pop()
        return [*begin, *body, *self._end(node, orch, depth)]

    def _end(self, node: ast.stmt, orch: str, depth: str) -> list[ast.stmt]:
        last = node.body[-1] if isinstance(node, ast.With) else node
        lines = f"{orch}._leave_scope({depth})\n{depth} = 0"
        return self._statement(last, lines)

    @staticmethod
    def _statement(place: ast.stmt, text: str) -> list[ast.stmt]:
        statements = ast.parse(text).body
        for statement in statements:
            for node in ast.walk(statement):
                ast.copy_location(node, place)
        return statements

    def _ends(self, node: ast.stmt, out_of: str) -> list[ast.stmt]:
        """Return the ends of the scopes that a statement leaves: inside the innermost loop, or all."""
        ends: list[ast.stmt] = []
        for kind, orch, depth in reversed(self._open):
            if kind == out_of:
                break
            if kind == "scope":
                ends += self._end(node, orch, depth)
        return ends

    def visit_Return(self, node: ast.Return) -> Any:
        self.generic_visit(node)
        ends = self._ends(node, "function")
        if not ends or node.value is None:
            return [*ends, node]
        keep = self._statement(node, "returned__ = None")
        assert isinstance(keep[0], ast.Assign)
        keep[0].value = node.value
        node.value = ast.copy_location(ast.Name("returned__", ast.Load()), node)
        return [*keep, *ends, node]

    def visit_Break(self, node: ast.Break) -> Any:
        return [*self._ends(node, "loop"), node]

    def visit_Continue(self, node: ast.Continue) -> Any:
        return [*self._ends(node, "loop"), node]

    def _loop(self, node: Any) -> Any:
        for name in ("target", "iter", "test"):
            if hasattr(node, name):
                setattr(node, name, self.visit(getattr(node, name)))
        self._open.append(("loop", "", ""))
        node.body = self._block(node.body)
        self._open.pop()
        node.orelse = self._block(node.orelse)
        return node

    def visit_For(self, node: ast.For) -> Any:
        return self._loop(node)

    def visit_While(self, node: ast.While) -> Any:
        return self._loop(node)

    def visit_Try(self, node: ast.Try) -> Any:
        """End the scopes that an exception leaves, before the handler begins."""
        self._tries.append([])
        node.body = self._block(node.body)
        scopes = self._tries.pop()
        begins = [one for _, depth in scopes for one in self._statement(node, f"{depth} = 0")]
        for handler in node.handlers:
            handler.body = self._unwound(handler, scopes) + self._block(handler.body)
        node.orelse = self._block(node.orelse)
        if node.finalbody:
            node.finalbody = self._unwound(node.finalbody[0], scopes) + self._block(node.finalbody)
        return [*begins, node]

    def _unwound(self, place: Any, scopes: list[tuple[str, str]]) -> list[ast.stmt]:
        text = "\n".join(f"{orch}._unwind_scope({depth})\n{depth} = 0" for orch, depth in scopes)
        return self._statement(place, text)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        outer, self._open = self._open, []
        self.generic_visit(node)
        self._open = outer
        return node


def _scope_of(node: ast.expr) -> str | None:
    """Return the name before ``.scope()``, if that is what an expression is."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "scope"
        and isinstance(node.func.value, ast.Name)
        and not node.args
        and not node.keywords
    ):
        return node.func.value.id
    return None
