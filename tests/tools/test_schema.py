"""Owns the tests of how functions become schemas and how arguments are checked against them."""

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from pydantic import BaseModel, Field

from midstream.errors import ConfigError, ToolArgumentsInvalid
from midstream.tools.docstring import describe
from midstream.tools.registry import Tool, tool, tool_of


class Unit(Enum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


class Stop(BaseModel):
    city: str
    title: str = "stop"
    unit: Unit = Unit.CELSIUS


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


def made(function: Callable[..., Any], **options: Any) -> Tool:
    found = tool_of(tool(**options)(function))
    assert found is not None
    return found


def properties(function: Callable[..., Any]) -> dict[str, Any]:
    result: dict[str, Any] = made(function).spec.parameters["properties"]
    return result


def refused(function: Callable[..., Any], arguments: dict[str, Any], **options: Any) -> str:
    with pytest.raises(ToolArgumentsInvalid) as caught:
        made(function, **options).call_arguments(arguments)
    return caught.value.message


def test_plain_types_defaults_and_order() -> None:
    def f(zebra: str, apple: int, ratio: float = 0.5, is_on: bool = True) -> None: ...

    assert made(f).spec.parameters == {
        "type": "object",
        "properties": {
            "zebra": {"type": "string"},
            "apple": {"type": "integer"},
            "ratio": {"type": "number", "default": 0.5},
            "is_on": {"type": "boolean", "default": True},
        },
        "required": ["zebra", "apple"],
        "additionalProperties": False,
    }
    assert list(properties(f)) == ["zebra", "apple", "ratio", "is_on"]


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    def f() -> None: ...

    assert made(f).spec.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert made(f).call_arguments({}) == {}


def test_a_date_has_the_format_date() -> None:
    def f(day: date, until: date = date(2026, 1, 1)) -> None: ...

    assert properties(f) == {
        "day": {"type": "string", "format": "date"},
        "until": {"type": "string", "format": "date", "default": "2026-01-01"},
    }
    assert made(f).call_arguments({"day": "2024-06-20"}) == {"day": date(2024, 6, 20)}


def test_literals_and_enums_become_enum() -> None:
    def f(a: Literal["x", "y"], b: Unit, c: Literal["only"], d: Unit = Unit.KELVIN) -> None: ...

    assert properties(f) == {
        "a": {"type": "string", "enum": ["x", "y"]},
        "b": {"type": "string", "enum": ["celsius", "kelvin"]},
        "c": {"type": "string", "enum": ["only"]},
        "d": {"type": "string", "enum": ["celsius", "kelvin"], "default": "kelvin"},
    }
    converted = made(f).call_arguments({"a": "x", "b": "kelvin", "c": "only"})
    assert converted == {"a": "x", "b": Unit.KELVIN, "c": "only"}


def test_optional_and_lists() -> None:
    def f(a: Optional[int] = None, b: list[str] | None = None, c: dict[str, int] = {}) -> None: ...  # noqa: B006, UP045

    assert properties(f) == {
        "a": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "b": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
        "c": {"type": "object", "additionalProperties": {"type": "integer"}, "default": {}},
    }
    assert made(f).call_arguments({"a": None, "b": ["x"]}) == {"a": None, "b": ["x"]}


def test_nested_models_are_inlined_and_keep_a_property_called_title() -> None:
    def f(stops: list[Stop]) -> None: ...

    assert properties(f)["stops"]["items"] == {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "title": {"type": "string", "default": "stop"},
            "unit": {"type": "string", "enum": ["celsius", "kelvin"], "default": "celsius"},
        },
        "required": ["city"],
    }
    assert made(f).call_arguments({"stops": [{"city": "Oslo"}]}) == {"stops": [Stop(city="Oslo")]}


