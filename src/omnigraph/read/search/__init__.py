"""Full-text and vector search, ranking, embedding.

search.py         text filters and ranks
fulltext.py       full-text search
vector.py         vector distances
ranking.py        ranks as values of rows
row_locations.py  Lance row addresses and row ids
embedding.py      clients of embedding providers
"""
