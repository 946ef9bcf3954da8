"""`token`: who may do what at a server."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from omnigraph.api.wire_model import Document
from omnigraph.cli.options import Settings, common_options, pass_settings
from omnigraph.cli.output import Paint, table
from omnigraph.runtime import SystemClock

if TYPE_CHECKING:
    from omnigraph.server.auth.tokens import StoredToken

TOKENS_VARIABLE = "OMNIGRAPH_TOKENS"

_file_option = click.option(
    "--tokens",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"The token file of the server.  [default: ${TOKENS_VARIABLE}]",
)


def _required(path: Path | None) -> Path:
    found = path or os.environ.get(TOKENS_VARIABLE)
    if not found:
        raise click.UsageError(f"No token file is named: give --tokens FILE, or set ${TOKENS_VARIABLE}.")
    return Path(found)


@click.group()
@common_options
def token() -> None:
    """Tokens: create, list and revoke what lets clients of a server in."""


@token.command()
@click.argument("who", metavar="ACTOR")  # `actor` is what --as says
@click.option(
    "--grant",
    "grants",
    metavar="ROLE[@GRAPH[:BRANCH]]",
    multiple=True,
    required=True,
    help="read, write or admin, on graphs and branches by name or pattern; may be repeated.",
)
@_file_option
@common_options
@pass_settings
def create(settings: Settings, who: str, grants: tuple[str, ...], path: Path | None) -> None:
    """Make a token for ACTOR and print it. It is stored as a hash, so this is the only time."""
    from omnigraph.server.auth.tokens import create_token, parse_grant

    made, text = create_token(_required(path), who, [parse_grant(grant) for grant in grants], SystemClock().now())
    settings.output.data({"token": text, **made.to_json()}, lambda _: (text,))
    settings.output.note(f"Token {made.id} of {made.actor}: keep it, it can't be shown again.")


@token.command("list")
@_file_option
@common_options
@pass_settings
def list_(settings: Settings, path: Path | None) -> None:
    """List the tokens, without what they are."""
    from omnigraph.server.auth.tokens import read_tokens

    known = read_tokens(_required(path))
    settings.output.data({"tokens": [one.to_json() for one in known]}, lambda paint: _lines(known, paint))


@token.command()
@click.argument("id_", metavar="ID")
@_file_option
@common_options
@pass_settings
def revoke(settings: Settings, id_: str, path: Path | None) -> None:
    """End the token ID: the next request with it is refused."""
    from omnigraph.server.auth.tokens import revoke_token

    gone = revoke_token(_required(path), id_)
    document: Document = gone.to_json()
    settings.output.done(document, f"Revoked token {gone.id} of {gone.actor}.")


def _lines(known: "Iterable[StoredToken]", paint: Paint) -> Iterable[str]:
    rows = [(one.id, one.actor, one.created_at, ", ".join(map(str, one.grants))) for one in known]
    return table(paint, ("TOKEN", "ACTOR", "CREATED AT", "GRANTS"), rows) if rows else ()