def test_recursive_models_keep_their_definition() -> None:
    def f(tree: Tree) -> None: ...

    parameters = made(f).spec.parameters
    assert parameters["properties"] == {"tree": {"$ref": "#/$defs/Tree"}}
    assert list(parameters["$defs"]) == ["Tree"]
    assert parameters["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}


def test_a_discriminated_union_leaves_no_dangling_reference() -> None:
    def f(pet: Annotated[Union[Cat, Dog], Field(discriminator="kind")]) -> None: ...  # noqa: UP007

    assert "$defs" not in repr(made(f).spec.parameters)
    assert made(f).call_arguments({"pet": {"kind": "dog"}}) == {"pet": Dog(kind="dog")}


def test_field_constraints_and_description_win_over_the_docstring() -> None:
    def f(month: Annotated[int, Field(ge=1, le=12, description="From the field.")], day: int = 1) -> None:
        """Do it.

        Args:
            month: From the docstring.
            day: Also from the docstring.
        """

    assert properties(f) == {
        "month": {"type": "integer", "description": "From the field.", "minimum": 1, "maximum": 12},
        "day": {"type": "integer", "description": "Also from the docstring.", "default": 1},
    }


def test_parameters_may_be_called_like_pydantics_own_attributes() -> None:
    def f(json: str, copy: bool, _x: int, model_config: str = "") -> None: ...

    arguments = {"json": "{}", "copy": False, "_x": 3}
    assert made(f).spec.parameters["required"] == ["json", "copy", "_x"]
    assert made(f).call_arguments(arguments) == arguments


def google() -> None:
    """Look up
    a thing.

    More about it.

    Args:
        key (str): The key,
            as it is: stored.
        other: Another.

    Returns:
        nothing: at all.
    """


def numpy() -> None:
    """Look up a thing.

    Parameters
    ----------
    key : str
        The key,
        as it is: stored.
    other, more
        Another.

    Returns
    -------
    nothing
        At all.
    """


def rest() -> None:
    """Look up a thing.

    :param str key: The key,
        as it is: stored.
    :param other: Another.
    :returns: nothing
    """


@pytest.mark.parametrize("function", [google, numpy, rest])
def test_docstring_styles(function: Callable[..., Any]) -> None:
    summary, parameters = describe(function)
    assert summary == "Look up a thing."
    assert parameters["key"] == "The key, as it is: stored."
    assert parameters["other"] == "Another."
    assert set(parameters) <= {"key", "other", "more"}


def test_no_docstring_is_no_description() -> None:
    assert describe(lambda: None) == ("", {})


def unhinted(airport) -> None: ...  # type: ignore[no-untyped-def]


def starred(*airports: str) -> None: ...


def keywords(**airports: str) -> None: ...


def positional(airport: str, /) -> None: ...


def field_default(airport: str = Field("PVG")) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (unhinted, "no type hint"),
        (starred, r"\*airports"),
        (keywords, r"\*\*airports"),
        (positional, "positional-only"),
        (field_default, "Annotated"),
    ],
)
def test_a_parameter_that_cannot_be_described_is_named(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"{function.__name__}.*airport.*{words}|{function.__name__}.*{words}"):
        tool(function)


def test_a_hint_without_a_json_form_is_a_config_error() -> None:
    def f(callback: Callable[[], int]) -> None: ...

    def g(thing: pytest.Item) -> None: ...

    for function in (f, g):
        with pytest.raises(ConfigError, match="no JSON form"):
            tool(function)


def test_a_hint_that_names_nothing_is_a_config_error() -> None:
    def f(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match="Nowhere"):
        tool(f)


def trip(airport: str, date: date, month: Annotated[int, Field(ge=1, le=12)] = 1, unit: Unit = Unit.KELVIN) -> None: ...


