"""PageRank, components, degrees, triangles: numpy on one machine, DataFrames on many."""
