"""Regular expressions that come from users, matched by RE2, in time linear in the text.

No other module matches a pattern that is not a literal. Python's `re` and Java's backtrack: with `(a+)+b` and 40
letters they hold the interpreter, or a task, for hours. Arrow's kernels, which use RE2, work in process and in Arrow
tasks on Spark.

Linear still means: the size of the compiled pattern times the bytes of the text. Both are bounded here.
"""

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from omnigraph.cancellation import checkpoint
from omnigraph.errors import BadRequest

if TYPE_CHECKING:
    import pyarrow as pa

PATTERN_LENGTH_MAX = 1_000
REPETITIONS_MAX = 1_000  # RE2's own limit, also of repetitions inside repetitions
PROGRAM_SIZE_MAX = 20_000  # instructions; `.{0,1000}` has 10,000
STEPS_MAX = 100_000_000  # instructions times bytes, at 5 ns at most: what one text, or the first of many, may take

_CLASS_SIZE = 10  # `.` and negated classes read UTF-8 byte by byte
_TOKEN = re.compile(
    r"""
      \[\^?\]? (?P<members> (?: \\. | [^\]\\] )* ) \]
    | \\(?P<escape> . )
    | (?P<unsupported> \(\?(?!:|P<[A-Za-z_]|i\)) )
    | (?P<open> \( (?: \?: | \?P<[A-Za-z0-9_]+> )? )
    | (?P<close> \) )
    | (?P<possessive> (?: [*+?] | \{\d+(?:,\d*)?\} ) \+ )
    | \{(?P<low>\d*) (?P<comma>,)? (?P<high>\d*) \}
    | (?P<repeat> [*+?] )
    | (?P<any> \. )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_BRACKET_IN_CLASS = re.compile(r"(?:\\.|[^\\\[])*\[", re.DOTALL)
# What needs backtracking, or what engines read differently.
_UNSUPPORTED_ESCAPES = frozenset("123456789ZAGkNuUzQEXRCpP")


@lru_cache(maxsize=256)
def pattern_problem(pattern: str) -> str | None:
    """Why a pattern of a schema can't be used, or None."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        return f"it has more than {PATTERN_LENGTH_MAX} characters"
    for found in _TOKEN.finditer(pattern):
        place = f"{found[0]!r} at character {found.start() + 1}"
        if found["members"] and _BRACKET_IN_CLASS.match(found["members"]):
            return f"{place} has a bracket that should be written \\\\["
        if found["unsupported"]:
            return f"{place} is not supported, nor is anything else that looks ahead or behind"
        if found["possessive"]:
            return f"{place} is a possessive repetition"
        if found["escape"] and found["escape"] in _UNSUPPORTED_ESCAPES:
            return f"{place} is not supported"
        if found["comma"] and not found["low"]:
            return f"{place} has no lower bound: {{0,{found['high']}}} has"
        if found["low"] and max(int(found["low"]), int(found["high"] or 0)) > REPETITIONS_MAX:
            return f"{place} repeats more than {REPETITIONS_MAX} times"
    refusal, size = _refusal(pattern), program_size(pattern)
    if size > PROGRAM_SIZE_MAX and (refusal is None or refusal.startswith("pattern too large")):
        return f"it compiles to about {size:,} instructions, more than {PROGRAM_SIZE_MAX:,}: repeat less"
    return refusal


def _refusal(pattern: str) -> str | None:
    """What RE2 says about a pattern that it does not accept."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        if reason.startswith("invalid repetition size"):
            return f"repetitions inside repetitions add up to more than {REPETITIONS_MAX} ({reason})"
        return reason
    return None


def program_size(pattern: str) -> int:
    """How many instructions a pattern compiles to, about: a repetition repeats what it repeats."""
    sizes = [0]
    last = 0  # the size of what a repetition would repeat
    for found in _TOKEN.finditer(pattern):
        if found["open"]:
            sizes.append(2)
            continue
        if found["close"]:
            last = sizes.pop() if len(sizes) > 1 else 0
        elif found["repeat"]:
            last, sizes[-1] = last + 1, sizes[-1] - last
        elif found["low"]:
            copies = max(int(found["low"]), int(found["high"] or 0), 1)
            last, sizes[-1] = (last + 1) * copies, sizes[-1] - last
        elif found["members"] is not None:
            last = _CLASS_SIZE + len(found["members"])
        else:
            last = _CLASS_SIZE if found["any"] or found["escape"] else len(found[0].encode("utf-8", "replace"))
        sizes[-1] += last
    return sum(sizes)


def matches_whole(texts: "pa.Array[Any] | pa.ChunkedArray[Any]", pattern: str) -> Any:
    """Which texts match from beginning to end; null where the text is null.

    A large array is matched in slices, between which the work can be stopped: the first takes half a second at most,
    and each later one at most as long as all before it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = f"\\A(?:{pattern})\\z"
    rows = max(1, STEPS_MAX * len(texts) // (program_size(pattern) * texts.nbytes + 1))
    matched: list[Any] = []
    start = 0
    try:
        while start < len(texts) or not matched:
            checkpoint()
            found = pc.match_substring_regex(texts.slice(start, rows), whole)
            matched += found.chunks if isinstance(found, pa.ChunkedArray) else [found]
            start, rows = start + rows, rows * 2  # each slice compiles the pattern anew
    except pa.ArrowInvalid as error:
        reason = pattern_problem(pattern) or str(error)
        raise BadRequest(f"The pattern {pattern!r} can't be used, {reason}: write one that RE2 understands.") from error
    return matched[0] if len(matched) == 1 else pa.chunked_array(matched, pa.bool_())


def is_quick_to_match(text: str, pattern: str) -> bool:
    """Whether one text can be matched without making others wait."""
    return program_size(pattern) * len(text.encode("utf-8", "replace")) <= STEPS_MAX


def matches_text(text: str, pattern: str) -> bool:
    import pyarrow as pa

    return bool(matches_whole(pa.array([text]), pattern)[0].as_py())
