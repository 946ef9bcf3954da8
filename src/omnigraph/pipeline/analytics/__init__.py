"""PageRank, components, degrees, triangles: numpy on one machine, DataFrames on many.

analyze.py  analyze: the verb; results written into a column
spec.py     AnalysisSpec: algorithm, part of the graph, destination
local.py    algorithms in numpy
spark.py    algorithms on DataFrames
"""
