"""Jobs and results: canonical bytes out, and an answer that may have been written by anyone read with suspicion."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import SandboxError, TaskError
from agentrl.sandbox import Batch, Calls, Job, Limits, Suite
from agentrl.sandbox.jobs import encode_job, read_result

TWO_CALLS = Job(files={"m.py": ""}, run=Calls(module="m", calls=(("f", (1,)), ("f", (2,)))))
SUITE = Job(files={"test_m.py": ""}, run=Suite(paths=("test_m.py",)))


def lines(*reports):
    return b"".join(json.dumps(report).encode() + b"\n" for report in reports)


def test_equal_jobs_have_equal_bytes_whatever_the_order_of_their_files():
    one = Job(files={"a.py": "1", "b.py": "2"}, run=Calls(module="a", calls=()))
    other = Job(files={"b.py": "2", "a.py": "1"}, run=Calls(module="a", calls=()))
    assert encode_job(one) == encode_job(other)
    assert encode_job(one) != encode_job(Job(files=one.files, run=Calls(module="b", calls=())))


def test_arguments_of_different_types_are_different_jobs():
    jobs = [Job(files={}, run=Calls(module="m", calls=(("f", (value,)),))) for value in (1, True, 1.0, "1", (1,), [1])]
    assert len({encode_job(job) for job in jobs}) == 6


def test_an_argument_that_is_not_plain_is_refused_by_name():
    with pytest.raises(TaskError, match="a call of f cannot be sent to the sandbox: object is not plain"):
        encode_job(Job(files={}, run=Calls(module="m", calls=(("f", (object(),)),))))


def test_a_test_file_that_is_not_there_is_refused_by_name():
    with pytest.raises(TaskError, match=r"test file 'test_x.py' is not among the files: m.py"):
        encode_job(Job(files={"m.py": ""}, run=Suite(paths=("test_x.py",))))


@pytest.mark.parametrize("name", ["wall_s", "cpu_s", "memory_mib", "output_bytes"])
def test_limits_must_be_positive(name):
    with pytest.raises(SandboxError, match=f"limit {name} is 0"):
        Limits(**{name: 0})


def test_calls_that_did_not_report_died():
    result = read_result(TWO_CALLS, "finished", lines({"status": "value", "value": 3}))
    assert [outcome.status for outcome in result.outcomes] == ["value", "died"]
    assert result.end == "died"


def test_calls_that_did_not_report_before_the_time_was_over_timed_out():
    result = read_result(TWO_CALLS, "timeout", lines({"status": "value", "value": 3}))
    assert [outcome.status for outcome in result.outcomes] == ["value", "timeout"]
    assert result.end == "timeout"


def test_half_a_character_and_what_is_no_text_become_text():
    """The first is of no tokenizer, and the second may be too deep to be shown."""
    one = {"status": "raised", "exception": "E\ud800", "message": [[1]]}
    deep = b'{"status":"raised","message":"\\u00e9","exception":%s}\n'
    first, second = read_result(TWO_CALLS, "finished", lines(one) + deep % (b"[" * 900 + b"]" * 900)).outcomes
    assert (first.exception, first.message) == ("E\\ud800", "(list)")
    assert (second.exception, second.message) == ("(list)", "\u00e9")
    (test,) = read_result(SUITE, "finished", lines({"plan": ["\udfff"]}, {"status": "passed"})).tests
    assert (test.name, test.status) == ("\\udfff", "passed")


def test_surplus_reports_count_for_nothing():
    result = read_result(TWO_CALLS, "finished", lines(*[{"status": "value", "value": 3}] * 5))
    assert len(result.outcomes) == 2


@pytest.mark.parametrize(
    ("end", "report", "repeatable"),
    [
        ("finished", {"status": "value", "value": 3}, True),
        ("finished", {"status": "raised", "exception": "KeyError"}, True),
        ("finished", {"status": "timeout", "clock": "processor"}, True),
        ("finished", {"status": "timeout", "clock": "wall"}, False),
        ("finished", {"status": "timeout"}, False),
        ("timeout", {"status": "timeout", "clock": "processor"}, False),  # the rest did not end by itself
        ("finished", {"status": "died"}, False),
    ],
)
def test_only_what_would_come_again_is_repeatable(end, report, repeatable):
    assert read_result(TWO_CALLS, end, lines(report, report)).repeatable is repeatable


def test_parts_that_a_batch_did_not_report_died_and_the_others_stand():
    batch = Job(files={}, run=Batch(parts=(TWO_CALLS, TWO_CALLS, TWO_CALLS)))
    value = {"status": "value", "value": 3}
    result = read_result(batch, "finished", lines([value, value], [value]))
    assert [part.end for part in result.parts] == ["finished", "died", "died"]
    assert [part.repeatable for part in result.parts] == [True, False, False]
    assert (result.end, result.repeatable) == ("died", False)


def test_a_part_of_a_batch_that_is_a_script_is_refused_by_name():
    script = Job(files={}, run=Batch(parts=()))
    with pytest.raises(TaskError, match="a part that is a Batch; a part must be Calls or Suite"):
        encode_job(Job(files={}, run=Batch(parts=(TWO_CALLS, SUITE, script))))


def test_calls_of_a_fresh_module_come_after_the_others_and_time_out_with_them():
    job = Job(files={"m.py": ""}, run=Calls(module="m", calls=(("f", (1,)),), then=(("f", (2,)), ("f", (3,)))))
    value, late = {"status": "value", "value": 7}, {"status": "timeout", "clock": "processor"}
    assert [o.status for o in read_result(job, "finished", lines(value, value, value)).outcomes] == ["value"] * 3
    result = read_result(job, "finished", lines(late))
    assert [outcome.status for outcome in result.outcomes] == ["timeout"] * 3
    assert result.repeatable


def test_tests_after_a_timeout_timed_out_too():
    result = read_result(SUITE, "finished", lines({"plan": ["a", "b"]}, {"status": "timeout", "call": "f(1)"}))
    assert [(test.name, test.status, test.call) for test in result.tests] == [
        ("a", "timeout", "f(1)"),
        ("b", "timeout", ""),
    ]


def test_a_suite_without_a_plan_is_a_failure_of_its_file():
    result = read_result(SUITE, "finished", b"")
    assert [(test.name, test.status) for test in result.tests] == [("test_m.py", "died")]
    assert not result.all_passed


def test_an_empty_plan_does_not_pass():
    result = read_result(SUITE, "finished", lines({"plan": []}))
    assert result.tests == ()
    assert not result.all_passed


@pytest.mark.parametrize(
    "output",
    [
        b"\n\n",
        b"null\n[]\n",
        b"{}\n{}\n",
        b"[" * 100_000 + b"\n",
        b"1" * 10_000 + b"\n",
        lines({"status": "value", "value": {"x": 1}}, {"status": "passed"}),
        lines({"status": "value", "value": {"s": [[1]]}}, {"status": ["value"]}),
        b'{"status": "value", "value": 3}',  # no newline: cut off
    ],
)
def test_forged_output_is_a_death_and_never_an_error_of_ours(output):
    result = read_result(TWO_CALLS, "finished", output)
    assert [outcome.status for outcome in result.outcomes] == ["died", "died"]


@given(st.binary(max_size=200), st.sampled_from([TWO_CALLS, SUITE]))
def test_random_output_never_passes(output, job):
    result = read_result(job, "finished", output)
    assert result.end == "died"
    assert not result.all_passed
