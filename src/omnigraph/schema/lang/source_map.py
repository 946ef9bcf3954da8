"""The source map: the token of each path in a catalog, so that an error in the catalog points at the text."""

from omnigraph.lexer import LanguageError, Token, error_at
from omnigraph.schema.consistency import CatalogPath, InvalidCatalog
from omnigraph.schema.lang.ast import SchemaFile


class SourceMap:
    """Filled while declarations are resolved; for an unknown path the enclosing one is used."""

    def __init__(self, file: SchemaFile) -> None:
        self.file = file
        self._tokens: dict[CatalogPath, Token] = {}

    def record(self, token: Token, *place: object) -> None:
        """Record a token; a later declaration replaces an earlier one, because the later one is the duplicate."""
        self._tokens[place] = token

    def error(self, token: Token, language_code: str, message: str, expected: str) -> LanguageError:
        return error_at(self.file.source, self.file.source_name, token, language_code, message, expected)

    def locate_error(self, invalid: InvalidCatalog) -> LanguageError:
        place = invalid.place
        while place not in self._tokens:
            place = place[:-1]
        return self.error(self._tokens[place], invalid.language_code, invalid.message, invalid.expected)
