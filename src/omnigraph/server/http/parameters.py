"""Query parameters and headers of a request against those that its route declares.

FastAPI ignores what a route does not declare, and takes the last of what is given twice. A misspelt `branch` would read
main, and a proxy that takes the first of two values would check another request than the one that is served.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, get_args, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from omnigraph.errors import BadRequest
from omnigraph.server.http.errors import PLACE_SHOWN_MAX, RequestRefused

JSON = "application/json"
NAMES_SHOWN_MAX = 20
# Of headers that no route declares, those with one value: RFC 9110 lets others be given several times, as a list.
_SINGLE_HEADERS = ("Content-Type", "Content-Encoding", "Host", "Origin", "Request-Timeout")


class Parameters:
    """What one route takes."""

    def __init__(self, route: APIRoute) -> None:
        dependants = list(_flatten(route.dependant))
        query = [field for one in dependants for field in one.query_params]
        self._query = {field.alias: _is_list(field.field_info.annotation) for field in query}
        self._headers = {field.alias for one in dependants for field in one.header_params} | {*_SINGLE_HEADERS}
        self._has_json_body = any(one.body_params for one in dependants)

    def require_known(self, request: Request) -> None:
        """Refuse query parameters that are unknown, and what may be given once and is given twice."""
        given = Counter(name for name, _ in request.query_params.multi_items())
        unknown = [name for name in given if name not in self._query]
        problems = [_problem(f"query.{name}", _unknown(name, self._query)) for name in unknown[:NAMES_SHOWN_MAX]]
        problems += [
            _problem(f"query.{name}", f"given {count} times, which is ambiguous: give it once")
            for name, count in given.items()
            if count > 1 and not self._query.get(name, True)
        ]
        problems += [
            _problem(f"header.{name}", "given more than once, which is ambiguous: send it once")
            for name in sorted(self._headers)
            if len(request.headers.getlist(name)) > 1
        ]
        if problems:
            total = len(problems) + max(0, len(unknown) - NAMES_SHOWN_MAX)
            raise RequestRefused(problems[:NAMES_SHOWN_MAX], total)

    def require_json(self, request: Request) -> None:
        """Refuse a body that does not say that it is JSON, and a missing one, before any of it is read."""
        if not self._has_json_body:
            return
        given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if given == JSON or (given.startswith("application/") and given.endswith("+json")):
            return
        header = f"send a JSON object with the header Content-Type: {JSON}"
        if given:
            raise BadRequest(f"The body has the Content-Type {given[:100]!r}, which is not served here: {header}.")
        if "transfer-encoding" not in request.headers and request.headers.get("content-length", "0") == "0":
            raise BadRequest(f"The request has no body: {header}.")
        raise BadRequest(f"The header Content-Type is missing: {header}.")


def _flatten(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for inner in dependant.dependencies:
        yield from _flatten(inner)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(_is_list(one) for one in get_args(annotation))


def _unknown(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not names:
        return "unknown parameter, there are none here: leave it out"
    close = difflib.get_close_matches(name[:PLACE_SHOWN_MAX], names, 1)
    return f"unknown parameter, {f'did you mean {close[0]}? There are' if close else 'there are'} {', '.join(names)}"


def _problem(place: str, error: str) -> dict[str, str]:
    return {"place": place[:PLACE_SHOWN_MAX], "error": error}
