"""The options of the data source, for reading and for writing."""

from collections.abc import Mapping

from omnigraph.errors import BadRequest

STORAGE = "storage."  # how the names of storage options start


def store_of(options: Mapping[str, str]) -> str:
    """Where the graph is: `.option("store", uri)`, or `.load(uri)`."""
    return options["path"] if "path" in options and "store" not in options else required(options, "store")


def storage_options_of(options: Mapping[str, str]) -> dict[str, str]:
    return {name[len(STORAGE) :]: value for name, value in options.items() if name.lower().startswith(STORAGE)}


def required(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise BadRequest(f'The data source needs the option {name!r}: .option("{name}", …).')
    return value


def refuse_unknown(options: Mapping[str, str], known: frozenset[str]) -> None:
    for name in options:
        if name.lower() not in known and not name.lower().startswith(STORAGE):
            names = ", ".join(sorted(known - {"path"}))
            raise BadRequest(f"The data source has no option {name!r}: it has {names} and {STORAGE}….")


def positive(options: Mapping[str, str], name: str, otherwise: int) -> int:
    text = options.get(name)
    if text is None:
        return otherwise
    if not text.isdecimal() or int(text) < 1:
        raise BadRequest(f"The option {name} is {text!r}: give a number of rows.")
    return int(text)
