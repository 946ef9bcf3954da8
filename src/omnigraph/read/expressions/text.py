"""Texts, counted in code points from 0, and lists. Where libraries differ, Python computes text by text."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.cancellation import checkpoint
from omnigraph.memory_budget import require_room
from omnigraph.query.ir import Domain
from omnigraph.read.project.render import converter
from omnigraph.read.tables.arrow_numpy import BoolArray, Side, compare_values, to_mask
from omnigraph.schema.arrow import arrow_type
from omnigraph.schema.regex import matches_whole
from omnigraph.schema.types import INTEGER_BOUNDS, PropertyType, Scalar

Function = Callable[[PropertyType, Any], Any]

LISTED_MAX = 1 << 14  # texts that become Python objects at once
_NUMBER = re.compile(r"[+-]?[0-9]{1,400}(?P<float>(?:\.[0-9]{0,400})?(?:[eE][+-]?[0-9]{1,5})?)\Z", re.ASCII)


def contains_text(text: Side, part: Side, rows: int) -> BoolArray:
    return _match_text(text, part, rows, pc.match_substring, lambda whole, piece: piece in whole)


def starts_with(text: Side, prefix: Side, rows: int) -> BoolArray:
    return _match_text(text, prefix, rows, pc.starts_with, str.startswith)


def _match_text(text: Side, part: Side, rows: int, column_with: Any, texts: Callable[[str, str], bool]) -> BoolArray:
    if text is None or part is None:
        return np.zeros(rows, np.bool_)
    if isinstance(text, pa.Array) and isinstance(part, str):
        return to_mask(column_with(text, part))
    result = np.zeros(rows, np.bool_)
    for first in range(0, rows, LISTED_MAX):
        checkpoint()
        own = slice(first, min(first + LISTED_MAX, rows))
        count = own.stop - own.start
        wholes = text[own].to_pylist() if isinstance(text, pa.Array) else [text] * count
        parts = part[own].to_pylist() if isinstance(part, pa.Array) else [part] * count
        found = (w is not None and p is not None and texts(w, p) for w, p in zip(wholes, parts, strict=True))
        result[own] = np.fromiter(found, np.bool_, count)
    return result


def has_item(items: Side, item: Side, domain: Domain, rows: int) -> BoolArray:
    """Some element equals the item: the flattened elements are compared, then mapped back to their rows."""
    found = np.zeros(rows, np.bool_)
    if items is None or item is None:
        return found
    if not isinstance(items, pa.Array):
        for element in items if isinstance(items, tuple) else ():
            found |= compare_values("=", element, item, domain, rows)
        return found
    owners: Any = pc.list_parent_indices(items)
    elements: Any = pc.list_flatten(items)
    other = item.take(owners) if isinstance(item, pa.Array) else item
    hits = compare_values("=", elements, other, domain, len(elements))
    found[owners.to_numpy(zero_copy_only=False)[hits]] = True
    return found


def contains_item(items: Side, item: Side, domain: Domain, rows: int) -> Side:
    """Whether a list has an item, null if either is null; an empty list has none, whatever the item."""
    if items is None:
        return None
    if items == ():
        return False
    if not isinstance(items, pa.Array) and not isinstance(item, pa.Array):
        return None if item is None else bool(has_item(items, item, domain, 1)[0])
    no_item = np.full(rows, item is None)
    if isinstance(item, pa.Array):
        no_item = item.is_null().to_numpy(zero_copy_only=False)
    if not isinstance(items, pa.Array):
        return pa.array(has_item(items, item, domain, rows), mask=no_item)
    lengths: Any = pc.list_value_length(items)
    lengths = pc.fill_null(lengths, 0)
    unknown = ~to_mask(pc.is_valid(items)) | (no_item & (lengths.to_numpy(zero_copy_only=False) > 0))
    return pa.array(has_item(items, item, domain, rows), mask=unknown)


def _each(function: Callable[..., Any], size_of: Callable[..., int] | None = None) -> Function:
    """A function of Python values, null where an argument is null; `size_of` estimates the bytes of a large result."""

    def apply(kind: PropertyType, args: Any) -> Any:
        results: list[Any] = []
        total = 0
        for first in range(0, len(args[0]), LISTED_MAX):
            checkpoint()
            for row in zip(*(arg.slice(first, LISTED_MAX).to_pylist() for arg in args), strict=True):
                if None in row:
                    results.append(None)
                    continue
                if size_of is not None:
                    total += size_of(*row)
                    require_room(2 * total, "the results of a function")
                results.append(function(*row))
        return pa.array(results, arrow_type(kind))

    return apply


@cache
def _cases(upper: bool) -> Mapping[int, int]:
    """What each code point becomes: those that would become several stay as they are."""
    found = {}
    for code in range(0x110000):
        character = chr(code)
        changed = character.upper() if upper else character.lower()
        if changed != character and len(changed) == 1:
            found[code] = ord(changed)
    return found


def _change_case(upper: bool) -> Function:
    def apply(_: PropertyType, args: Any) -> Any:
        (texts,) = args
        if pc.all(pc.string_is_ascii(texts), min_count=0).as_py() is not False:
            return (pc.ascii_upper if upper else pc.ascii_lower)(texts)
        table = _cases(upper)
        return pa.array([None if text is None else text.translate(table) for text in texts.to_pylist()], pa.string())

    return apply


def _substring(text: str, start: int, count: int) -> str | None:
    return text[start : start + count] if 0 <= start <= len(text) and count >= 0 else None


def _replace(text: str, old: str, new: str) -> str:
    return text.replace(old, new) if old else text


def _replaced_size(text: str, old: str, new: str) -> int:
    return 4 * (len(text) + text.count(old) * len(new)) if old else 0


def _split_size(text: str, separator: str) -> int:
    return 4 * len(text) + 80 * text.count(separator) if separator else 0


def _split(text: str, separator: str) -> list[str]:
    return text.split(separator) if separator else [text]


def _length(_: PropertyType, args: Any) -> Any:
    return pc.utf8_length(args[0]).cast(pa.int64())


def _matches(_: PropertyType, args: Any) -> Any:
    texts, patterns = args
    pattern = patterns[0].as_py() if len(patterns) else ""
    if pattern is None:
        return pa.nulls(len(texts), pa.bool_())
    return matches_whole(texts, pattern)


def _concatenate(kind: PropertyType, args: Any) -> Any:
    one, other = args
    if kind == Scalar("String"):
        return pc.binary_join_element_wise(one, other, "")
    rows = zip(one.to_pylist(), other.to_pylist(), strict=True)
    return pa.array([None if a is None or b is None else [*a, *b] for a, b in rows], arrow_type(kind))


def _size(_: PropertyType, args: Any) -> Any:
    return pc.list_value_length(args[0]).cast(pa.int64())


def _item(_: PropertyType, args: Any) -> Any:
    """An item by its index from 0; null where there is none."""
    lists, index = args
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    wanted = np.array([-1 if at is None else min(at, 1 << 40) for at in index.to_pylist()], np.int64)
    inside = (wanted >= 0) & (wanted < lengths)
    positions = lists.offsets.to_numpy()[:-1].astype(np.int64) + np.where(inside, wanted, 0)
    return lists.values.take(pa.array(positions, mask=~inside))


def _number(text: str) -> int | float | None:
    found = _NUMBER.match(text)
    if found is None:
        return None
    return float(text) if found["float"] else int(text)


def _int(value: Any) -> int | None:
    number = _number(value) if isinstance(value, str) else value
    if number is None or number in (float("inf"), float("-inf")):
        return None
    low, high = INTEGER_BOUNDS["I64"]
    return int(number) if low <= int(number) <= high else None


def _float(value: Any) -> float | None:
    number = _number(value) if isinstance(value, str) else value
    try:
        found = None if number is None else float(number) + 0.0
    except OverflowError:
        return None
    return None if found in (float("inf"), float("-inf")) else found


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _string(_: PropertyType, args: Any) -> Any:
    """The text of a value, as export writes it."""
    (values,) = args
    convert = converter(_KINDS.get(str(values.type), Scalar("String"))) or (lambda value: value)
    return pa.array(
        [None if value is None else _format(convert(value)) for value in values.to_pylist()],
        pa.string(),
    )


_KINDS: Mapping[str, PropertyType] = {
    str(arrow_type(Scalar(name))): Scalar(name)
    for name in ("Bool", "I32", "I64", "U32", "U64", "F32", "F64", "Date", "DateTime", "Blob")
}


def _ends_with(_: PropertyType, args: Any) -> Any:
    wholes, parts = args
    rows = zip(wholes.to_pylist(), parts.to_pylist(), strict=True)
    return pa.array([None if w is None or p is None else w.endswith(p) for w, p in rows], pa.bool_())


TEXT: Mapping[str, Function] = {
    "lower": _change_case(upper=False),
    "upper": _change_case(upper=True),
    "trim": _each(str.strip),
    "length": _length,
    "substring": _each(_substring),
    "replace": _each(_replace, _replaced_size),
    "split": _each(_split, _split_size),
    "ends_with": _ends_with,
    "matches": _matches,
    "||": _concatenate,
    "size": _size,
    "[]": _item,
    "int": _each(_int),
    "float": _each(_float),
    "string": _string,
}
