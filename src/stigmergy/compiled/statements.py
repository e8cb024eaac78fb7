"""Statements: assignments, branches, loops of fixed length, yields. A `return` becomes a flag that later code checks.

A handler is compiled where it is called, inside the loop over records, so there is no call and no copy. Only a halt
leaves the loop.
"""

from __future__ import annotations

import ast

from stigmergy.agents.agent import reject
from stigmergy.agents.messages import Message
from stigmergy.compiled.faults import shown
from stigmergy.compiled.frames import Body, Lines, RecordView, Unit, field_value, name_words
from stigmergy.compiled.sources import Source
from stigmergy.compiled.values import FLOAT, INT, REFUSED, TEXT, Value, fits
from stigmergy.compiled.windows import WindowInfo
from stigmergy.compiled.yields import DecideStatements, outside

ROUNDS_COUNT_MAX = 256
YIELDS_COUNT_MAX = 256
_REFUSED: dict[type[ast.stmt], tuple[str, str]] = {
    ast.Assert: ("an assertion is no answer", "use if, with reject or without a yield"),
    ast.While: ("a loop without a fixed end", "write for i in range(…) with a constant"),
    ast.Raise: ("handlers refuse, they do not raise", "use reject in @decide of a command, or yield nothing"),
    ast.Try: ("nothing is caught in compiled code", "check before you calculate"),
    ast.With: ("there is nothing to enter", "take it out"),
    ast.Match: ("match is not on the list of what compiles", "use if and elif"),
    ast.FunctionDef: ("a function inside a handler", "define it in the module"),
    ast.Delete: ("nothing can be deleted", "take it out"),
}


