"""Changes of the schema."""

from __future__ import annotations

import re
from dataclasses import replace

from support.whole.base import NAMES, Base
from support.whole.model import Model, Prop, Type
from support.whole.texts import swapped, text


class Schemas(Base):
    def do_schema(self) -> None:
        before = self.model(self.branch)
        one = self.random.choice(before.types)
        verb = self.random.choice(["add", "add", "rename", "retype", "drop", "widen", "untype", "type"])
        loss = self.random.random() < 0.3
        changed, text_of = self._changed(verb, before, one)
        if changed is None or text_of is None:
            return
        self.log.append(f"{verb} {one.name} {loss=}:\n{text_of}")
        applied = self.chosen.schema.apply(text_of, loss, self.branch)
        if applied.commit is None:
            assert changed == before, "a schema change made no commit"
            return
        self._committed(self.branch, applied.commit.id, changed)

    def _changed(self, verb: str, before: Model, one: Type) -> tuple[Model | None, str | None]:
        """The state after it, and the text to apply."""
        table = before.table(one.name)
        plain = [prop for prop in one.free if not prop.required and prop.annotation != "@unique"]
        unused = [name for name in NAMES if name not in {prop.name for prop in one.props}]
        if verb == "add" and unused:
            name = self.random.choice(unused)
            new = replace(one, props=(*one.props, Prop(name, self.random.choice(["I32", "String"]))))
            return swapped(before, one, new, table)
        if verb == "rename" and plain and unused:
            prop, name = self.random.choice(plain), self.random.choice(unused)
            new = replace(one, props=tuple(replace(p, name=name) if p == prop else p for p in one.props))
            noted = replace(prop, name=name, annotation=f'{prop.annotation} @rename_from("{prop.name}")')
            given = replace(one, props=tuple(noted if p == prop else p for p in one.props))
            rows = {i: {name if k == prop.name else k: v for k, v in row.items()} for i, row in table.items()}
            return swapped(before, one, new, rows, given)
        if verb == "drop" and plain:
            prop = self.random.choice(plain)
            new = replace(one, props=tuple(p for p in one.props if p != prop))
            rows = {i: {k: v for k, v in row.items() if k != prop.name} for i, row in table.items()}
            return swapped(before, one, new, rows)
        if verb == "widen":
            narrow = [prop for prop in plain if prop.type == "I32"]
            if narrow:
                prop = self.random.choice(narrow)
                new = replace(one, props=tuple(replace(p, type="I64") if p == prop else p for p in one.props))
                return swapped(before, one, new, table)
        if verb == "retype":
            stem = re.sub(r"\d+$", "", one.name)
            names = [n for n in (stem, f"{stem}2", f"{stem}3") if not before.named(n)]
            name = self.random.choice(names)
            return swapped(before, one, replace(one, name=name), table, replace(one, name=name, renamed_from=one.name))
        if verb == "untype" and one.ends is not None and len(before.types) > 4:
            left = replace(before, types=tuple(t for t in before.types if t != one))
            left = replace(left, rows={k: v for k, v in before.rows.items() if k != one.name})
            return left, text(left)
        if verb == "type" and len(before.types) < 6 and not before.named("Likes"):
            person = next(t.name for t in before.types if t.key)
            left = replace(before, types=(*before.types, Type("Likes", (Prop("much", "I32"),), ends=(person, person))))
            return left, text(left)
        return None, None
