"""Plain values survive both ways with their types, and no answer of an adversary does more than end the talk."""
# ruff: noqa: E501  programs and messages in one line are easier to compare

import json
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.rewards.judge.agent import Agent
from agentrl.rewards.judge.codec import MAX_MESSAGE, SHARED_WINDOW
from agentrl.rewards.judge.faces import Faces
from agentrl.rewards.judge.link import CandidateGone, Link, Refused
from agentrl.rewards.judge.wire import Wire
from agentrl.sandbox.values import same

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
KEYS = st.integers() | st.text() | st.binary() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    SCALARS | st.frozensets(KEYS) | st.sets(KEYS),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner),
    max_leaves=20,
)


class Pair:
    """A judge's link whose candidate is this test."""

    def __init__(self):
        ours, self.theirs = socket.socketpair()
        self.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)
        self.wire = Wire(ours, wall_s=1.0)
        self.link = Link(self.wire)
        self.faces = Faces(self.link)
        self.agent = Agent(None)

    def answer(self, body):
        self.theirs.sendall(len(body).to_bytes(4, "big") + body)

    def ask(self):
        return self.link.request("get", 0, "x")

    def close(self):
        self.theirs.close()


@pytest.fixture
def pair():
    pair = Pair()
    yield pair
    pair.close()


def through_json(data):
    return json.loads(json.dumps(data))


@given(VALUES)
def test_values_survive_both_ways(value):
    pair = Pair()
    assert same(pair.agent.decode(through_json(pair.link.encode(value))), value)
    assert same(pair.link.decode(through_json(pair.agent.encode(value))), value)
    pair.close()


@given(st.lists(st.lists(st.integers(), max_size=3), max_size=5), st.data())
def test_changes_are_told_and_nothing_else(lists, data):
    pair = Pair()
    there = pair.agent.decode(through_json(pair.link.encode(lists)))
    assert pair.agent.changes() == []
    for part in there:
        if data.draw(st.booleans()):
            part.append(there)
    changes = through_json(pair.agent.changes())
    pair.link.apply(changes)
    assert [len(part) for part in lists] == [len(part) for part in there]
    assert all(part[-1] is lists for part, other in zip(lists, there, strict=True) if other and other[-1] is there)
    assert pair.link.changes() == [] == pair.agent.changes()
    pair.close()


def test_only_the_last_containers_are_followed(pair):
    kept = [[n] for n in range(SHARED_WINDOW + 10)]
    for one in kept:
        pair.agent.decode(pair.link.encode(one))
    pair.link.forget()
    pair.agent.forget()
    assert len(pair.link.shared) == len(pair.agent.shared) == SHARED_WINDOW


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["m", "int", "object"]),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from([*"vecmotdszbirxhkENBCl", "id", "n", "b", "o", "M", "f", "d", "p"]), inner, max_size=3
        )
    ),
    max_leaves=15,
)


@settings(max_examples=400)
@given(st.fixed_dictionaries({"v": JSON}, optional={"m": JSON, "o": JSON}) | st.fixed_dictionaries({"e": JSON}) | JSON)
def test_any_answer_is_a_value_an_exception_or_the_end(answer):
    pair = Pair()
    pair.link.encode([1, [2], {"a": {3}}])
    pair.answer(json.dumps(answer).encode())
    raised = None
    try:
        pair.ask()
    except (Refused, Exception) as error:
        raised = error
    rebuilt = isinstance(answer, dict) and "e" in answer and isinstance(raised, Exception)
    assert raised is None or isinstance(raised, CandidateGone) or rebuilt
    pair.close()


@given(st.binary(max_size=40))
def test_any_bytes_are_the_end(body):
    pair = Pair()
    pair.answer(body)
    with pytest.raises(CandidateGone):
        pair.ask()
    pair.close()


HOSTILE = {
    "deep": b'{"v":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "deep tags": b'{"v":' + b'{"t":[' * 5_000 + b"]}" * 5_000 + b"}",
    "a long int": b'{"v":' + b"9" * 100_000 + b"}",
    "a long int in hex": b'{"v":{"i":"' + b"f" * 100_000 + b'"}}',
    "a large exponent": b'{"v":{"x":["Decimal","1E+999999999"]}}',
    "a container that was never shared": b'{"v":{"r":0}}',
    "a change of one": b'{"v":1,"m":[[0,[1]]]}',
    "two answers": b'{"v":1,"e":2}',
    "a callback that was never passed": b'{"c":[0,"call",[],[]]}',
    "an unknown action": b'{"c":[0,"exec",[],[]]}',
    "a negative handle": b'{"v":{"h":[-1,0]}}',
    "an unknown class": b'{"v":{"h":[1,7]}}',
    "a class that is its own base": b'{"v":{"k":{"id":1,"n":"A","m":"m","b":[1],"o":[],"M":[],"f":[],"d":null,"p":null}}}',
    "data of another type than its class": b'{"v":{"v":[1,{"id":1,"n":"A","m":"m","b":["int"],"o":[],"M":[],"f":[],"d":null,"p":null},"x"]}}',
    "a builtin that is no class": b'{"v":{"B":"exec"}}',
    "an unhashable key": b'{"v":{"d":[[[],1]]}}',
    "empty": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_ends_the_talk(pair, name):
    pair.answer(HOSTILE[name])
    with pytest.raises(CandidateGone):
        pair.ask()
    with pytest.raises(CandidateGone):  # and nothing is asked any more
        pair.ask()


def test_a_candidate_that_is_gone_is_told_from_one_that_is_late(pair):
    pair.theirs.close()
    with pytest.raises(CandidateGone, match="the candidate ended"):
        pair.ask()
    assert (pair.wire.left, pair.wire.late) == (True, False)


def test_the_deadline_is_of_all_answers_together(pair):
    ours, theirs = socket.socketpair()
    pair.link = Link(Wire(ours, wall_s=0.1))
    theirs.sendall(b"\0\0\0\x09")
    with pytest.raises(CandidateGone, match="out of time"):
        pair.ask()
    with pytest.raises(CandidateGone, match="out of time"):  # without another wait
        pair.ask()


@pytest.mark.parametrize("head", [b"\x7f\xff\xff\xff", (MAX_MESSAGE + 1).to_bytes(4, "big")])
def test_no_memory_is_taken_for_a_length_that_is_a_lie(pair, head):
    pair.theirs.sendall(head)
    with pytest.raises(CandidateGone, match="an answer of"):
        pair.ask()


def test_answers_may_come_in_pieces_and_together(pair):
    both = b"".join(len(body).to_bytes(4, "big") + body for body in (b'{"v":1}', b'{"v":2}'))
    pair.theirs.sendall(both[:6])
    pair.theirs.sendall(both[6:])
    assert (pair.ask(), pair.ask()) == (1, 2)


@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException", "eval", "int"])
def test_exceptions_are_of_known_classes_only(pair, name):
    pair.answer(json.dumps({"e": [1, name, ["x"], {}, "x"]}).encode())
    allowed = {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}
    with pytest.raises(allowed.get(name, Exception)) as caught:
        pair.ask()
    assert type(caught.value) is allowed.get(name, Exception)


def test_only_what_was_passed_can_be_called_back(pair):
    calls = []
    assert pair.link.encode(calls.append) == {"c": [0, "call"]}
    pair.answer(b'{"c":[0,"call",[5],[]]}')
    pair.answer(b'{"v":6}')
    assert pair.ask() == 6
    assert calls == [5]
    pair.answer(b'{"c":[0,"get",["__self__"],[]]}')  # a function has no attributes for the candidate
    with pytest.raises(CandidateGone):
        pair.ask()
