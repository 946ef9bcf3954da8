"""A split of the input as typed rows.

Whole stretches are parsed by Arrow where that is certain to give what `ndjson.py` and `incoming.py` would; every other
line goes through them, who take it or say why not. So there is one meaning of an input, at two speeds.
"""

from collections.abc import Iterator, Mapping

from omnigraph.schema.catalog import Catalog
from omnigraph.write.load.input.chunks import FileChunks, read_gzip_lines, read_line_range
from omnigraph.write.load.input.input_splits import Split
from omnigraph.write.load.input.sources import check_type
from omnigraph.write.load.parse.parse_csv import parse_csv
from omnigraph.write.load.parse.parse_ndjson import parse_line_blocks
from omnigraph.write.load.parse.parse_parquet import parse_parquet, parse_table
from omnigraph.write.load.parse.parsed import IdMinter, MintId, ParsedBlock

__all__ = ["parse_split", "parse_table"]


def parse_split(
    split: Split, catalog: Catalog, storage_options: Mapping[str, str] | None, mint: MintId | IdMinter
) -> Iterator[ParsedBlock]:
    """The split in stretches of a few MiB, in order; a `IdMinter` is told the split's number here.

    `storage_options` are the graph's; they serve for files in a store of the same kind.
    """
    if isinstance(mint, IdMinter):
        mint = mint.for_split(split.number)
    where = (split.path, split.shown, split.file_size)
    if split.kind == "ndjson":
        blocks = read_line_range(*where, split.offset, split.length, storage_options)
        return parse_line_blocks(blocks, catalog, mint)
    if split.kind == "ndjson.gz":
        return parse_line_blocks(read_gzip_lines(*where, storage_options), catalog, mint)
    check_type(catalog, split.type_name)
    definition = catalog.by_name[split.type_name or ""]
    if split.kind == "parquet":
        return parse_parquet(split, definition, storage_options, mint)
    chunks = FileChunks(*where, storage_options)
    opened = chunks.read_decompressed() if split.kind == "csv.gz" else chunks.read()
    return parse_csv(opened, split.shown, definition, catalog, mint)
