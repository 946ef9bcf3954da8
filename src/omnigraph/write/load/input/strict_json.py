"""Strict JSON for loads: no repeated names in an object, no absurdly long numbers."""

import json
from typing import Any

DIGITS_MAX = 100  # of a number


def _reject_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without repeated names: otherwise one of two values would be lost silently."""
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is given twice: keep one of them")
    return made


def _parse_int(digits: str) -> int:
    if len(digits) > DIGITS_MAX:
        raise ValueError(f"the number {digits[:20]}… has {len(digits)} digits: no type holds so many")
    return int(digits)


parse_json = json.JSONDecoder(object_pairs_hook=_reject_repeated_names, parse_int=_parse_int).decode
"""Parse text; ValueError (often JSONDecodeError) or RecursionError if it is not JSON."""
