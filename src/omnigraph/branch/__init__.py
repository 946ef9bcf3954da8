"""Three-way merge, diff, change feed: what concerns two states of the graph.

merge.py      the verb `branch merge`, from two heads to one published commit
draft.py      what a merge would do: tables taken over, tables merged row by row
virtual.py    several bases merged into one, in memory
states.py     the states that a merge compares
rows.py       the rows that two sides changed, read and merged, here or as tasks
decide.py     what becomes of a row: the one place where that is decided
agreement.py  what only the merged graph would break
images.py     rows of a side as the merged schema has them
conform.py    tables of the narrower schema made to fit

commands.py   history as the façade offers it
changes.py    the rows that differ between two states, composed from the commits between them
contents.py   the difference of one type, read
entities.py   rows as entities with their values before and after
lineage.py    the way through history from one state to a later one
feed.py       changes along a branch, resumable by a cursor
tokens.py     opaque cursors
revert.py     a commit that undoes another
"""
