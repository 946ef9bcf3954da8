"""Adjacency of edges as compressed arrays.

csr.py             compressed sparse rows
adjacency.py       the adjacency of an edge table
adjacency_file.py  adjacency saved beside the table
"""
