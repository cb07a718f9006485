"""The `small` level: its reference functions and the bugs that they can have."""

from __future__ import annotations

import ast
import itertools
import random

import pytest

from agentrl.errors import TaskError
from agentrl.sandbox.jobs import Limits
from agentrl.tasks.bugfix.candidate import Candidate, call_source, draw_inputs, test_file
from agentrl.tasks.bugfix.mutations import mutations
from agentrl.tasks.bugfix.small import NUM_HIDDEN, NUM_VISIBLE, Reference, candidates, references
from agentrl.tasks.bugfix.validate import Validator
from tests.pools import open_pool


def broken(reference: Reference, seed: int) -> list[Candidate]:
    """A few candidates of one function, each with a bug of another kind."""
    rng = random.Random(seed)
    found = []
    for _, group in itertools.groupby(sorted(mutations(reference.text), key=lambda m: m.kind), lambda m: m.kind):
        mutation = rng.choice(list(group))
        visible, hidden = draw_inputs(rng, reference.inputs, num_visible=NUM_VISIBLE, num_hidden=NUM_HIDDEN)
        found.append(
            Candidate(
                family=reference.topic,
                kind=mutation.kind,
                files={reference.path: mutation.source},
                reference={reference.path: reference.text},
                module=reference.function,
                function=reference.function,
                visible=visible,
                hidden=hidden,
                instruction="",
                main_path=reference.path,
                line=mutation.line,
            )
        )
    return found


def test_there_are_sixty_functions_over_eight_topics_with_different_texts() -> None:
    found = references()
    assert len(found) >= 60
    assert len({reference.topic for reference in found}) >= 8
    assert len({reference.text for reference in found}) == len({r.function for r in found}) == len(found)


@pytest.mark.parametrize("reference", references(), ids=lambda reference: reference.function)
def test_a_reference_is_one_documented_function_of_a_fair_size(reference: Reference) -> None:
    functions = [node for node in ast.parse(reference.text).body if isinstance(node, ast.FunctionDef)]
    assert [function.name for function in functions] == [reference.function]
    assert ast.get_docstring(functions[0])
    assert 4 <= functions[0].end_lineno - functions[0].lineno + 1 <= 25
    assert "agentrl" not in reference.text


def test_every_reference_passes_and_has_a_valid_mutant() -> None:
    tried = {reference.function: broken(reference, seed=1)[:3] for reference in references()}
    with open_pool(limits=Limits(wall_s=0.25)) as pool:
        validator = Validator(pool)
        kept = list(validator.tasks(itertools.chain.from_iterable(tried.values())))
    assert {task.candidate.function for task in kept} == set(tried)
    assert validator.report.dropped["reference_fails"] == 0


def test_candidates_depend_on_the_seed_and_on_nothing_else() -> None:
    first = list(itertools.islice(candidates(random.Random(3)), 20))
    assert first == list(itertools.islice(candidates(random.Random(3)), 20))
    assert first != list(itertools.islice(candidates(random.Random(4)), 20))


def test_visible_and_hidden_inputs_are_all_different() -> None:
    for candidate in itertools.islice(candidates(random.Random(0)), 100):
        calls = [call_source(candidate.function, arguments) for arguments in (*candidate.visible, *candidate.hidden)]
        assert len(set(calls)) == len(calls) == NUM_VISIBLE + NUM_HIDDEN


def test_hidden_inputs_do_not_follow_from_the_visible_ones() -> None:
    # The same generator with one visible input more: the hidden ones come from a seed of their own and stay.
    few, hidden = draw_inputs(random.Random(5), lambda rng: (rng.random(),), num_visible=2, num_hidden=4)
    more, same_hidden = draw_inputs(random.Random(5), lambda rng: (rng.random(),), num_visible=3, num_hidden=4)
    assert more[:2] == few
    assert same_hidden == hidden


def test_few_possible_inputs_give_fewer_tests_and_a_constant_one_is_refused() -> None:
    # Three values: two are visible, so one is left to be hidden.
    visible, hidden = draw_inputs(random.Random(0), lambda rng: (rng.randint(1, 3),), num_visible=2, num_hidden=4)
    assert sorted(visible + hidden) == [(1,), (2,), (3,)]
    with pytest.raises(TaskError, match="fewer than two different inputs"):
        draw_inputs(random.Random(0), lambda _: (1,), num_visible=2, num_hidden=2)


def test_the_visible_tests_are_plain_asserts() -> None:
    candidate = Candidate(
        family="numbers",
        kind="arithmetic",
        files={"pkg/add.py": "def f(a, b):\n    return a - b\n"},
        reference={"pkg/add.py": "def f(a, b):\n    return a + b\n"},
        module="pkg.add",
        function="f",
        visible=((3, 1), ([2], "x")),
        hidden=((1, 1),),
        instruction="",
        main_path="pkg/add.py",
        line=2,
    )
    path, text = test_file(candidate, [4, None])
    assert path == "test_add.py"
    assert text == (
        "from pkg.add import f\n\n\ndef test_1():\n    assert f(3, 1) == 4\n\n\n"
        "def test_2():\n    assert f([2], 'x') == None\n"
    )
    with pytest.raises(TaskError, match="1 expected values for 2 visible inputs"):
        test_file(candidate, [4])
