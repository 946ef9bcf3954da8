"""Commands that operate a graph or a server.

optimize.py  optimize
cleanup.py   cleanup
verify.py    verify
recover.py   recover
jobs.py      jobs of a server
serve.py     serve
token.py     tokens of a server
"""
