"""Data sets as samples: what is trained, held out, cut and counted, in TinyAgent's tokens."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.records import write_traces
from agentrl.tasks.bugfix.environment import BugFixEnvironment
from agentrl.tokens.dataset import Unit, load_dataset, split
from agentrl.tokens.tiny import IDS, TinyRenderer
from agentrl.types import Message, Node, Score, Stop, Trace

RENDERER = TinyRenderer()
HARNESS = "tool-loop-v1/TinyRenderer/Limits(turns=4)"


def call(name, **arguments):
    return {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def user(text="fix test_1"):
    return {"role": "user", "content": text}


CHAT = [user(), call("test"), {"role": "tool", "content": "passed"}, call("submit")]
WORDS = [
    *("<user>", "fix", "test_1", "<end>", "<assistant>", "test", "<end>"),
    *("<tool>", "passed", "<end>", "<assistant>", "submit", "<end>"),
]
MASK = [0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1]


def load(path, **settings):
    return load_dataset(path, RENDERER, **({"context": 64, "tools": BugFixEnvironment.tool_specs} | settings))


def file(tmp_path, *chats, name="chat.jsonl"):
    path = tmp_path / name
    path.write_text(
        "".join(json.dumps(chat if isinstance(chat, dict) else {"messages": chat}) + "\n" for chat in chats)
    )
    return path


def weights(sample):
    return list(sample.weights["ce"])


def test_the_replies_are_trained_stop_token_included_and_nothing_else(tmp_path):
    path = file(tmp_path, CHAT)
    (unit,) = load(path).units
    (sample,) = unit.samples
    assert list(sample.token_ids) == [IDS[word] for word in WORDS]
    assert weights(sample) == MASK
    assert sample.trace_id == f"{path}, line 1"


def test_a_reply_without_weight_is_context(tmp_path):
    (unit,) = load(file(tmp_path, [user(), call("test") | {"weight": 0}, *CHAT[2:]])).units
    (sample,) = unit.samples
    assert list(sample.token_ids) == [IDS[word] for word in WORDS]
    assert weights(sample) == [0] * 11 + [1, 1]
    # of the last reply nothing is trained, so nothing behind the first is of use
    (unit,) = load(file(tmp_path, [*CHAT[:3], call("submit") | {"train": False}])).units
    assert weights(unit.samples[0]) == [0, 0, 0, 0, 0, 1, 1] + [0] * 6


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (call("edit", line=99, text="return a"), "TinyAgent's vocabulary has no 'L99'"),
        (call("edit", text="return a", line=1), r"the calls \[\('edit', .* would be read back as"),
        (call("walk"), "TinyAgent's vocabulary has no 'walk'"),
        ({"role": "assistant", "content": "done"}, "TinyAgent's replies are one tool call each"),
    ],
)
def test_what_the_model_could_not_say_or_read_back_is_refused_by_line(tmp_path, reply, told):
    with pytest.raises(ConfigError, match=f"chat.jsonl, line 2.*{told}"):
        load(file(tmp_path, CHAT, [user(), reply]))


def test_plain_texts_need_a_vocabulary_for_them(tmp_path):
    with pytest.raises(ConfigError, match="line 1: TinyRenderer has no vocabulary for plain texts; write the pair as"):
        load(file(tmp_path, {"prompt": "a", "completion": "b"}))


def test_what_is_longer_than_the_context_is_refused_cut_or_left_out_and_counted(tmp_path):
    short = [user(), call("submit")]  # 4 + 3 tokens
    path = file(tmp_path, short, CHAT)  # 13 tokens
    with pytest.raises(
        ConfigError, match=r"line 2: the conversation has 13 tokens, and the context 12; set model.context"
    ):
        load(path, context=12)
    whole = load(path, context=13)
    assert (len(whole.units), whole.num_cut, whole.longest) == (2, 0, 13)
    found = load(path, context=12, overlong="cut")
    assert weights(found.units[1].samples[0]) == MASK[:12]  # the end of the last reply is gone
    assert (found.num_cut, found.num_left_out, found.tokens_cut) == (1, 0, 1)
    found = load(path, context=12, overlong="leave_out")
    assert (len(found.units), found.num_cut, found.num_left_out, found.tokens_cut) == (1, 0, 1, 13)
    assert found.told() == (
        "conversations: 2 read, 1 to train, 1 left out as longer than the context, 13 tokens cut off; the longest has "
        "13 tokens"
    )
    with pytest.raises(ConfigError, match=r"nothing is left to train; .* the longest has 13 tokens"):
        load(path, context=4, overlong="leave_out")
    # cut before the first reply, nothing of it can be trained
    long = [user("fix test_1\n" * 5 + "fix"), call("submit")]
    found = load(file(tmp_path, short, long), context=8, overlong="cut")
    assert (len(found.units), found.num_cut, found.num_left_out) == (1, 0, 1)


def attempt(number, reward, *, harness=HARNESS, task="b/train/0", call=("test", "<end>")):
    ids = tuple(IDS[word] for word in call)
    context = tuple(IDS[word] for word in WORDS[:4])
    calls = RENDERER.parse(ids, BugFixEnvironment.tool_specs()).tool_calls
    nodes = (
        Node(parent=None, message=Message(role="user", content="fix test_1"), context_ids=context),
        Node(
            parent=0,
            message=Message(role="assistant", tool_calls=calls),
            context_ids=(IDS["<assistant>"],),
            sampled_ids=ids,
            logprobs=(-0.5,) * len(ids),
            versions=(3,) * len(ids),
        ),
    )
    return Trace(
        id=f"t{number}",
        task_id=task,
        group_id="g",
        attempt=number,
        seed=0,
        nodes=nodes,
        stop=Stop.DONE,
        scores=(Score(name="pass", value=reward),),
        metadata={"harness": harness},
    )


def test_attempts_with_enough_reward_are_imitated_id_for_id(tmp_path):
    traces = [attempt(0, 1.0), attempt(1, 0.5), attempt(2, None), attempt(3, 1.0, call=("submit", "<end>"))]
    write_traces(tmp_path / "rl.jsonl.gz", traces, phase="rl", step=1)
    found = load(tmp_path)
    assert [unit.samples[0].trace_id for unit in found.units] == ["t0", "t3"]
    assert [list(unit.samples[0].token_ids[-2:]) for unit in found.units] == [
        [IDS["test"], IDS["<end>"]],
        [IDS["submit"], IDS["<end>"]],
    ]
    assert {unit.about for unit in found.units} == {"b/train/0"}
    assert (found.num_read, found.num_poor, found.num_rewritten) == (4, 2, 0)
    assert len(load(tmp_path, min_reward=0.5).units) == 3


def test_attempts_of_another_model_are_written_anew_from_their_messages(tmp_path):
    other = attempt(0, 1.0, harness="tool-loop-v1/chatml-v1(thinking=False)/Limits(turns=4)")
    write_traces(tmp_path / "rl.jsonl.gz", [other], phase="rl", step=1)
    found = load(tmp_path)
    assert found.num_rewritten == 1
    assert list(found.units[0].samples[0].token_ids) == [IDS[word] for word in WORDS[:7]]
    assert found.units[0].samples[0].trace_id == f"{tmp_path / 'rl.jsonl.gz'}, line 2"


@given(st.lists(st.integers(0, 6), min_size=2, max_size=30), st.floats(0.01, 0.99), st.integers(0, 5))
def test_what_is_about_the_same_is_never_in_both_parts(subjects, share, seed):
    units = [Unit(str(subject), ()) for subject in subjects]
    if len(set(subjects)) < 2:
        with pytest.raises(ConfigError, match="begin alike, so none can be held out"):
            split(units, share, seed)
        return
    train, held_out = split(units, share, seed)
    assert sorted(train + held_out) == sorted(units)
    assert not {unit.about for unit in train} & {unit.about for unit in held_out}
    assert train
    assert held_out
    assert split(units, share, seed) == (train, held_out)


def test_the_share_is_of_subjects_and_drawn_from_the_seed():
    units = [Unit(str(number), ()) for number in range(40)]
    draws = [split(units, 0.25, seed) for seed in range(4)]
    assert [len(held_out) for _, held_out in draws] == [10] * 4
    assert len({tuple(held_out) for _, held_out in draws}) == 4
    assert split(units, 0.0, 0) == (units, [])
