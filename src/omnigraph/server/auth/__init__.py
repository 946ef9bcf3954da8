"""Who asks, and what they may do.

tokens.py  authentication: bearer tokens in a file
access.py  authorization, for every route
"""
