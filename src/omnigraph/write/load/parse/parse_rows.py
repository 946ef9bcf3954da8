"""Columns of one type as rows, with defaults and ids; uncertain rows are parsed again, one by one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from omnigraph.manifest.model.manifest import TableKey
from omnigraph.query.values import default_of
from omnigraph.schema.catalog import Property, TypeDef
from omnigraph.write.load.input.load_input import InputPlace, LoadInput
from omnigraph.write.load.load_rows import TypeRows, build_rows
from omnigraph.write.load.parse.arrow_builder import build_column
from omnigraph.write.load.parse.keyed_ids import derive_ids
from omnigraph.write.load.parse.parse_columns import combine_masks
from omnigraph.write.load.parse.parsed import MintId, ParsedBlock, ParsedRows, RejectedLine, mint_ids

if TYPE_CHECKING:
    import numpy as np

    Mask = np.ndarray[Any, np.dtype[np.bool_]]
    Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass
class ParsedColumns:
    """Rows of one type by column, as a reader gives them; `uncertain` rows are parsed one by one."""

    definition: TypeDef
    numbers: "Numbers"
    values: dict[str, Any] = field(default_factory=dict)  # by property; a missing one is given in no row
    absent: "dict[str, Mask]" = field(default_factory=dict)  # rows that do not give a property which others give
    ids: Any = None  # null if a row gives none
    ends: tuple[Any, Any] | None = None
    uncertain: "Mask | None" = None

    def mark_uncertain(self, mask: "Mask | None") -> None:
        self.uncertain = combine_masks(self.uncertain, mask)


def finish_rows(columns: ParsedColumns, mint: MintId) -> "tuple[ParsedRows, Mask | None]":
    """The certain rows, and a mask of the uncertain ones."""
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_schema

    definition = columns.definition
    table: dict[str, Any] = {}
    for prop in definition.properties:
        table[prop.column] = _add_defaults(columns, prop)
    for end, column in zip(columns.ends or (), ("src", "dst"), strict=False):
        columns.mark_uncertain(_null_mask(end))
        table[column] = end
    table["id"], minted = _build_ids(columns, table, mint)
    schema = arrow_schema(definition)
    rows = pa.table([table[name] for name in schema.names], schema=schema)
    result = ParsedRows(definition, rows, _given_masks(columns), minted, columns.numbers)
    if columns.uncertain is None or not columns.uncertain.any():
        return result, None
    return filter_rows(result, ~columns.uncertain), columns.uncertain


def filter_rows(rows: ParsedRows, mask: "Mask") -> ParsedRows:
    """The rows where the mask is true."""
    import pyarrow as pa

    given = None if rows.given is None else {name: one[mask] for name, one in rows.given.items()}
    return ParsedRows(rows.definition, rows.rows.filter(pa.array(mask)), given, rows.minted[mask], rows.numbers[mask])


def _null_mask(column: Any) -> "Mask | None":
    mask: Mask | None = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return mask


def _add_defaults(columns: ParsedColumns, prop: Property) -> Any:
    """The column of a property, with the default where it is not given."""
    import numpy as np
    import pyarrow as pa

    count = len(columns.numbers)
    values = columns.values.get(prop.name)
    absent = columns.absent.get(prop.name)
    if values is not None and (absent is None or prop.default is None):
        return values
    default = default_of(prop)
    one, problems = build_column([list(default) if isinstance(default, tuple) else default], prop.type)
    assert not problems, f"the default of {prop.name} is none of its values"
    if values is None:
        return one.take(np.zeros(count, np.int64))
    assert absent is not None
    every: Any = pa.concat_arrays([values, one])
    return every.take(np.where(absent, count, np.arange(count)))


def _build_ids(columns: ParsedColumns, table: dict[str, Any], mint: MintId) -> "tuple[Any, Mask]":
    """Given ids, or ids of the key, or minted ones; a row with an incomplete key is uncertain."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as compute

    pc: Any = compute
    count, given = len(columns.numbers), columns.ids
    none = np.zeros(count, np.bool_)
    lacking = np.ones(count, np.bool_) if given is None else _null_mask(given)
    if columns.definition.key:
        derived = derive_ids(columns.definition, table)
        for name in columns.definition.key:
            columns.mark_uncertain(_null_mask(table[columns.definition.column(name)]))
        if lacking is not None:  # the validator compares given ids with their keys
            given = derived if given is None else pc.coalesce(given, derived)
            columns.mark_uncertain(_null_mask(given))
        return given, none
    if lacking is None:
        return given, none
    fresh = mint_ids(mint, columns.numbers[lacking])
    return (fresh if lacking.all() else pc.replace_with_mask(given, pa.array(lacking), fresh)), lacking


