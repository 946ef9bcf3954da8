"""The interface of a graph, and the JSON documents of its commands.

interface.py   GraphLike and its parts: typing protocols that Graph and RemoteGraph implement
wire_model.py  what a wire model is: the members of a JSON document and how a result is read from and written to them
models.py      wire models of commits, branches, changes, the schema, queries and data
job_models.py  wire models of maintenance, of jobs, and of servers
documents.py   JSON text, and the documents that are written piece by piece
"""
