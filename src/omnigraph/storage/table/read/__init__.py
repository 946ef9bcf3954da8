"""Reading a table: scans, point lookups, search."""