VALID = {"airport": "PVG", "date": "2024-06-20"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"airport": "PVG"}, "date is missing and is required"),
        (VALID | {"month": 13}, "month is 13; it should be less than or equal to 12"),
        (VALID | {"month": "5"}, 'month is "5"; it should be a valid integer'),
        (VALID | {"month": 1.5}, "month is 1.5; it should be a valid integer"),
        (VALID | {"month": True}, "month is true; it should be a valid integer"),
        (VALID | {"unit": "rankine"}, "unit is \"rankine\"; it should be 'celsius' or 'kelvin'"),
        (VALID | {"airport": 7}, "airport is 7; it should be a valid string"),
        (VALID | {"gate": "B"}, "there is no argument gate; there are: airport, date, month, unit"),
    ],
)
def test_a_fault_names_the_argument_the_value_and_what_is_accepted(arguments: dict[str, Any], expected: str) -> None:
    assert refused(trip, arguments) == expected


@pytest.mark.parametrize("text", ["2024-13-45", "soon", "2024-06-20T10:00:00", ""])
def test_a_wrong_date_is_shown(text: str) -> None:
    assert refused(trip, VALID | {"date": text}).startswith(f'date is "{text}"; it should be a valid date')


def test_many_faults_and_long_values_are_cut() -> None:
    message = refused(trip, {"airport": 1, "date": 2, "month": "x" * 500, "unit": 3})
    assert "and 1 more" in message
    assert len(message) < 400


def test_a_fault_deep_inside_has_its_path() -> None:
    def f(stops: list[Stop]) -> None: ...

    assert refused(f, {"stops": [{"city": "Oslo"}, {"city": 5}]}).startswith("stops[1].city is 5")


def test_whole_floats_are_integers_as_in_json_schema() -> None:
    assert made(trip).call_arguments(VALID | {"month": 5.0})["month"] == 5


@pytest.mark.parametrize("number", [10**30, Decimal(10) ** 30, -(10**30)])
def test_large_integers_arrive_whole(number: int | Decimal) -> None:
    def f(n: float) -> None: ...

    def g(n: int) -> None: ...

    assert made(f).call_arguments({"n": number}) == {"n": float(number)}
    if isinstance(number, int):
        assert made(g).call_arguments({"n": number}) == {"n": number}


def test_numbers_that_no_float_holds_are_refused() -> None:
    def f(n: float) -> None: ...

    assert "finite" in refused(f, {"n": Decimal("1e400")})


GIVEN = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}


def test_a_given_schema_is_kept_and_checks_even_without_hints() -> None:
    def f(city, unit="c", **more) -> None: ...  # type: ignore[no-untyped-def]

    found = made(f, parameters=GIVEN)
    assert found.spec.parameters == GIVEN
    assert found.spec.parameters is not GIVEN
    assert found.call_arguments({"city": "Oslo", "days": 3}) == {"city": "Oslo", "days": 3}
    assert refused(f, {"city": 1}, parameters=GIVEN) == "city is 1; it should be a valid string"
    assert refused(f, {"city": "x", "unit": "k"}, parameters=GIVEN).startswith('unit is "k"')
    assert refused(f, {"city": "x", "zone": 1}, parameters=GIVEN).startswith("there is no argument zone")


def test_an_open_given_schema_lets_more_through_to_keywords() -> None:
    def f(**more: object) -> None: ...

    given = {"type": "object", "properties": {}}
    assert made(f, parameters=given).call_arguments({"a": [1]}) == {"a": [1]}


def test_the_hints_convert_under_a_given_schema() -> None:
    def f(day: date) -> None: ...

    given = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}
    assert made(f, parameters=given).call_arguments({"day": "2024-06-20"}) == {"day": date(2024, 6, 20)}


def test_a_given_schema_that_does_not_fit_the_function_is_refused() -> None:
    def f(city: str, extra: str) -> None: ...

    def g(city: str) -> None: ...

    optional = {"type": "object", "properties": {"city": {"type": "string"}}}
    cases: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
        (f, GIVEN, "parameter extra"),
        (g, GIVEN, "parameter unit"),
        (g, optional, "required"),
        (g, {"type": "string"}, "object"),
    ]
    for function, given, words in cases:
        with pytest.raises(ConfigError, match=words):
            tool(parameters=given)(function)
