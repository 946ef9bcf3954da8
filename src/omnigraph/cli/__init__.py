"""The command line: the façade in words.

main.py       the `omnigraph` command: what a run prints and how it exits, whatever happens
common.py     the flags that every command understands, and opening the store they name
files.py      schema and query texts, and parameters: from files, stdin or the command line
output.py     answers as text or as JSON; data to stdout, everything else to stderr
formats.py    the rows of a query as table, json, jsonl, csv or kv
published.py  what a write answers
progress.py   a sign of life on a terminal
schema.py     init, schema show
data.py       load, export
query.py      query, mutate, lint
graph.py      snapshot, version
branch.py     branch create, list, delete
commit.py     commit list, show
demo.py       demo: a sample graph, and a walk through the main job
"""
