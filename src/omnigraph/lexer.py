"""The lexer of both languages: tokens with their positions, and errors that point at them.

`tokenize` turns source text into tokens, `Tokens` is a cursor over them, `LanguageError` is an error with a position.
Time and memory are linear in the source, whose size and nesting are bounded, so that a parser that recurses once for
each bracket can't exhaust the stack, whatever the input.

No word is reserved: every word is a `name`, whose meaning depends on its position.
"""

import gc
import re
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from omnigraph.cancellation import checkpoint
from omnigraph.errors import BadRequest
from omnigraph.fork_safety import renew_after_fork

SOURCE_BYTES_MAX = 1_000_000
TOKENS_MAX = 250_000  # a text of that size with ordinary words has fewer
NESTING_MAX = 200
NUMBER_LENGTH_MAX = 400  # the longest F64 has 309 digits before its point
EXCERPT_WIDTH_MAX = 120
LARGE_TEXT_CHARS = 50_000
_TOKENS_BETWEEN_CHECKPOINTS = 4_096
_WAIT_S = 0.05

TokenKind: TypeAlias = Literal[
    "name",  # person, date, String
    "variable",  # $p, whose value is p
    "annotation",  # @key, whose value is key
    "string",  # "text", whose value is the text
    "integer",
    "float",
    "word",  # 24h: starts with digits but is not a number; only enum values may look like this
    "symbol",
    "end",
]

