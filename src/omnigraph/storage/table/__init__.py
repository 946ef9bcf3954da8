"""Tables: immutable Lance versions, with the rows of small commits on top.

tables.py          the entry: reads and writes of table versions
handles.py         open datasets and the Lance session
table_content.py   a version with inline rows on top
overlay.py         inline rows as one value, pure
align.py           tables in the columns of a schema
view.py            version and overlay as a private dataset
file_records.py    sizes and checksums of table files
fsync.py           makes Lance's files durable
lance_errors.py    translates errors of Lance
lance_io_stats.py  Lance's requests, counted
read/              scans, point lookups, search
write/             detached commits and fragments
index/             index builds and metadata
maintain/          compaction, layout, orphaned files, inspection
diff/              differences between versions
"""
