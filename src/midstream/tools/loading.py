"""Owns finding Python objects by entry point or by module path. Knows no tool."""

import difflib
import importlib
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from midstream.errors import ConfigError

ENTRY_POINT_GROUP = "midstream.tools"


def find_objects(name: str) -> list[Any]:
    """The objects that `name` stands for: one, or all that its module or list holds. Imports the module.

    `name` is an entry point of the group `midstream.tools`, `package.module:attribute` or `package.module`.
    Raises ConfigError: unknown (with the nearest known names), or the module's own error on import.
    """
    points = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name in points:
        return _contents(_load_entry_point(points[name]))
    module_name, _, attribute = name.partition(":")
    module = _import(module_name, name, points)
    if not attribute:
        return _contents(module)
    if not hasattr(module, attribute):
        raise ConfigError(f"module {module_name} has no {attribute!r}" + _nearest(attribute, vars(module)))
    return _contents(getattr(module, attribute))


def _contents(found: Any) -> list[Any]:
    match found:
        case ModuleType():
            return list(vars(found).values())
        case list() | tuple():
            return list(found)
        case _:
            return [found]


def _load_entry_point(point: EntryPoint) -> Any:
    try:
        return point.load()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"entry point {point.name} ({point.value}) cannot be loaded: {_cause(error)}") from error


def _import(module_name: str, name: str, known: Iterable[str]) -> ModuleType:
    unknown = ConfigError(f"there is no tool or module {name!r}" + _nearest(name, known))
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise unknown
    try:
        return importlib.import_module(module_name)
    except ConfigError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise unknown from None
        raise ConfigError(f"module {module_name} cannot be imported: {_cause(error)}") from error


def _nearest(name: str, known: Iterable[str]) -> str:
    public = sorted(word for word in known if not word.startswith("_"))
    nearest = difflib.get_close_matches(name, public, n=3, cutoff=0.5)
    if nearest:
        return "; did you mean " + " or ".join(nearest) + "?"
    return "; known: " + ", ".join(public) if public else ""


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
