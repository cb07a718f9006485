"""An environment is a class: its tools come from hints and docstrings, and a bad call is answered, not raised."""

import asyncio
import json
from typing import Literal

import pytest

from agentrl.errors import TaskError
from agentrl.protocols import Environment
from agentrl.tasks.environment import ToolEnvironment, tool
from agentrl.types import Message, Observation, Score, Stop, Task, ToolCall, Trace


class GuessNumber(ToolEnvironment):
    """Find a hidden number between 1 and 10."""

    found = False

    @tool
    def guess(self, number: int) -> str | Observation:
        """Guess the number; the answer is higher, lower or right."""
        hidden = self.task.metadata["hidden"]
        if number == hidden:
            self.found = True
            return Observation(content="right", done=True)
        return "higher" if number < hidden else "lower"

    async def score(self, trace):
        return [Score(name="found", value=float(self.found))]


class EveryType(ToolEnvironment):
    @tool
    async def combine(
        self,
        text: str,
        count: int,
        factor: float,
        flag: bool,
        items: list[int],
        table: dict[str, int],
        unit: str | None = None,
    ) -> str:
        """Say what came in."""
        return f"{text} {count} {factor} {flag} {items} {table} {unit}"

    @tool
    def fail(self) -> str:
        """Break."""
        raise RuntimeError("disk full")


TASK = Task(id="guess-v1/1", prompt=(Message(role="user", content="Find it."),), metadata={"hidden": 7})
GOOD = {"text": "a", "count": 1, "factor": 2, "flag": True, "items": [1], "table": {"b": 2}}


def call(environment, name, **arguments):
    return asyncio.run(environment.call(ToolCall(name=name, arguments=arguments)))


def test_a_twelve_line_environment_plays_and_scores():
    environment = GuessNumber(TASK)
    assert isinstance(environment, Environment)
    assert call(environment, "guess", number=3) == Observation(content="higher")
    assert call(environment, "guess", number=9) == Observation(content="lower")
    trace = Trace(id="t", task_id=TASK.id, group_id="g", attempt=0, seed=0, nodes=(), stop=Stop.DONE)
    assert asyncio.run(environment.score(trace)) == [Score(name="found", value=0.0)]
    assert call(environment, "guess", number=7) == Observation(content="right", done=True)
    assert asyncio.run(environment.score(trace)) == [Score(name="found", value=1.0)]
    for _ in range(2):
        asyncio.run(environment.close())


def test_two_attempts_do_not_share_state():
    first, second = GuessNumber(TASK), GuessNumber(TASK)
    call(first, "guess", number=7)
    assert (first.found, second.found) == (True, False)


def test_the_schema_comes_from_hints_and_docstring():
    (spec,) = GuessNumber.tool_specs()
    assert (spec.name, spec.description) == ("guess", "Guess the number; the answer is higher, lower or right.")
    assert spec.parameters == {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}


def test_every_type_and_a_default():
    parameters = EveryType.tool_specs()[0].parameters
    kinds = {name: schema["type"] for name, schema in parameters["properties"].items()}
    assert list(kinds.values()) == ["string", "integer", "number", "boolean", "array", "object", ["string", "null"]]
    assert parameters["required"] == list(GOOD)
    assert parameters["properties"]["unit"]["default"] is None


def test_a_coroutine_is_a_tool_too():
    assert call(EveryType(TASK), "combine", **GOOD).content == "a 1 2 True [1] {'b': 2} None"


def test_a_subclass_adds_and_replaces_tools():
    class Generous(GuessNumber):
        @tool
        def guess(self, number: int) -> str:
            """Guess again."""
            return "right" if number else "no"

        @tool
        def hint(self) -> str:
            """Ask for a hint."""
            return "odd"

    assert [(spec.name, spec.description) for spec in Generous.tool_specs()] == [
        ("guess", "Guess again."),
        ("hint", "Ask for a hint."),
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("peek", {}, "there is no tool 'peek'; the tools are combine, fail"),
        ("combine", {**GOOD, "colour": 1}, "no argument colour; it takes text, count"),
        ("fail", {"x": 1}, "no argument x; it takes none"),
        ("combine", {"text": "a"}, "the argument count is missing (an integer)"),
        ("combine", {**GOOD, "count": "1"}, "count must be an integer, not '1'"),
        ("combine", {**GOOD, "count": True}, "integer, not True"),
        ("combine", {**GOOD, "count": 1.5}, "integer, not 1.5"),
        ("combine", {**GOOD, "factor": False}, "must be a number, not False"),
        ("combine", {**GOOD, "flag": 1}, "boolean, not 1"),
        ("combine", {**GOOD, "items": "1,2"}, "items must be an array, not '1,2'"),
        ("combine", {**GOOD, "items": [1, "2"]}, "items[1] must be an integer, not '2'"),
        ("combine", {**GOOD, "table": {"b": "2"}}, "table.b must be an integer, not '2'"),
        ("combine", {**GOOD, "unit": 3}, "unit must be a string or null, not 3"),
    ],
)
def test_a_bad_call_is_answered_with_what_to_write(name, arguments, message):
    observation = call(EveryType(TASK), name, **arguments)
    assert observation.error
    assert not observation.done
    assert message in observation.content


