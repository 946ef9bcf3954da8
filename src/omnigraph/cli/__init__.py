"""The command line.

main.py      the `omnigraph` command, and exit codes
options.py   global flags, and opening the graph they name
inputs.py    schema and query texts and parameters, from files, stdin or arguments
output.py    results to stdout as text or JSON, everything else to stderr
progress.py  progress on a terminal
demo.py      `demo`: a sample graph and a walk-through
data/        commands that read and write data and schemas
history/     commands for branches, commits, changes and tags
operate/     commands that operate a graph or a server
render/      rendering of results as text
"""
