"""The `repo` level: packages whose bug lies in another module than the failing test."""

from __future__ import annotations

import ast
import itertools
import random

import pytest

from agentrl.sandbox.jobs import Calls, Job
from agentrl.tasks.bugfix.repo import PACKAGES, candidates, package_files
from tests.pools import open_pool


def is_relative_import(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.level == 1


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_has_two_to_four_modules_that_import_each_other(name: str) -> None:
    modules = {path: text for path, text in package_files(name).items() if not path.endswith("__init__.py")}
    assert 2 <= len(modules) <= 4
    assert any(is_relative_import(node) for text in modules.values() for node in ast.walk(ast.parse(text)))
    assert all("agentrl" not in text for text in modules.values())
    assert PACKAGES[name].module.replace(".", "/") + ".py" in modules


def test_there_are_at_least_six_packages() -> None:
    assert len(PACKAGES) >= 6


def test_the_bug_is_in_one_module_and_not_in_the_tested_one() -> None:
    for candidate in itertools.islice(candidates(random.Random(1)), 200):
        changed = [path for path in candidate.files if candidate.files[path] != candidate.reference[path]]
        assert len(changed) == 1
        assert changed != [candidate.main_path]
        others = set(PACKAGES[candidate.family].functions) - {candidate.function}
        assert {function for function, _ in candidate.regression} == others


def test_candidates_depend_on_the_seed_and_on_nothing_else() -> None:
    first = list(itertools.islice(candidates(random.Random(3)), 20))
    assert first == list(itertools.islice(candidates(random.Random(3)), 20))


EXAMPLES = [
    # -(2 + 3) * 4 // 3 with x = 4: -5 * 4 = -20, -20 // 3 rounds down to -7
    ("calculator", "calculate", ("-(2+3)*x/3", {"x": 4}), -7),
    ("calculator", "calculate", ("1 + (2", {}), None),
    ("calculator", "names_in", ("b*a - b",), ["a", "b"]),
    # the first order takes 2 + 1 of 3 nuts, so nothing is left for the second
    ("inventory", "process", ({"nut": 3}, [[["nut", 2], [" Nut", 1]], [["nut", 1]]]), [{}, [1]]),
    ("inventory", "shopping_list", ({"nut": 3}, [[["nut", 2]], [["nut", 4], ["bolt", 1]]]), {"bolt": 1, "nut": 3}),
    ("ledger", "statement", ([["ann", "bob", "1.5"], ["bob", "cy", "1.50"]],), ["ann: -1.50", "cy: 1.50"]),
    # 0.05 for two is 3 + 2 cents; ann has -1.00, pays 0.05 and owes 0.03 of it: -0.98
    ("ledger", "after_dinner", ([["ann", "bob", "1"]], "ann", "0.05"), ["ann: -0.98", "bob: 0.98"]),
    # free from 10:05, so the next quarter is 10:15
    ("planner", "find_slot", ([["08:00", "10:05"]], 30), "10:15"),
    ("planner", "busy_times", ([["09:30", "10:00"], ["09:00", "09:30"]],), ["09:00-10:00"]),
    ("planner", "busy_minutes", ([["08:00", "09:20"], ["16:50", "18:00"]],), 30),
    ("tables", "summarize", ('Name, price\n"a,b",7\npear,-3\nfig,n/a\n', "price"), [2, 4, 10]),
    ("tables", "select", ('name,price\n"say ""hi""",7\npear,-3', "price", 0), ['say "hi"']),
    ("templates", "render", ("{{ Name | upper }} {{p|money}}{{x}}{{", {"name": "ann", "p": "1250"}), "ANN 12.50?{{"),
    ("templates", "field_names", ("{{b}}{{a|upper}}{{b}}",), ["b", "a"]),
    ("routes", "shortest_way", ([["a", "b", 5], ["a", "c", 1], ["c", "b", 2]], "a", "b"), ["a", "c", "b"]),
    ("routes", "within", ([["a", "b", 5], ["b", "c", 1]], "a", 5), ["b"]),
    ("routes", "farthest_dead_end", ([["a", "b", 5], ["b", "c", 1]], "a"), "c"),
    ("wrapping", "notice", ("aa b ccc", 4), ["+------+", "| aa b |", "| ccc  |", "+------+"]),
    ("wrapping", "block", ("a b c dddd", 7), ["a  b  c", "dddd"]),
    ("wrapping", "centred", ("abc", 6), [" abc  "]),
]


def test_the_packages_do_what_they_say() -> None:
    jobs = [
        Job(files=package_files(name), run=Calls(module=PACKAGES[name].module, calls=((function, arguments),)))
        for name, function, arguments, _ in EXAMPLES
    ]
    with open_pool() as pool:
        values = [result.outcomes[0].value for result in pool.run_sync(jobs)]
    assert values == [value for *_, value in EXAMPLES]
    assert {(name, function) for name, function, *_ in EXAMPLES} == {
        (name, function) for name, package in PACKAGES.items() for function in package.functions
    }