def _given_masks(columns: ParsedColumns) -> "dict[str, Mask] | None":
    import numpy as np

    properties, count = columns.definition.properties, len(columns.numbers)
    if all(prop.name in columns.values and prop.name not in columns.absent for prop in properties):
        return None
    every, none = np.ones(count, np.bool_), np.zeros(count, np.bool_)
    masks: dict[str, Any] = {}
    for prop in properties:
        absent = columns.absent.get(prop.name)
        masks[prop.column] = none if prop.name not in columns.values else every if absent is None else ~absent
    return masks


# One by one ----------------------------------------------------------------------------------------------


def parse_one_by_one(
    raws: Sequence[tuple[int, Any]], unit: str, types: Mapping[str, TypeDef], mint: MintId
) -> ParsedBlock:
    """Parse lines or entities with the code of loads in one process."""
    found = LoadInput([(InputPlace("", unit, number), raw) for number, raw in raws])
    incoming = build_rows(found, types, mint, each_once=False)
    by_number = dict(raws)
    rejected = [
        RejectedLine(place.number, reason, _raw_input(by_number[place.number])) for place, reason in incoming.malformed
    ]
    rejected += [RejectedLine(place.number, broken, by_number[place.number]) for place, broken in incoming.refused]
    taken = {key: _to_parsed_rows(rows) for key, rows in incoming.types.items() if rows.rows.num_rows}
    return ParsedBlock(taken, sorted(rejected, key=lambda one: one.number), incoming.seen)


def _raw_input(raw: Any) -> Any:
    """The original of a malformed line or record, for the quarantine."""
    return raw.raw if hasattr(raw, "reason") else raw


def _to_parsed_rows(rows: TypeRows) -> ParsedRows:
    import numpy as np

    every = all(mask.all() for mask in rows.given.values())
    numbers = np.array([place.number for place in rows.places], np.int64)
    return ParsedRows(rows.definition, rows.rows, None if every else rows.given, rows.minted, numbers)


def combine_blocks(parts: Iterable[ParsedBlock], lines: int) -> ParsedBlock:
    """The parts of one block as one, with rows in the order of their lines."""
    types: dict[TableKey, list[ParsedRows]] = {}
    rejected: list[RejectedLine] = []
    seen: dict[TableKey, int] = {}
    for part in parts:
        for key, rows in part.types.items():
            if rows.rows.num_rows:
                types.setdefault(key, []).append(rows)
        for key, count in part.seen.items():
            seen[key] = seen.get(key, 0) + count
        rejected += part.rejected
    merged = {key: _concat_in_order(rows) for key, rows in sorted(types.items(), reverse=True)}  # nodes first
    return ParsedBlock(merged, sorted(rejected, key=lambda one: one.number), seen, lines)


def _concat_in_order(parts: list[ParsedRows]) -> ParsedRows:
    import numpy as np
    import pyarrow as pa

    if len(parts) == 1:
        return parts[0]
    numbers = np.concatenate([part.numbers for part in parts])
    order = np.argsort(numbers, kind="stable")
    given = None
    if any(part.given is not None for part in parts):
        columns = [prop.column for prop in parts[0].definition.properties]
        given = {name: np.concatenate([part.given_in(name) for part in parts])[order] for name in columns}
    rows = pa.concat_tables([part.rows for part in parts]).combine_chunks().take(order)
    minted = np.concatenate([part.minted for part in parts])[order]
    return ParsedRows(parts[0].definition, rows, given, minted, numbers[order])
