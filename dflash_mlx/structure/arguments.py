"""The arguments of a tool as schemas of one type each, for formats that cannot say "any of these".

What such an argument may be is narrowed, never widened. Knows JSON schemas; no grammar, no tokens.
"""

from dataclasses import dataclass
from typing import Any

from dflash_mlx.errors import UsageError

DEEPEST = 16
NEITHER = ("not", "if", "dependentSchemas", "patternProperties", "prefixItems", "contains")
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: a schema with one `type`, and whether null may stand in its place.

    choices: the only values, where they are listed.
    """

    type: str
    schema: dict[str, Any]
    nullable: bool = False
    choices: tuple[Any, ...] | None = None

    @property
    def read_as(self) -> dict[str, Any]:
        """The schema by which a parser finds the value in its text."""
        return {"type": [self.type, "null"] if self.nullable else self.type}


def argument_of(schema: Any, root: dict[str, Any], place: str, depth: int = 0) -> Argument:
    """A schema narrowed to one type: text where that is among several, else the first.

    `root` has what the schema refers to. UsageError names `place` where it cannot be narrowed.
    """
    if depth > DEEPEST:
        raise cannot(place, "it refers to itself")
    if schema is True or schema == {}:
        return Argument("string", {"type": "string"})
    if not isinstance(schema, dict):
        raise cannot(place, "it has no schema")
    for word in NEITHER:
        if word in schema:
            raise cannot(place, f"its schema has '{word}'")
    for word in ("$ref", "allOf", "anyOf", "oneOf"):
        if word in schema:
            rest = {name: value for name, value in schema.items() if name != word}
            options = [schema[word]] if word == "$ref" else schema[word]
            if not isinstance(options, list) or not options or (word == "allOf" and options[1:]):
                raise cannot(place, f"its schema has '{word}'")
            if word == "$ref":
                options = [resolved(schema[word], root, place)]
            found = [argument_of({**rest, **one} if isinstance(one, dict) else one,
                                 root, place, depth + 1) for one in options]  # fmt: skip
            return one_of(found)
    if "const" in schema:
        return listed([schema["const"]], place)
    if values := schema.get("enum"):
        return listed(values, place)
    kind = schema.get("type")
    if kind == [] or schema.get("enum") == []:
        raise cannot(place, "its schema allows nothing")
    if isinstance(kind, list):
        return one_of(
            [argument_of({**schema, "type": one}, root, place, depth + 1) for one in kind]
        )
    if kind is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
    if kind == "null":
        return Argument("null", {"type": "null"}, nullable=True)
    return Argument(kind, {**schema, "type": kind})


def one_of(found: list[Argument]) -> Argument:
    """The one of several that is kept; null stays beside it."""
    kept = [one for one in found if one.type != "null"] or found
    best = next((one for one in kept if one.type == "string"), kept[0])
    nullable = any(one.nullable for one in found)
    return Argument(best.type, best.schema, nullable, best.choices)


def listed(values: list[Any], place: str) -> Argument:
    """One of some values: of the texts where there are any, else of the first one's type."""
    kinds = [TYPES.get(type(value), "null" if value is None else "object") for value in values]
    others = [kind for kind in kinds if kind != "null"]
    if not others:
        return Argument("null", {"type": "null"}, nullable=True)
    kind = "string" if "string" in others else others[0]
    kept = tuple(value for value, own in zip(values, kinds, strict=True) if own == kind)
    return Argument(kind, {"enum": list(kept)}, "null" in kinds, kept)


def resolved(path: Any, root: dict[str, Any], place: str) -> Any:
    """What a reference like "#/$defs/Unit" refers to."""
    found: Any = root
    names = str(path).removeprefix("#").strip("/")
    for name in names.split("/") if names else []:
        found = found.get(name.replace("~1", "/")) if isinstance(found, dict) else None
    if not str(path).startswith("#") or found is None:
        raise cannot(place, f"'{path!s:.60}' is not in its schema")
    return found


def object_of(schema: dict[str, Any], place: str) -> tuple[dict[str, Any], list[str]]:
    """An object's properties, and which of them it must have."""
    for word in (*NEITHER, "anyOf", "oneOf", "allOf", "$ref", "minProperties", "propertyNames"):
        if word in schema:
            raise cannot(place, f"its schema has '{word}'")
    properties, needed = schema.get("properties") or {}, schema.get("required") or []
    if not isinstance(properties, dict) or not isinstance(needed, list):
        raise cannot(place, "its schema is none of an object")
    return {**properties, **{name: {} for name in needed if name not in properties}}, needed


def cannot(place: str, why: str) -> UsageError:
    """The error of an argument that a format cannot hold."""
    return UsageError(
        f"{place} cannot be forced in this model's form of calls: {why}.",
        hint="use tool_choice auto, or a simpler schema",
    )
