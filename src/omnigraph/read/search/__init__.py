"""Full-text and vector search, ranking, embedding."""
