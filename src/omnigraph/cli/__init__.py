"""The command line: the façade in words.

main.py    the `omnigraph` command: what a run prints and how it exits, whatever happens
common.py  the flags that every command understands, and opening the store they name
output.py  answers as text or as JSON; data to stdout, everything else to stderr
graph.py   snapshot, version
branch.py  branch create, list, delete
commit.py  commit list, show
"""
