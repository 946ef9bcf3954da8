"""A whole graph beside its model: everything that can be done to it, in any order, and everything it can be asked."""
