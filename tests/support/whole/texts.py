"""How models are written as schemas, mutations and differences, and read back."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omnigraph.graph.graph import Graph
from support.whole import model as m
from support.whole.model import Model, Prop, Type


def unique_of(definition: Type) -> Type:
    """`code` is unique by an annotation, which moves with the property when that is renamed."""
    own = tuple((prop.name,) for prop in definition.props if prop.annotation == "@unique")
    return replace(definition, unique=tuple(names for names in definition.unique if len(names) > 1) + own)


def exported(graph: Graph, branch: str, at: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
    out = io.BytesIO()
    graph.export(out, branch, at)
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for line in out.getvalue().splitlines():
        entity = json.loads(line)
        data = m.without_nulls(entity["data"])
        id_ = data.pop("id")
        name = entity.get("type") or entity["edge"]
        if "edge" in entity:
            data |= {"from": entity["from"], "to": entity["to"]}
        table = rows.setdefault(name, {})
        assert id_ not in table, f"{name} {id_} is there twice"
        table[id_] = data
    return rows


def printed(one: Type, values: Mapping[str, Any]) -> str:
    nulls = {prop.name: f"${prop.type.strip('[]').lower()}" for prop in one.props}  # parameters that nobody gives
    nulls |= {prop.name: "$list" for prop in one.props if prop.type[0] == "["}
    return ", ".join(f"{k}: {nulls[k] if v is None else literal(v)}" for k, v in values.items())


def literal(value: Any) -> str:
    text = json.dumps(value)
    return f"date({text})" if text.startswith('"2026-') else text


def query(statements: str) -> str:
    nulls = "$i32: I32?, $i64: I64?, $string: String?, $date: Date?, $list: [String]?"
    return f"query q({nulls}) {{ {statements} }}"


def _of_body(one: Type) -> tuple[tuple[str, ...], ...]:
    return tuple(names for names in one.unique if len(names) > 1)


def text(model: Model) -> str:
    return replace(model, types=tuple(replace(one, unique=_of_body(one)) for one in model.types)).schema()


def swapped(
    model: Model, one: Type, new: Type, rows: Mapping[str, m.Row], given: Type | None = None
) -> tuple[Model, str]:
    def with_ends(other: Type) -> Type:
        ends = other.ends and tuple(new.name if end == one.name else end for end in other.ends)
        return replace(other, ends=ends)  # type: ignore[arg-type]

    def types(mine: Type) -> tuple[Type, ...]:
        return tuple(with_ends(mine if other is one else other) for other in model.types)

    others = {name: table for name, table in model.rows.items() if name != one.name}
    after = Model(types(new), {**others, new.name: rows})
    return after, text(replace(after, types=types(given or new)))


def net(older: Model, newer: Model) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for one in newer.types:
        a, b = older.table(one.name), newer.table(one.name)
        found += [(one.name, i, "insert") for i in b if i not in a]
        found += [(one.name, i, "delete") for i in a if i not in b]
        found += [(one.name, i, "update") for i in a if i in b and a[i] != b[i]]
    return sorted(found)


def different(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for name in sorted({*found, *wanted}):
        f, w = found.get(name, {}), wanted.get(name, {})
        lines += [f"{name} {i}: found {f.get(i)}, not {w.get(i)}" for i in sorted({*f, *w}) if f.get(i) != w.get(i)]
    return "; ".join(lines)


_INSERT = re.compile(r"insert (\w+) \{ (.*) \}$")
_UPDATE = re.compile(r"update (\w+) set \{ (.*) \} where (\w+) = (.*)$")
_DELETE = re.compile(r"delete (\w+) where (\w+) = (.*)$")


def values_of(text: str) -> dict[str, Any]:
    text = re.sub(r"\$\w+", "null", re.sub(r"(\w+): ", r'"\1": ', text))
    return dict(json.loads("{" + text + "}"))


def replayed(text: str, model: Model) -> Model:
    """What one statement makes of a state."""
    text = re.sub(r"date\((.*?)\)", r"\1", text)
    if found := _INSERT.match(text):
        return m.insert(model, found[1], values_of(found[2]))
    if found := _UPDATE.match(text):
        return m.update(model, found[1], found[3], json.loads(found[4]), values_of(found[2]))
    found = _DELETE.match(text)
    assert found is not None, text
    return m.delete(model, found[1], found[2], json.loads(found[3]))


_TYPE = re.compile(r"(node|edge) (\w+)(?:: (\w+) -> (\w+))?(?: @card\(0\.\.(\d+)\))?[^{\n]*(?:\{([^}]*)\})?")
_PROP = re.compile(r"^[ \t]*(\w+): ([\w\[\]]+)(\?)?[ \t]*(@\w+)?", re.MULTILINE)


def parsed(schema: str) -> tuple[Type, ...]:
    """The types of a schema text, as far as these tests write one."""
    types: list[Type] = []
    for kind, name, source, target, card, body in _TYPE.findall(schema):
        props = tuple(Prop(p, t, not q, "" if a in ("@rename_from",) else a) for p, t, q, a in _PROP.findall(body))
        key = next((p.name for p in props if p.annotation == "@key"), None)
        pairs = (("src", "dst"),) if "@unique(src, dst)" in body else ()
        ends = (source, target) if kind == "edge" else None
        one = Type(name, props, key, ends, int(card) if card else None, pairs)
        types.append(unique_of(one))
    return tuple(types)