_LEXEME = re.compile(
    r"""
      (?P<blank>     [ \t\r\n]+ )
    | (?P<comment>   //[^\n]* )
    | (?P<block>     /\* )
    | (?P<name>      [A-Za-z_][A-Za-z0-9_]* )
    | (?P<variable>  \$[A-Za-z_][A-Za-z0-9_]* )
    | (?P<annotation> @[A-Za-z_][A-Za-z0-9_]* )
    | (?P<string>    "[^"\\\x00-\x1f]*" )
    | (?P<escaped>   " )
    | (?P<number>    -?[0-9]+ (?P<float> (?:\.[0-9]+)? (?:[eE][+-]?[0-9]+)? ) (?P<word> [A-Za-z0-9_]* ) )
    | (?P<symbol>    -> | \.\. | <= | >= | != | \|\| | [{}()\[\],:.?=<>|+*/%-] )
    """,
    re.VERBOSE,
)
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_FOUR_HEX_DIGITS = re.compile(r"[0-9A-Fa-f]{4}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_CLOSING = {"{": "}", "(": ")", "[": "]"}
_HINTS = {
    "'": 'write strings in double quotes: "…"',
    ";": "white space is the separator, remove it",
    "#": "comments start with //, or are between /* and */",
    "$": "a variable is $ followed by a name, such as $p",
    "@": "an annotation is @ followed by a name, such as @key",
    "!": "write != for unequal and not { … } for what must not match",
    "&": "all clauses have to hold anyway, remove it",
}


class LanguageError(BadRequest):
    """An invalid source text, with the position and what to write instead.

    `language_code` is the stable code of docs/language-errors.md; the `code` of every error kind stays
    `bad_request`, from which exit code and HTTP status follow.
    """

    known_by = ("language_code",)

    def __init__(
        self,
        language_code: str,
        message: str,
        expected: str,
        source_name: str,
        line: int,
        column: int,
        source_line: str = "",
    ) -> None:
        super().__init__(language_code, message, expected, source_name, line, column, source_line)
        self.language_code, self.message, self.expected = language_code, message, expected
        self.source_name, self.line, self.column = source_name, line, column
        self.source_line = source_line

    @property
    def excerpt(self) -> str:
        """The line of the source, with a caret below the position."""
        start = max(0, min(self.column - 1 - EXCERPT_WIDTH_MAX // 2, len(self.source_line) - EXCERPT_WIDTH_MAX))
        shown = self.source_line[start : start + EXCERPT_WIDTH_MAX]
        before = self.source_line[start : self.column - 1]
        below = "".join("\t" if character == "\t" else " " for character in before)
        margin = len(str(self.line))
        return f"{self.line} | {shown}\n{' ' * margin} | {below}^"

    @property
    def details(self) -> dict[str, Any]:
        return {
            "language_code": self.language_code,
            "source": self.source_name,
            "line": self.line,
            "column": self.column,
            "expected": self.expected,
            "excerpt": self.excerpt,
        }

    @classmethod
    def from_details(cls, message: str, details: Mapping[str, Any], source: str = "") -> Self:
        code, expected, name = details["language_code"], details["expected"], details["source"]
        line, column = details["line"], details["column"]
        problem = message.removeprefix(f"{name}:{line}:{column}: ").removesuffix(f": {expected}. [{code}]")
        lines = source.split("\n")
        whole = lines[line - 1].rstrip("\r") if 0 < line <= len(lines) else ""
        shown = details["excerpt"].split("\n")[0].partition(" | ")[2]
        return cls(code, problem, expected, name, line, column, whole if shown and shown in whole else shown)

    def __str__(self) -> str:
        where = f"{self.source_name}:{self.line}:{self.column}"
        return f"{where}: {self.message}: {self.expected}. [{self.language_code}]"


class Token(NamedTuple):
    """One word, number, string or symbol; `line` and `column` count from 1, in characters."""

    kind: TokenKind
    text: str  # as written
    value: Any  # of a string, number, variable, annotation or name
    line: int
    column: int
    offset: int

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end"
        return self.text if len(self.text) <= 40 else f"{self.text[:37]}…"


def error_at(
    source: str, source_name: str, token: Token, language_code: str, message: str, expected: str
) -> LanguageError:
    """The error that points at the start of a token."""
    start = token.offset - token.column + 1
    end = source.find("\n", start)
    line = source[start : len(source) if end < 0 else end].rstrip("\r")
    return LanguageError(language_code, message, expected, source_name, token.line, token.column, line)


class _LargeTexts:
    """The turn of large texts, in which the garbage collector pauses."""

    def __init__(self) -> None:
        self._paused = False
        renew_after_fork(self, _LargeTexts._renew)

    def _renew(self) -> None:
        if self._paused:  # in the parent, by another thread
            self._paused = False
            gc.enable()
        self._lock = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        while not self._lock.acquire(timeout=_WAIT_S):
            checkpoint()
        self._paused = gc.isenabled()
        if self._paused:
            gc.disable()
        try:
            yield
        except BaseException as error:
            # Its frames refer to half a syntax tree, and they to the error: nothing would free that for a long time.
            traceback.clear_frames(error.__traceback__)
            raise
        finally:
            if self._paused:
                self._paused = False
                gc.enable()
            self._lock.release()


_large_texts = _LargeTexts()


def is_large(text: str) -> bool:
    return len(text) >= LARGE_TEXT_CHARS


@contextmanager
def turn_of(text: str) -> Iterator[None]:
    """Large texts are compiled one after another, so that they leave others their share of the interpreter.

    Compiling takes seconds for a text of the largest size, all of it in Python. Each thread that computes in Python
    makes every other one wait some milliseconds whenever that wants to go on. Nor does the garbage collector go through
    their million objects meanwhile, which stops all threads for a third of a second: nearly all are gone afterwards.
    """
    if not is_large(text):
        yield
        return
    with _large_texts.turn():
        yield


class Span(NamedTuple):
    """A part of a source that begins at the start of a line."""

    start: int
    stop: int
    line: int


def tokenize(source: str, source_name: str, span: Span | None = None) -> list[Token]:
    """The tokens of a source, the last of kind `end`; refuses text that is too long, nested too deeply or invalid."""
    return _Lexer(source, source_name, span or Span(0, len(source), 1)).run()


class _Lexer:
    def __init__(self, source: str, source_name: str, span: Span) -> None:
        self.source, self.source_name = source, source_name
        self.tokens: list[Token] = []
        self.open: list[Token] = []
        self.at, self.stop, self.line = span
        self.line_start = self.at

    def run(self) -> list[Token]:
        source, tokens = self.source, self.tokens
        self.check_size()
        match_lexeme = _LEXEME.match
        if source.startswith("\ufeff", self.at):
            self.at += 1
        while self.at < self.stop:
            start, column = self.at, self.at - self.line_start + 1
            if not len(tokens) % _TOKENS_BETWEEN_CHECKPOINTS:
                checkpoint()
            found = match_lexeme(source, start, self.stop)
            if found is None:
                raise self.unexpected_character()
            if len(tokens) > TOKENS_MAX:
                message = f"The text has more than {TOKENS_MAX:,} words and symbols"
                raise self.error("OG-LX-101", message, "split it; data belongs in a load or a parameter")
            text, kind = found[0], found.lastgroup
            if kind == "blank":
                self.at = found.end()
                self.count_lines(start, self.at)
                continue
            if kind == "comment":
                self.at = found.end()
                continue
            if kind == "block":
                self.skip_block_comment()
                continue
            if kind == "name":
                tokens.append(Token("name", text, text, self.line, column, start))
            elif kind == "symbol":
                token = Token("symbol", text, text, self.line, column, start)
                tokens.append(token)
                self.track_bracket(token)
            elif kind == "variable":
                tokens.append(Token("variable", text, text[1:], self.line, column, start))
            elif kind == "annotation":
                tokens.append(Token("annotation", text, text[1:], self.line, column, start))
            elif kind == "string":
                tokens.append(Token("string", text, text[1:-1], self.line, column, start))
            elif kind == "escaped":
                tokens.append(self.string_with_escapes())
                continue
            else:
                tokens.append(self.number(found))
            self.at = found.end()
        if self.open:
            opening = self.open[-1]
            raise self.error(
                "OG-LX-203", f"{opening} is never closed", f"close it with {_CLOSING[opening.text]}", opening
            )
        tokens.append(self.here("end", ""))
        return tokens

    def check_size(self) -> None:
        size = len(self.source)
        if size <= SOURCE_BYTES_MAX:
            broken = _SURROGATE.search(self.source)
            if broken:
                self.at = broken.start()
                self.count_lines(0, self.at)
                raise self.error("OG-LX-102", "Half a surrogate pair is not a character", "write the whole character")
            size = len(self.source.encode())
        if size > SOURCE_BYTES_MAX:
            raise LanguageError(
                "OG-LX-101",
                f"The text has more than {SOURCE_BYTES_MAX:,} bytes",
                "split it; data belongs in a load or a parameter",
                self.source_name,
                1,
                1,
            )

    def here(self, kind: TokenKind, text: str, value: object = None) -> Token:
        return Token(kind, text, value, self.line, self.at - self.line_start + 1, self.at)

    def error(self, language_code: str, message: str, expected: str, token: Token | None = None) -> LanguageError:
        place = token or self.here("symbol", "")
        return error_at(self.source, self.source_name, place, language_code, message, expected)

    def unexpected_character(self) -> LanguageError:
        character = self.source[self.at]
        shown = character if character.isprintable() else f"U+{ord(character):04X}"
        expected = _HINTS.get(character, "names have letters A-Z, digits and _; write other text in double quotes")
        return self.error("OG-LX-102", f"Unexpected character {shown}", expected)

    def count_lines(self, start: int, end: int) -> None:
        lines = self.source.count("\n", start, end)
        if lines:
            self.line += lines
            self.line_start = self.source.rindex("\n", start, end) + 1

    def skip_block_comment(self) -> None:
        end = self.source.find("*/", self.at + 2, self.stop)
        if end < 0:
            raise self.error("OG-LX-104", "The comment never ends", "close it with */")
        start, self.at = self.at, end + 2
        self.count_lines(start, self.at)

    def track_bracket(self, token: Token) -> None:
        if token.text in _CLOSING:
            self.open.append(token)
            if len(self.open) > NESTING_MAX:
                raise self.error("OG-LX-201", f"More than {NESTING_MAX} brackets are open here", "nest less", token)
        elif token.text in _CLOSING.values():
            if not self.open:
                raise self.error("OG-LX-202", f"{token} closes nothing", "remove it", token)
            opening = self.open.pop()
            if _CLOSING[opening.text] != token.text:
                where = f"{opening} of line {opening.line}, column {opening.column}"
                expected = f"close {where} first, with {_CLOSING[opening.text]}"
                raise self.error("OG-LX-202", f"{token} does not fit {where}", expected, token)

    def number(self, found: re.Match[str]) -> Token:
        text = found[0]
        if len(text) > NUMBER_LENGTH_MAX:
            raise self.error("OG-LX-105", f"The number has more than {NUMBER_LENGTH_MAX} digits", "shorten it")
        if found["word"]:
            return self.here("word", text, text)
        if not found["float"]:
            return self.here("integer", text, int(text))
        value = float(text)
        if value in (float("inf"), float("-inf")):
            return self.here("word", text, value)  # such as the enum value 1E310
        return self.here("float", text, value)

    def string_with_escapes(self) -> Token:
        """A string with escapes, or an unterminated one."""
        start = self.here("string", "")
        parts: list[str] = []
        self.at += 1
        while True:
            plain = _PLAIN.match(self.source, self.at)
            assert plain is not None
            parts.append(plain[0])
            self.at = plain.end()
            character = self.source[self.at : self.at + 1]
            if character == '"':
                self.at += 1
                text = self.source[start.offset : self.at]
                return start._replace(text=text, value="".join(parts))
            if character == "\\":
                parts.append(self.escape())
            elif character in ("", "\n", "\r"):
                expected = 'close it with " on the line where it starts, a line break is \\n'
                raise self.error("OG-LX-103", "The string never ends", expected, start)
            else:
                shown = f"U+{ord(character):04X}"
                raise self.error("OG-LX-106", f"A string can't hold {shown} as it is", f"write \\u{ord(character):04x}")

    def escape(self) -> str:
        letter = self.source[self.at + 1 : self.at + 2]
        if letter in _ESCAPES and letter:
            self.at += 2
            return _ESCAPES[letter]
        if letter != "u":
            expected = 'use one of \\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX'
            raise self.error("OG-LX-106", f"Unknown escape \\{letter.strip()}", expected)
        unit = self.code_unit()
        if 0xD800 <= unit <= 0xDBFF and self.source.startswith("\\u", self.at):
            low = self.code_unit()
            if 0xDC00 <= low <= 0xDFFF:
                return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))
            self.at -= 6
        if 0xD800 <= unit <= 0xDFFF:
            self.at -= 6
            raise self.error(
                "OG-LX-106", "Half a surrogate pair is not a character", "write both halves, or the character"
            )
        return chr(unit)

    def code_unit(self) -> int:
        digits = _FOUR_HEX_DIGITS.match(self.source, self.at + 2)
        if digits is None:
            raise self.error("OG-LX-106", "\\u takes four hexadecimal digits", "write for example \\u00e9")
        self.at = digits.end()
        return int(digits[0], 16)


class Tokens:
    """A cursor over the tokens of one source, with the errors that parsers raise."""

    def __init__(self, source: str, source_name: str, span: Span | None = None) -> None:
        self.source, self.source_name = source, source_name
        self._tokens = tokenize(source, source_name, span)
        self._at = 0

    def peek(self, ahead: int = 0) -> Token:
        """The next token, or the one `ahead` of it; the last one, of kind `end`, is never passed."""
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def take(self) -> Token:
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
            if not self._at % _TOKENS_BETWEEN_CHECKPOINTS:
                checkpoint()
        return token

    def previous(self) -> Token:
        """The token taken last; only after one was taken."""
        return self._tokens[self._at - 1]

    def replace(self, token: Token) -> None:
        """Put another token in the place of the next one."""
        self._tokens[self._at] = token

    def at(self, text: str, ahead: int = 0) -> bool:
        """Whether the next token is the name or symbol `text`."""
        token = self.peek(ahead)
        return token.text == text and token.kind in ("name", "symbol")

    def accept(self, text: str) -> Token | None:
        return self.take() if self.at(text) else None

    def expect(self, text: str, expected: str | None = None) -> Token:
        """Take the name or symbol `text`; raises an error that names what was expected."""
        if self.at(text):
            return self.take()
        raise self.unexpected(expected or text)

    def expect_kind(self, kind: TokenKind, expected: str) -> Token:
        if self.peek().kind == kind:
            return self.take()
        raise self.unexpected(expected)

    def unexpected(self, expected: str, token: Token | None = None) -> LanguageError:
        """The error for a token in the wrong position: the syntax error of both languages."""
        found = token or self.peek()
        if found.kind == "word" and isinstance(found.value, float):
            message = f"{found} is too large for a number of 64 bits"
            return self.error("OG-LX-105", message, "write a smaller one", found)
        return self.error("OG-LX-200", f"Found {found}", f"expected {expected}", found)

    def error(self, language_code: str, message: str, expected: str, token: Token) -> LanguageError:
        return error_at(self.source, self.source_name, token, language_code, message, expected)
