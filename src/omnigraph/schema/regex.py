"""Patterns of `@check`: the part of regular expressions that all our engines read alike, in linear time.

Rows are checked by RE2 in process and by Java on Spark. Both understand classes, groups,
alternatives and repetitions; what needs backtracking, or means different things, is refused here.
"""

import re
import warnings

PATTERN_LENGTH_MAX = 1_000
REPETITIONS_MAX = 1_000  # RE2's own limit
_SPECIAL = re.compile(
    r"""
      \[\^?\]? (?P<members> (?: \\. | [^\]\\] )* ) \]
    | \\(?P<escape> . )
    | (?P<group> \(\?(?!:|P<[A-Za-z_]|i\)) )
    | (?P<possessive> [*+?}]\+ )
    | \{(?P<low>\d+) (?:,(?P<high>\d*))? \}
    """,
    re.VERBOSE | re.DOTALL,
)
_BRACKET_IN_CLASS = re.compile(r"(?:\\.|[^\\\[])*\[", re.DOTALL)
_UNSUPPORTED_ESCAPES = frozenset("123456789ZAGkNuUzQEXRCpP")


def regex_problem(pattern: str) -> str | None:
    """What is wrong with a pattern, or None."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        return f"it has more than {PATTERN_LENGTH_MAX} characters"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
    except re.error as error:
        return f"{error.msg} at character {0 if error.pos is None else error.pos + 1}"
    except (Warning, RecursionError, OverflowError) as error:
        return f"it is ambiguous or too deep ({error})"
    for found in _SPECIAL.finditer(pattern):
        place = f"{found[0]!r} at character {found.start() + 1}"
        if found["members"] and _BRACKET_IN_CLASS.match(found["members"]):
            return f"{place} has a bracket that should be written \\\\["
        if found["group"]:
            return f"{place} is not supported, nor is anything else that looks ahead or behind"
        if found["possessive"]:
            return f"{place} is a possessive repetition"
        if found["escape"] and found["escape"] in _UNSUPPORTED_ESCAPES:
            return f"{place} is not supported"
        if found["low"] and max(int(found["low"]), int(found["high"] or 0)) > REPETITIONS_MAX:
            return f"{place} repeats more than {REPETITIONS_MAX} times"
    return None
