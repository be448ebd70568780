"""The entries of a drafter's config.json, which may be in several places of it."""

from typing import Any

from dflash_mlx.errors import DFlashError


class Entries:
    """Looks up keys in several dictionaries, in their order. hint: of errors."""

    def __init__(self, *places: dict[str, Any], hint: str):
        self.places = places
        self.hint = hint

    def get(self, key: str, default: Any = None) -> Any:
        """The first value that is not None, else the default."""
        found = (place[key] for place in self.places if place.get(key) is not None)
        return next(found, default)

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`. Raises DFlashError for another value or for none."""
        value = self.get(key, default)
        if value is None:
            raise DFlashError(f"the drafter's config has no '{key}'.", hint=self.hint)
        if type(value) is not int or value < least:
            raise invalid_value(key, value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or False. Raises DFlashError for another value."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise invalid_value(key, value)
        return value

    def refuse(self, supported: dict[str, tuple[object, ...]]) -> None:
        """Raise DFlashError for a key with a value that selects an unsupported computation."""
        for key, values in supported.items():
            if (value := self.get(key)) is not None and value not in values:
                raise unsupported(key, value, self.hint)


def unsupported(key: str, value: object, hint: str) -> DFlashError:
    return DFlashError(f"the drafter's '{key}: {value}' is not supported.", hint=hint)


def invalid_value(key: str, value: object) -> DFlashError:
    return DFlashError(
        f"the drafter's config has a wrong '{key}: {value}'.", hint="download the drafter again"
    )


def rotary(raw: dict[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """The rotary base, and the scaling or None. Raises DFlashError for settings per layer type."""
    rope = raw.get("rope_parameters") or {}
    if any(isinstance(value, dict) for value in rope.values()):  # one for each layer type
        raise invalid_value("rope_parameters", rope)
    scaling = raw.get("rope_scaling") or ({**rope} if rope.get("rope_type") else None)
    if scaling and scaling.get("rope_type", scaling.get("type")) == "default":
        scaling = None
    return raw.get("rope_theta") or rope.get("rope_theta") or 10000.0, scaling