class Statements(DecideStatements):
    """A frame that compiles statements: one function as a whole."""

    def __init__(self, unit: Unit, body: Body, source: Source, where: str, role: str, lines: Lines) -> None:
        super().__init__(unit, body, source, where, role, lines)
        self.result: Value | None = None
        """Of a function: what it returns, once known."""
        self._loops = 0
        nodes = list(ast.walk(source.tree))
        self._done = f"done{self.number}" if any(isinstance(node, ast.Return) for node in nodes) else ""
        self._ints_stored: set[str] = set()
        """Float fields of the state that are given an int here."""

    def run(self) -> None:
        """Compiles the body of the function."""
        if self._done:
            self.lines.add(f"{self._done} = False")
        self.block(self.source.tree.body)
        if self.role == "" and self.assigned is not None:
            self.refuse(self.source.tree, "may end without a value", "return one at its end")
        self._check_ints_stored()

    # ---- blocks

    def block(self, statements: list[ast.stmt]) -> None:
        """Statements in order; those behind a return are not run."""
        guarded = False
        for statement in statements:
            if self.assigned is None:
                return
            if guarded:
                with self.lines.block(f"if not {self._done}:"):
                    self.statement(statement)
            else:
                self.statement(statement)
            returns = not isinstance(statement, ast.Return) and _contains(statement, ast.Return)
            if not returns or self.assigned is None:
                continue
            if not self._loops:
                guarded = True
            elif isinstance(statement, ast.For):
                self.lines.add(f"if {self._done}:")
                self.lines.add("    break")

    def statement(self, node: ast.stmt) -> None:
        """One statement."""
        if not isinstance(node, ast.If | ast.For | ast.Pass) and not _is_docstring(node):
            self.lines.add(f"# {shown(node)}")
        match node:
            case ast.Pass():
                pass
            case ast.Expr():
                self.expression(node)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                self.assignment(node)
            case ast.If():
                self.branch(node)
            case ast.For():
                self.loop(node)
            case ast.Return():
                self.finish(node)
            case ast.Break() | ast.Continue():
                self.lines.add("break" if isinstance(node, ast.Break) else "continue")
                self.assigned = None
            case _:
                what = type(node).__name__
                reason = _REFUSED.get(
                    type(node), (f"{what} is not on the list of what compiles", "see docs/compiled.md")
                )
                self.refuse(node, *reason)

    def expression(self, node: ast.Expr) -> None:
        """A statement that is an expression: a yield, a refusal, a docstring."""
        match node.value:
            case ast.Constant():
                pass
            case ast.Yield(value=value) if value is not None and self.role == "decide":
                self.yield_event(value)
            case ast.Yield(value=value) if value is not None and self.role == "react":
                self.body.effects_count += self.rounds
                self.yield_effect(value)
            case ast.Yield():
                self.refuse(node, "a yield of nothing, or in a function", "yield in @decide or @react itself")
            case ast.YieldFrom():
                self.refuse(node, "yields what has no fixed number", "yield one by one")
            case ast.Call(func=func) if self.source.resolve(func) is reject:
                self.refusal(node.value)
            case _:
                self.refuse(node, "does nothing, or is not on the list of what compiles", "see docs/compiled.md")

    # ---- assigning

    def assignment(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        """To a local, or to a field of the state."""
        if isinstance(node, ast.Assign) and len(node.targets) != 1:
            self.refuse(node, "assigns several at once", "assign one after the other")
            return
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if not isinstance(target, ast.Name | ast.Attribute):
            self.refuse(node, "only locals and fields of self are assigned, one by one", "name one of them")
            return
        if node.value is None:
            return
        if isinstance(node, ast.AugAssign):
            before = self.value(ast.copy_location(_read(target), target))
            by = self.value(node.value)
            known = before.is_known and by.is_known
            value = self.operate(node, type(node.op), before, by) if known else REFUSED
        else:
            value = self.value(node.value)
        if value.kind == TEXT or not fits(value):
            value = self.refuse(node, "a text, or an int beyond 8 bytes", "texts belong into effects and reject")
        match target:
            case ast.Name(id=name):
                self._assign_local(node, name, value)
            case ast.Attribute(value=ast.Name(id=owner), attr=attr) if owner == self.self_name and attr:
                self._assign_state(node, attr, value)
            case _:
                self.refuse(target, "only locals and fields of self are assigned", "name one of them")

    def _assign_local(self, node: ast.AST, name: str, value: Value) -> None:
        if name in (self.self_name, self.message_name):
            self.refuse(node, f"{name} is what it is", "choose another name")
            return
        known = self.locals.get(name)
        if not value.is_known:
            self.locals[name] = REFUSED
        elif known is None or not known.is_known:
            words = name_words(f"v{self.number}_{name}", value.kind)
            self.locals[name] = Value(value.kind, words)
        elif known.kind != value.kind:
            self.refuse(node, f"{name} is {known.kind}, and here {value.kind}", "use another name, or 0.0 for 0")
        if self.assigned is not None:
            self.assigned.add(name)
        if value.is_known and self.locals[name].kind == value.kind:
            self._copy(self.locals[name].words, value)

    def _copy(self, words: tuple[str, ...], value: Value) -> None:
        for word, text in zip(words, value.words, strict=True):
            if word != text:
                self.lines.add(f"{word} = {text}")

    def _assign_state(self, node: ast.AST, name: str, value: Value) -> None:
        if self.role != "evolve":
            self.refuse(node, "only @evolve handlers change the state", "assign there, not in a function it calls")
            return
        field = self.unit.state.get(name)
        if name in self.unit.windows:
            self.refuse(node, "a window is filled by the framework", "take it out")
        if field is None:
            if name not in self.unit.cls.__struct_fields__:
                self.refuse(node, f"{self.unit.cls.__name__} has no field {name}", "declare it")
            return
        if not value.is_known:
            return
        if field.kind == FLOAT and value.kind == INT:
            self._ints_stored.add(name)
        value = self.fitting(node, value, field)
        if not value.is_known:
            return
        value = self.checked(node, value, field, outside(self.unit.cls.__name__, field))
        self.state(name)
        self.body.stored.setdefault(name, field)
        self._copy(field_value(field, f"s_{name}").words, value)

    def _check_ints_stored(self) -> None:
        """Interpreted, such a field holds an int until the handler ends, and an int calculates otherwise."""
        for name in sorted(self._ints_stored):
            if (self.source.function, name) in self.body.read_inside:
                says = f"{name} is a float that is given an int here, and read by what this calls"
                self.refuse(self.source.tree.body[-1], says, "write 0.0 for 0")
        for node in ast.walk(self.source.tree):
            match node:
                case ast.Attribute(value=ast.Name(id=owner), attr=attr, ctx=ast.Load()) if owner == self.self_name:
                    if attr in self._ints_stored:
                        self.refuse(node, f"{attr} is a float that is given an int in this method", "write 0.0 for 0")
                case ast.AugAssign(target=ast.Attribute(value=ast.Name(id=owner), attr=attr)) if (
                    owner == self.self_name
                ):
                    if attr in self._ints_stored:
                        self.refuse(node, f"{attr} is a float that is given an int in this method", "write 0.0 for 0")
                case _:
                    pass

    # ---- branches and loops

    def branch(self, node: ast.If) -> None:
        """`if`, `elif`, `else`."""
        self.lines.add(f"# if {shown(node.test)}:")
        test = self.condition(node.test)
        if test.is_constant:  # as for isinstance: what is never run need not compile
            self.block(node.body if test.constant else node.orelse)
            return
        self._branches("if", node, test)

    def _branches(self, word: str, node: ast.If, test: Value) -> None:
        before = None if self.assigned is None else set(self.assigned)
        counts = self._counts()
        with self.lines.block(f"{word} {test.code if test.is_known else 'False'}:"):
            self.block(node.body)
        after, self.assigned = self.assigned, before
        others = self._counts()
        self.body.effects_count, self.queued_max, self.yielded = counts
        match node.orelse:
            case []:
                pass
            case [ast.If() as other]:
                with self.aside() as lines:
                    test = self.condition(other.test)
                if test.is_constant:
                    with self.lines.block("else:"):
                        self.block(other.body if test.constant else other.orelse)
                elif lines.lines:
                    with self.lines.block("else:"):
                        self.lines.extend(lines)
                        self._branches("if", other, test)
                else:
                    self._branches("elif", other, test)
            case _:
                with self.lines.block("else:"):
                    self.block(node.orelse)
        if after is not None:
            self.assigned = after if self.assigned is None else self.assigned & after
        # Only one of the branches is run: what counts is the one that causes most.
        effects, queued, yielded = others
        self.body.effects_count = max(self.body.effects_count, effects)
        self.queued_max = max(self.queued_max, queued)
        for cls, count in yielded.items():
            self.yielded[cls] = max(self.yielded.get(cls, 0), count)

    def _counts(self) -> tuple[int, int, dict[type[Message], int]]:
        return self.body.effects_count, self.queued_max, dict(self.yielded)

    def loop(self, node: ast.For) -> None:
        """`for i in range(…)` with a constant number of rounds."""
        if isinstance(node.iter, ast.Attribute) and (info := self.window_at(node.iter.value)) is not None:
            self._over_entries(node, info)
            return
        rounds = self._range(node)
        if rounds is None or not isinstance(node.target, ast.Name) or node.orelse:
            self.refuse(
                node.iter, "is no range of constants over a plain name", "write for i in range(8), without else"
            )
            return
        if len(rounds) > ROUNDS_COUNT_MAX or self.rounds * len(rounds) > ROUNDS_COUNT_MAX:
            self.refuse(node.iter, "too many rounds", f"use at most {ROUNDS_COUNT_MAX}, loops inside loops included")
            return
        name = node.target.id
        self._assign_local(node, name, Value(INT, ("0",)))
        if not rounds and self.assigned is not None:
            self.assigned.discard(name)
            return
        if self.locals[name].kind != INT or self.assigned is None:
            return
        before = set(self.assigned)
        word = self.locals[name].code
        self.lines.add(f"# for {name} in {shown(node.iter)}:")
        self.rounds *= len(rounds)
        self._loops += 1
        with self.lines.block(f"for {word} in range({rounds.start}, {rounds.stop}, {rounds.step}):"):
            self.block(node.body)
        self._loops -= 1
        self.rounds //= len(rounds)
        leaves = any(_contains(node, one) for one in (ast.Break, ast.Continue, ast.Return))
        self.assigned = before if leaves or self.assigned is None else self.assigned | before

    def _over_entries(self, node: ast.For, info: WindowInfo) -> None:
        """`for one in self.w.values`: fields of the entries, the one that came first first."""
        rounds, name = info.window.count_max, node.target.id if isinstance(node.target, ast.Name) else ""
        plain = isinstance(node.iter, ast.Attribute) and node.iter.attr == "values"
        taken = name in (*self.locals, *self.entries, self.self_name, self.message_name)
        if not plain or not name or taken or node.orelse:
            self.refuse(node.iter, "entries have a name of their own", f"write for one in self.{info.name}.values")
            return
        if self.rounds * rounds > ROUNDS_COUNT_MAX:
            says = f"a window of up to {rounds} entries; too many rounds"
            self.refuse(node.iter, says, f"use at most {ROUNDS_COUNT_MAX}, loops inside loops included")
            return
        if self.assigned is None:
            return
        self.use_window(info)
        number = self.unit.number()
        record = self.entries[name] = RecordView(info.form, "row", f"at{number}", f"e{number}")
        before = set(self.assigned)
        self.rounds *= rounds
        self._loops += 1
        with self.aside() as lines:
            self.block(node.body)
        self._loops -= 1
        self.rounds //= rounds
        del self.entries[name]
        self.assigned = before
        self.lines.add(f"# for {name} in {shown(node.iter)}:")
        with self.lines.block(f"for k{number} in range({info.local('count')}):"):
            info.find(self.lines, f"at{number}", f"k{number}")
            if info.by_event:
                self.lines.add(f"if row_i8[at{number}] <= {info.local('limit')}:")
                self.lines.add("    continue")
            record.loads(self.lines)
            self.lines.extend(lines)

    def _range(self, node: ast.For) -> range | None:
        call = node.iter
        if not isinstance(call, ast.Call) or self.source.resolve(call.func) is not range or call.keywords:
            return None
        values = [self.value(argument) for argument in call.args]
        constants = [value.constant for value in values if value.is_constant and value.kind == INT]
        if not 1 <= len(constants) == len(values) <= 3 or 0 in constants[2:]:
            return None
        return range(*constants)

    def finish(self, node: ast.Return) -> None:
        """`return`: of a handler without a value, of a function with one."""
        if self.role == "":
            self._give_back(node)
        elif node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.refuse(node, "returns what it should yield", "yield one by one")
        self.lines.add(f"{self._done} = True")
        if self._loops:
            self.lines.add("break")
        self.assigned = None

    def _give_back(self, node: ast.Return) -> None:
        value = REFUSED if node.value is None else self.value(node.value)
        if node.value is None or value.kind == TEXT or not fits(value):
            self.refuse(node, "returns no number", "return a number, boolean, enum or bytes")
            value = REFUSED
        if not value.is_known:
            self.result = REFUSED
        elif self.result is None:
            self.result = Value(value.kind, name_words(f"r{self.number}", value.kind))
        elif self.result.is_known and self.result.kind != value.kind:
            self.refuse(
                node, f"returns {value.kind}, and elsewhere {self.result.kind}", "return one kind, like 0.0 for 0"
            )
            self.result = REFUSED
        if value.is_known and self.result.is_known:
            self._copy(self.result.words, value)

    # ---- functions

    def inline(self, node: ast.AST, source: Source, where: str, bound: list[tuple[str, Value]], method: bool) -> Value:
        """Compiles a function here: arguments become its locals, what it returns is a value."""
        inner = Statements(self.unit, self.body, source, where, "", self.lines)
        inner.callers = (*self.callers, source.function)
        inner.self_name = source.parameters[0] if method and source.parameters else ""
        for name, value in bound:
            inner._assign_local(node, name, value)
        before = len(self.unit.findings)
        self.lines.add(f"# {where}:")
        inner.run()
        if inner.result is None or len(self.unit.findings) > before:
            return REFUSED
        return inner.result


def _contains(node: ast.AST, kind: type[ast.AST]) -> bool:
    return any(isinstance(inner, kind) for inner in ast.walk(node))


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _read(target: ast.expr) -> ast.expr:
    """The target of an assignment, as an expression."""
    return ast.parse(ast.unparse(target), mode="eval").body
