"""The interface of a graph, and the JSON documents of its verbs.

interface.py  GraphLike and its parts: typing protocols that Graph and RemoteGraph implement
documents.py  the JSON document of every verb, for `--json` and HTTP
"""
