"""An agent class for the interpreted engine that fails where its compiled form does. Plain Python, no numba.

Python's ints have no end, a narrow field takes any int, and a float field keeps the int that it is given. The compiled
engine has 64 bits, and faults where they do not suffice. So that both engines agree, `checked` makes of an agent class
one whose handlers run the user's own code with four things added, as docs/compiled.md lists them:

- a result of arithmetic that is an int beyond 64 bits raises OverflowError;
- so does a float that is made an int beyond 64 bits;
- a value that is stored, in the state or in a message, is checked against the bounds of its field, and an int that is
  stored in a float field of the state or of a decided event becomes a float;
- a NaN that is stored is the canonical one.

It works on the source and knows no types: `a + b` becomes `whole(a + b)`, and `f(x)` becomes `called(f)(x)`. It shares
nothing with the compiler, so that no mistake hides behind the same mistake. What does not compile is not refused here.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping
from operator import ge, gt, le, lt
from types import FunctionType
from typing import Annotated, Any, TypeVar, get_args, get_origin

from msgspec import Meta, Struct

from stigmergy.agents.agent import Agent, reject
from stigmergy.agents.columns import canonical_nan
from stigmergy.agents.messages import Message, resolve_hints
from stigmergy.base.errors import DefinitionError

INT_MIN = -(2**63)
INT_MAX = 2**63 - 1
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_A = TypeVar("_A", bound=Agent)


def checked(cls: type[_A]) -> type[_A]:
    """The class with its methods rewritten: a subclass of the same name, kind, version and fields.

    Its instances are instances of `cls`, and have the same bytes. Raises DefinitionError if the source is not there.
    """
    namespace: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__setattr__": _keeping_bounds(cls),
    }
    rewriting = _Rewriting()
    for base in reversed(cls.__mro__[: cls.__mro__.index(Agent)]):
        for name, method in vars(base).items():
            if isinstance(method, FunctionType) and not name.startswith("__"):
                namespace[name] = rewriting.rewritten(method)
            elif isinstance(method, property) and isinstance(method.fget, FunctionType):
                namespace[name] = property(rewriting.rewritten(method.fget))
    make: Any = type(cls)
    made: type[_A] = make(cls.__name__, (cls,), namespace, kind=cls.__agent_kind__, version=cls.__agent_version__)
    return made


# ---- arithmetic


def whole(value: Any) -> Any:
    """A result of arithmetic, as long as it is one that 64 bits hold."""
    if type(value) is int and not INT_MIN <= value <= INT_MAX:
        raise OverflowError("an int outside of -2^63 to 2^63 - 1")
    return value


def _made_int(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def made(value: Any) -> Any:
        result = convert(value)
        if not INT_MIN <= result <= INT_MAX:
            raise OverflowError("a float outside of -2^63 to 2^63 - 1, made an int")
        return result

    return made


_STAND_INS: Mapping[Any, Callable[..., Any]] = {
    abs: lambda value: whole(abs(value)),
    **{convert: _made_int(convert) for convert in (int, math.floor, math.ceil, math.trunc)},
}
"""What is called instead of these."""


# ---- fields


class NumberField(Struct, frozen=True):
    """What may be stored in a field for ints or floats."""

    where: str
    """Class and field, for people."""
    is_float: bool
    bounds: tuple[tuple[Callable[[Any, Any], bool], float], ...]

    def fit(self, value: Any, *, as_float: bool) -> Any:
        """The value as it is stored. Raises OverflowError for an int and ValueError for a float out of bounds."""
        if not self.is_float:
            if type(value) is int and not self._allows(value):
                low = max(bound + (holds is gt) for holds, bound in self.bounds if holds in (ge, gt))
                high = min(bound - (holds is lt) for holds, bound in self.bounds if holds in (le, lt))
                raise OverflowError(f"{self.where}: outside of {low} to {high}")
            return value
        if not self._allows(float(value)):
            raise ValueError(f"{self.where}: outside of its bounds")
        if type(value) is float:
            return canonical_nan(value)
        return float(value) if as_float else value

    def _allows(self, value: float) -> bool:
        return all(holds(value, bound) for holds, bound in self.bounds)


def fields_of(cls: type[Any]) -> dict[str, NumberField]:
    """The int and float fields of a class, in the order of their declaration."""
    hints = resolve_hints(cls, cls.__qualname__)
    found: dict[str, NumberField] = {}
    for name in cls.__struct_fields__:
        plain, *notes = get_args(hints[name]) if get_origin(hints[name]) is Annotated else (hints[name],)
        if plain in (int, float):
            bounds = tuple(
                (holds, bound)
                for note in notes
                if isinstance(note, Meta)
                for holds, bound in ((ge, note.ge), (gt, note.gt), (le, note.le), (lt, note.lt))
                if bound is not None
            )
            width = () if plain is float else ((ge, INT_MIN), (le, INT_MAX))
            found[name] = NumberField(f"{cls.__name__}.{name}", plain is float, (*width, *bounds))
    return found


def _keeping_bounds(cls: type[Agent]) -> Callable[[Any, str, Any], None]:
    fields = fields_of(cls)

    def __setattr__(self: Any, name: str, value: Any) -> None:
        field = fields.get(name)
        Struct.__setattr__(self, name, value if field is None else field.fit(value, as_float=True))

    return __setattr__


def _making(message: type[Message], decides: bool) -> Callable[..., Message]:
    """Makes messages of this type: all arguments first, then the fields in their order."""
    fields = fields_of(message)

    def make(*args: Any, **kwargs: Any) -> Message:
        given = message(*args, **kwargs)
        values = {name: getattr(given, name) for name in message.__struct_fields__}
        for name, field in fields.items():
            values[name] = field.fit(values[name], as_float=decides)
        return message(**values)

    return make


# ---- source


class _Rewriting:
    """The functions of one agent class, each rewritten once."""

    def __init__(self) -> None:
        self._rewritten: dict[FunctionType, Any] = {}
        self._definitions: dict[str, list[ast.FunctionDef]] = {}
        """Of each file."""

    def rewritten(self, function: FunctionType) -> Any:
        """The function with its arithmetic and its calls checked; its lines and its name are as they were."""
        if function in self._rewritten:
            return self._rewritten[function]
        definition = _Checks().visit(self._definition_of(function))
        # Free variables become arguments of a function around it: that is what they were.
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        names = ["_checked_whole", "_checked_called", *function.__code__.co_freevars]
        arguments = [ast.arg(arg=name) for name in names]
        around = ast.FunctionDef(
            name="_checked",
            args=ast.arguments(posonlyargs=[], args=arguments, kwonlyargs=[], kw_defaults=[], defaults=[]),
            body=[definition, ast.Return(ast.Name(definition.name, ast.Load()))],
            decorator_list=[],
        )
        module = ast.fix_missing_locations(ast.Module(body=[around], type_ignores=[]))
        code = compile(module, function.__code__.co_filename, "exec", dont_inherit=True)
        made: dict[str, Any] = {}
        exec(code, function.__globals__, made)
        decides = getattr(function, "__stigmergy_role__", None) == "decide"
        result: Any = made["_checked"](whole, self._calling(decides), *cells)
        result.__dict__.update(function.__dict__)
        for name in ("__module__", "__qualname__", "__doc__", "__annotations__", "__defaults__", "__kwdefaults__"):
            setattr(result, name, getattr(function, name))
        self._rewritten[function] = result
        return result

    def _definition_of(self, function: FunctionType) -> ast.FunctionDef:
        """Its syntax tree, with the lines of its file, without what is done around it."""
        code = function.__code__
        try:
            lines, _ = inspect.findsource(function)
        except OSError:
            raise DefinitionError(
                f"{function.__module__}.{function.__qualname__}: its source is not there; define it in a file"
            ) from None
        if code.co_filename not in self._definitions:
            nodes = ast.walk(ast.parse("".join(lines)))
            self._definitions[code.co_filename] = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        for node in self._definitions[code.co_filename]:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if (node.name, first) == (code.co_name, code.co_firstlineno):
                for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                    argument.annotation = None
                node.args.defaults, node.args.kw_defaults = [], [None] * len(node.args.kwonlyargs)
                node.decorator_list, node.returns = [], None
                return node
        raise DefinitionError(
            f"{function.__module__}.{function.__qualname__}: not found in its file, which may have changed; start anew"
        )

    def _calling(self, decides: bool) -> Callable[[Any], Any]:
        """Finds, for what the source calls, what is to be called."""
        makings: dict[type, Any] = {}

        def called(target: Any) -> Any:
            if isinstance(target, type) and issubclass(target, Message):
                if target not in makings:
                    makings[target] = _making(target, decides)
                return makings[target]
            if isinstance(target, FunctionType) and target is not reject:
                return self.rewritten(target)
            return _STAND_INS.get(target, target)

        return called


class _Checks(ast.NodeTransformer):
    """Puts checks around arithmetic and calls. Nothing else changes, and nothing is evaluated twice."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        return _around("_checked_whole", node) if isinstance(node.op, _ARITHMETIC) else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return _around("_checked_whole", node) if isinstance(node.op, ast.USub) else node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        """`x += y` becomes `x = whole(x + y)`; the target is a name or a field of self, so reading it is harmless."""
        read = ast.parse(ast.unparse(node.target), mode="eval").body
        value = self.visit(ast.copy_location(ast.BinOp(left=read, op=node.op, right=node.value), node))
        return ast.copy_location(ast.Assign(targets=[node.target], value=value), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        node.func = _around("_checked_called", node.func)
        return node


def _around(name: str, node: ast.expr) -> ast.expr:
    function = ast.copy_location(ast.Name(name, ast.Load()), node)
    return ast.copy_location(ast.Call(func=function, args=[node], keywords=[]), node)