def test_a_malformed_call_is_answered_with_its_problem():
    broken = ToolCall(name="guess", problem="the arguments are not JSON")
    observation = asyncio.run(GuessNumber(TASK).call(broken))
    assert observation == Observation(content="error: the arguments are not JSON", error=True)


def test_a_method_that_is_no_tool_cannot_be_called():
    # Negative control: names of ordinary methods are as unknown as any other.
    assert "there is no tool 'close'" in call(GuessNumber(TASK), "close").content


def test_a_tool_that_breaks_is_the_environments_fault_and_raises():
    with pytest.raises(RuntimeError, match="disk full"):
        call(EveryType(TASK), "fail")


def test_a_tool_without_docstring_is_refused():
    class Silent(ToolEnvironment):
        @tool
        def act(self) -> str:
            return ""

    with pytest.raises(TaskError, match="'act' has no docstring"):
        Silent.tool_specs()


def test_an_argument_without_hint_or_of_a_strange_type_is_refused():
    class Unhinted(ToolEnvironment):
        @tool
        def act(self, value):
            """Act."""

    class Strange(ToolEnvironment):
        @tool
        def act(self, value: complex) -> str:
            """Act."""

    with pytest.raises(TaskError, match=r"argument 'value' has no type hint; write e.g. `value: str`"):
        Unhinted.tool_specs()
    with pytest.raises(TaskError, match="tools take str, int, float, bool, list or dict"):
        Strange.tool_specs()


def test_an_environment_without_a_score_says_so():
    trace = Trace(id="t", task_id=TASK.id, group_id="g", attempt=0, seed=0, nodes=(), stop=Stop.DONE)
    with pytest.raises(TaskError, match="EveryType has no score"):
        asyncio.run(EveryType(TASK).score(trace))


class Files(ToolEnvironment):
    """A tool with every kind of hint."""

    ran = False

    @tool
    def show(
        self,
        paths: list[str],
        mode: Literal["r", "w"] = "r",
        limit: int | None = None,
        opts: dict[str, int] | None = None,
        where: str | list[str] = "",
    ) -> str:
        """Show files."""
        self.ran = True
        return ",".join(paths)


def test_the_schema_says_what_is_inside_of_lists_choices_and_tables():
    # EO-T01: a list was advertised as a text, and the model sent one.
    parameters = Files.tool_specs()[0].parameters
    assert parameters["required"] == ["paths"]
    assert parameters["properties"] == {
        "paths": {"type": "array", "items": {"type": "string"}},
        "mode": {"enum": ["r", "w"], "default": "r"},
        "limit": {"type": ["integer", "null"], "default": None},
        "opts": {
            "anyOf": [{"type": "object", "additionalProperties": {"type": "integer"}}, {"type": "null"}],
            "default": None,
        },
        "where": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}], "default": ""},
    }
    environment = Files(TASK)
    refused = call(environment, "show", paths="a")
    assert (refused.error, environment.ran) == (True, False)
    assert refused.content == "error: wrong_arguments: show: paths must be an array, not 'a'"
    assert call(environment, "show", paths=["a", "b"], limit=None, opts={"x": 1}, where=["c"]).content == "a,b"


class Shop(ToolEnvironment):
    @tool
    def order(self, order_id: str, n: int = 0, flag: bool = False) -> str:
        """Order."""
        return repr((order_id, n, flag))


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ({"order_id": 12345}, "order_id must be a string, not 12345"),
        ({"order_id": "01234"}, "('01234', 0, False)"),
        ({"order_id": "a", "n": "42"}, "n must be an integer, not '42'"),
        ({"order_id": "a", "n": 3.5}, "n must be an integer, not 3.5"),
        ({"order_id": "a", "n": True}, "n must be an integer, not True"),
        ({"order_id": "a", "flag": 1}, "flag must be a boolean, not 1"),
        ({"order_id": "a", "flag": True}, "('a', 0, True)"),
    ],
)
def test_arguments_have_the_types_of_the_schema_and_are_never_converted(arguments, answer):
    # EO-T03: every value was read without a look at the schema.
    assert call(Shop(TASK), "order", **arguments).content.endswith(answer)


class Outputs(ToolEnvironment):
    """A tool that gives back what it is told to."""

    given = None

    @tool
    def give(self) -> object:
        """Give."""
        return self.given


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"k": None, "s": "é"}, '{"k": null, "s": "é"}'),
        ([1, 2], "[1, 2]"),
        (True, "true"),
        (3, "3"),
        (None, ""),
        (b"caf\xc3\xa9", "café"),
        (b"\x80\x81", "\ufffd\ufffd\n[not all bytes were text]"),
    ],
)
def test_what_a_tool_gives_back_is_shown_as_text_or_json(given, shown):
    # EO-T04: the policy was shown Python's spelling of a table.
    environment = Outputs(TASK)
    environment.given = given
    assert call(environment, "give") == Observation(content=shown)
    if isinstance(given, dict | list):
        assert json.loads(shown) == given


@pytest.mark.parametrize(
    ("given", "kind"),
    [(float("nan"), "float"), (object(), "object"), ((x for x in ()), "generator"), ({"a": {1}}, "dict")],
)
def test_what_cannot_be_shown_is_an_error_that_names_tool_and_type(given, kind):
    environment = Outputs(TASK)
    environment.given = given
    observation = call(environment, "give")
    assert observation.error
    assert observation.content.startswith(f"error: give returned a {kind} that cannot be shown")
