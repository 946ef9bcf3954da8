"""What differs between two states of a graph, and the change feed."""
