"""What is kept from verifiers that run answers as Python, and from those that credit what is no answer."""

import pytest

from agentrl.rewards.readable import FIXES, arithmetic, close, finite, formula, literal, same_numbers, same_word, truth

PROGRAMS = [
    "__import__('os').getcwd()",
    "().__class__.__bases__[0]",
    "(lambda: 1)()",
    "[x for x in (1).__class__.mro()]",
    "open('a')",
    "f'{1}'",
    "exit()",
    "x.diff",
    "1 .__class__",
    "1..__class__",
    "x\n.args",
    "S('1')",
    "eval(1)",
    "a[0]",
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_program_reaches_sympy(program):
    assert formula(program)
    assert arithmetic(program)


@pytest.mark.parametrize("program", [*PROGRAMS, "[].append", "-(-1).real", "[9**9**9]", "(" * 5000])
def test_no_program_reaches_eval(program):
    assert literal(program) or not evaluates(program)


def evaluates(text):
    """Whether Python would run it: a syntax error is harmless."""
    try:
        compile(text.lstrip(" \t"), "a", "eval")
    except (SyntaxError, MemoryError, RecursionError, ValueError):
        return False
    return True


@pytest.mark.parametrize("answer", ["3*5+7", "(1 + 2) / 3 - 4.5", "-7", "2 *\n3"])
def test_arithmetic_passes(answer):
    assert arithmetic(answer) == ""


@pytest.mark.parametrize("answer", ["9**9", "3!", "x", "1,2", "2^3", "1e9"])
def test_what_is_not_plain_arithmetic_does_not(answer):
    assert arithmetic(answer)


@pytest.mark.parametrize("answer", ["x**2/2 + C", "2*sin(x) - log(x)", "-X**3 + 0.5*x", "exp(2*x)/2", "x*y**2 + 3*z"])
def test_formulas_pass(answer):
    assert formula(answer) == ""


@pytest.mark.parametrize("answer", ["['a', 'b']", "[[1, 0], [0, 1]]", "0 1\n1 0", "ABBA", "_ Q\nQ _", '{"a": [1]}', ""])
def test_literals_and_plain_text_pass(answer):
    assert literal(answer) == ""


def test_answers_that_verifiers_credit_wrongly():
    assert truth("maybe")
    assert truth("False") == truth(" true ") == ""
    assert same_word("False", " false ")
    assert not same_word("False", "True")
    assert same_numbers("4*8 - 6 - 2", "(8-6/2)*4")
    assert not same_numbers("4*8 - 6 - 2", "1*2*3*4")
    assert finite("nan") == finite("1 + infj") == "not a finite number"
    assert finite("-15.0 + 3.0i") == ""
    assert close("0.3125", "5/16")
    assert not close("0.3125", "0.3")  # the verifier credits each beginning of the number


def test_fixes_are_of_data_sets_that_exist():
    factory = pytest.importorskip("reasoning_gym.factory")
    assert set(FIXES) <= set(factory.DATASETS)
