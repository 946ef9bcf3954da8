"""The interface of a graph, and the JSON documents of its verbs."""
