"""Vectors for texts, in batches: `embed`.

embed.py  embed: the verb
tasks.py  batches of requests to a provider
rows.py   rows without vectors, and the schema of the column
"""
