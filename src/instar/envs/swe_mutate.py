"""Small bugs for real code: one change to one expression, with everything else as it was."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

COMPARE: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
    ast.Div: ("/", "*"),
}


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the characters from start to end."""

    start: int
    end: int
    new: str
    kind: str

    def apply(self, source: str) -> str:
        return source[: self.start] + self.new + source[self.end :]


class _Places:
    """Offsets in a text of what the parser names by line and column (in UTF-8 bytes)."""

    def __init__(self, source: str) -> None:
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        text = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(text)

    def span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)


def edits(source: str) -> list[Edit]:
    """Every bug that can be put into the functions of a module, in the order of the text."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    places, found = _Places(source), dict[tuple[int, int, str], Edit]()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                for node in ast.walk(statement):
                    for edit in _of(node, source, places):
                        found.setdefault((edit.start, edit.end, edit.new), edit)
    return [found[key] for key in sorted(found) if _still_parses(found[key].apply(source))]


def _still_parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _of(node: ast.AST, source: str, places: _Places) -> Iterator[Edit]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARE:
            yield from _between(source, places, left, right, *COMPARE[type(op)], "comparison")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            yield from _between(source, places, left, right, *ARITHMETIC[type(op)], "arithmetic")
        case ast.BoolOp(op=ast.And(), values=[first, second, *_]):
            yield from _between(source, places, first, second, "and", "or", "logic")
        case ast.BoolOp(op=ast.Or(), values=[first, second, *_]):
            yield from _between(source, places, first, second, "or", "and", "logic")
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            start, _ = places.span(node)
            yield Edit(start, places.span(operand)[0], "", "lost not")
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            start, end = places.span(test)
            yield Edit(start, end, f"not ({source[start:end]})", "turned condition")
        case ast.Constant(value=bool() as value):
            yield Edit(*places.span(node), str(not value), "constant")
        case ast.Constant(value=int() as value):
            yield Edit(*places.span(node), str(value + 1), "constant")
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield Edit(*places.span(value), "None", "lost result")
        case _:
            return


def _between(
    source: str, places: _Places, left: ast.expr, right: ast.expr, old: str, new: str, kind: str
) -> Iterator[Edit]:
    """Replace an operator, which the parser does not place, in the text between its operands."""
    start, end = places.span(left)[1], places.span(right)[0]
    pattern = re.escape(old).replace(r"\ ", r"\s+")
    pattern = rf"\b{pattern}\b" if old[0].isalpha() else pattern
    matches = list(re.finditer(pattern, source[start:end]))
    if len(matches) == 1 and "#" not in source[start:end]:
        yield Edit(start + matches[0].start(), start + matches[0].end(), new, kind)
