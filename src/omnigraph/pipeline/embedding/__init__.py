"""Vectors for texts, in batches: `embed`.

embed.py  rows without vectors are found, embedded and committed
tasks.py  batches of requests to a provider
"""
