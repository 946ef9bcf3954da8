"""The command line.

main.py      the `omnigraph` command, and exit codes
options.py   global flags, and opening the graph that they name
inputs.py    schema and query texts and parameters, from files, stdin or arguments
output.py    results to stdout as text or JSON, everything else to stderr
progress.py  a progress bar on a terminal
demo.py      `demo`: a sample graph and a walk-through
commands/    all other commands
render/      rendering of results as text
"""
