"""Arguments against the schema of a tool."""

import pytest

from agentrl.tokens.schema import wrong_argument

SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "line": {"type": ["integer", "null"]},
        "mode": {"enum": ["r", "w", 1]},
        "options": {"type": "object", "properties": {"deep": {"type": "boolean"}}, "required": ["deep"]},
        "names": {"type": "array", "items": {"type": "string"}},
        "share": {"type": "number"},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "free": {"type": "object"},
        "fixed": {"const": "v1"},
    },
    "required": ["path"],
}


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": ""},
        {"path": "a", "line": 3},
        {"path": "a", "line": None},
        {"path": "a", "mode": "w"},
        {"path": "a", "options": {"deep": False}},
        {"path": "a", "names": ["x", "y"]},
        {"path": "a", "share": 1},
        {"path": "a", "share": 0.5},
        {"path": "a", "either": 3},
        {"path": "a", "free": {"x": [1]}},
        {"path": "a", "fixed": "v1"},
    ],
)
def test_what_fits(arguments):
    assert wrong_argument(arguments, SCHEMA) is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "the argument path is missing (a string)"),
        ({"path": None}, "path must be a string, not None"),
        ({"path": "a", "line": 3.0}, "line must be an integer or null, not 3.0"),
        ({"path": "a", "mode": "x"}, "mode must be one of 'r', 'w', 1, not 'x'"),
        ({"path": "a", "mode": True}, "mode must be one of 'r', 'w', 1, not True"),  # True == 1 in Python
        ({"path": "a", "options": {}}, "the argument options.deep is missing (a boolean)"),
        ({"path": "a", "options": {"deep": 1}}, "options.deep must be a boolean, not 1"),
        ({"path": "a", "options": {"deep": True, "x": 1}}, "there is no argument options.x; options takes deep"),
        ({"path": "a", "names": ["x", 1]}, "names[1] must be a string, not 1"),
        ({"path": "a", "names": "x"}, "names must be an array, not 'x'"),
        ({"path": "a", "share": "1"}, "share must be a number, not '1'"),
        ({"path": "a", "either": []}, "either fits none of its 2 forms"),
        ({"path": "a", "fixed": "v2"}, "fixed must be one of 'v1', not 'v2'"),
        ({"path": "a", "pth": "b"}, "there is no argument pth; it takes path, line"),
    ],
)
def test_what_does_not_fit_is_named(arguments, told):
    assert told in wrong_argument(arguments, SCHEMA)


def test_other_arguments_where_the_schema_allows_them():
    assert wrong_argument({"x": 1}, {"type": "object", "additionalProperties": True}) is None
    typed = {"type": "object", "additionalProperties": {"type": "string"}}
    assert wrong_argument({"x": 1}, typed) == "x must be a string, not 1"
    assert wrong_argument({"x": 1}, {"type": "object"}) == "there is no argument x; it takes none"
