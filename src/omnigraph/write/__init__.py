"""Write: from what a caller wants changed to one published commit.

mutate.py        a bound mutation as a delta: statements run one after another on drafts of their tables
draft.py         one table while a mutation runs
where.py         the rows that a statement selects

load.py          a load as one commit, all of it or what can be taken
ndjson.py        files, dicts and tables as entities with their places
sources.py       paths, globs, directories and URIs as files     input_files.py  stretches of their lines, Parquet
csv_records.py   CSV as entities     table_rows.py  typed tables as entities     strict_json.py  JSON that is taken
splits.py        files in parts, for many workers                parsed.py  what a part gives: rows, and what is none
parse.py         a part as typed rows, at full speed where that is certain to be right, by the line where not
  parse_ndjson.py, parse_csv.py, parse_parquet.py  one for each kind    parse_columns.py, parse_rows.py  what they share
ids.py           ids of keyed rows, column by column
incoming.py      entities as rows of the schema's types
columns.py       values to Arrow columns
modes.py         append, merge, overwrite as a delta
quarantine.py    what was left out, and why

delta.py         what a write changes, as values
images.py        rows before and after
validate.py      the one validator: what a delta must fulfil, derived from the schema's constraints
value_checks.py  constraints that rows fulfil by themselves
graph_checks.py  constraints between rows and the rest of the graph
checks.py        what must be true of the graph, as values; all of it run at once
lookups.py       questions to stored tables
violations.py    all that is broken as one error

commit.py        the whole path: open, check, stage, publish
stage.py         the physical part: detached table versions, all tables at once
"""
