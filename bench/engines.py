"""The engines side by side: the same rows, and a question in each one's language, from its text to rows in Python."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from bench.graph import DEGREE_MEDIAN, EDGES, PEOPLE
from bench.queries import BUCKET, TEXT, GraphQuery
from omnigraph.graph.graph import Graph

Answer = list[tuple[Any, ...]]
Call = Callable[[], Answer]
Tables = Mapping[str, pa.Table]


def _in_order(question: GraphQuery, rows: Answer) -> Answer:
    """Only the top of a whole has an order; any other answer is compared as a set."""
    return rows if "order {" in question.ours else sorted(rows)


_numbers = itertools.count()


def _text(question: GraphQuery, text: str, comment: str) -> str:
    """The text to send now: a comment makes it one that no engine has seen, where the question is about that."""
    return f"{text} {comment} {next(_numbers)}" if question.is_new else text


def our_text(question: GraphQuery) -> str:
    return _text(question, question.ours, "//")


def ours(graph: Graph, question: GraphQuery, start: str) -> Call:
    params = {"s": start} if question.start else {}
    return lambda: [tuple(row.values()) for row in graph.query(our_text(question), params=params).rows]


class DuckDb:
    """Native tables: a primary key on each node table, an index on either end of each edge table."""

    name = "DuckDB"
    version = duckdb.__version__

    def __init__(self, tables: Tables) -> None:
        self.connection = duckdb.connect()
        self._make("person", tables["node:Person"], "slug", "slug", "name", "age", "city")
        self._make("company", tables["node:Company"], "name", "name", "sector")
        self._make("knows", tables["edge:Knows"], None, "src", "dst", "since", "weight")
        self._make("works_at", tables["edge:WorksAt"], None, "src", "dst", "since")

    def _make(self, name: str, rows: pa.Table, key: str | None, *columns: str) -> None:
        wanted = rows.select(list(columns))
        self.connection.register("incoming", wanted)
        self.connection.execute(f"CREATE TABLE {name} AS SELECT * FROM incoming")
        self.connection.unregister("incoming")
        if key is not None:
            self.connection.execute(f"ALTER TABLE {name} ADD PRIMARY KEY ({key})")
            return
        for end in ("src", "dst"):
            self.connection.execute(f"CREATE INDEX {name}_{end} ON {name} ({end})")

    def calls(self, question: GraphQuery, start: str) -> list[Call]:
        params = {"s": start} if question.start else {}

        def call(text: str) -> Call:
            return lambda: self.connection.execute(_text(question, text, "--"), params).fetchall()

        return [call(text) for text in question.duckdb]


class Ladybug:
    """Its own files, loaded by COPY. It keeps the statements that it has prepared by their text, as we do."""

    name = "ladybug"

    def __init__(self, tables: Tables, directory: Path) -> None:
        import ladybug

        self.version = ladybug.__version__
        self.connection: Any = ladybug.Connection(ladybug.Database(str(directory / "ladybug")))
        for statement in (
            "CREATE NODE TABLE Person(slug STRING PRIMARY KEY, name STRING, age INT32, city STRING)",
            "CREATE NODE TABLE Company(name STRING PRIMARY KEY, sector STRING)",
            "CREATE REL TABLE Knows(FROM Person TO Person, since DATE, weight FLOAT)",
            "CREATE REL TABLE WorksAt(FROM Person TO Company, since DATE)",
        ):
            self.connection.execute(statement)
        for key in ("node:Person", "node:Company", "edge:Knows", "edge:WorksAt"):
            name = key.partition(":")[2]
            path = directory / f"{name}.parquet"
            pq.write_table(tables[key].drop_columns(["id"]), path)
            self.connection.execute(f"COPY {name} FROM '{path}'")
            path.unlink()

    def calls(self, question: GraphQuery, start: str) -> list[Call]:
        params = {"s": start} if question.start else {}

        def call(text: str) -> Call:
            return lambda: [
                tuple(row) for row in self.connection.execute(_text(question, text, "//"), params).get_all()
            ]

        return [call(text) for text in question.ladybug]


class LanceDb:
    """One table with the same kinds of index that ours has; it does not look for newer versions, as it ships."""

    name = "lancedb"

    def __init__(self, documents: pa.Table, directory: Path) -> None:
        import lancedb
        from lancedb.index import FTS, BTree, IvfSq

        self.version = lancedb.__version__
        self.table: Any = lancedb.connect(str(directory / "lancedb")).create_table("documents", data=documents)
        partitions = int(documents.num_rows**0.5)
        self.table.create_index("meaning", config=IvfSq(distance_type="cosine", num_partitions=partitions))
        words = FTS(with_position=True, remove_stop_words=False, max_token_length=None)
        self.table.create_index("body", config=words)
        for column in ("slug", "bucket"):
            self.table.create_index(column, config=BTree())

    def scores(self) -> dict[str, float]:
        """By full text, of all that is found."""
        found = self.table.search(TEXT, query_type="fts", fts_columns="body").select(["slug", "_score"])
        return {row["slug"]: row["_score"] for row in found.limit(self.table.count_rows()).to_list()}

    def calls(self, vector: list[float]) -> dict[str, Call]:
        from lancedb.rerankers import RRFReranker

        def near() -> Any:
            return self.table.search(vector, vector_column_name="meaning").distance_type("cosine").refine_factor(10)

        def words() -> Any:
            return self.table.search(TEXT, query_type="fts", fts_columns="body")

        def hybrid() -> Any:
            both = self.table.search(query_type="hybrid", vector_column_name="meaning", fts_columns="body")
            return both.vector(vector).text(TEXT).distance_type("cosine").refine_factor(10).rerank(RRFReranker())

        def slugs(query: Any) -> Answer:
            return [(row["slug"],) for row in query.select(["slug"]).limit(10).to_list()]

        return {
            "bm25 top 10": lambda: slugs(words()),
            "vector top 10": lambda: slugs(near()),
            "vector top 10 of 1 %": lambda: slugs(near().where(f"bucket = {BUCKET}", prefilter=True)),
            "hybrid by RRF, top 10": lambda: slugs(hybrid()),
        }


def agree(question: GraphQuery, first: Answer, second: Answer) -> bool:
    return _in_order(question, first) == _in_order(question, second)


def starts(tables: Tables) -> dict[str, str]:
    """Who knows as many as the median, who knows as many as the mean, and who knows the most: the first of each."""
    column: Any = tables["edge:Knows"].column("src").combine_chunks()
    sources = column.value_counts()
    counts: list[int] = sources.field("counts").to_pylist()
    names: list[str] = sources.field("values").to_pylist()
    wanted = {"median": DEGREE_MEDIAN, "one": EDGES // PEOPLE, "hub": max(counts)}
    return {"": "", **{start: names[counts.index(degree)] for start, degree in wanted.items()}}
