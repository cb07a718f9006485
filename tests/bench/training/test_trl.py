"""``agentrl bench trl`` at the smallest size: both sides are given the same, and train as many episodes."""

from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is in the extra `bench`: pip install -e '.[bench]'")

from transformers import AutoTokenizer
from trl.chat_template_utils import get_training_chat_template

from agentrl.bench.report import BenchError
from agentrl.bench.rounds import Took
from agentrl.bench.training import trl, words
from agentrl.bench.training.ours import Counts, check
from agentrl.bench.training.trl_peer import _TOOLS, Sides, schemas
from agentrl.bench.training.worlds import Digits, num_tokens, share_of_even
from agentrl.tokens.chatml import ChatMLRenderer
from agentrl.tokens.vocabulary import Vocabulary
from agentrl.types import Message, Stop, ToolCall, ToolSpec, Trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("words")
    words.write(made, [Path(trl.__file__).read_text(), "Which tests fail? Run the tests. " * 3])
    return made


def test_one_turn_is_the_same_work_on_both_sides():
    told = []
    took = trl.single(trl.QUICK, 2, told.append)
    ours, theirs = took.our_counts, took.their_counts
    assert (ours.episodes, ours.steps, ours.given) == (theirs.episodes, theirs.steps, theirs.given) == (2, 2, 20.0)
    assert 1 <= ours.sampled <= 4
    assert 1 <= theirs.sampled <= 4
    assert len(took.ours.passed) == len(took.theirs.used) == 1  # the first step is not timed
    assert [line.partition(":")[0] for line in told] == ["step 1", "step 2"]


def test_the_vocabulary_has_as_many_words_as_the_model_and_keeps_digits_apart(folder):
    vocabulary = Vocabulary.load(folder)
    assert vocabulary.num_ids == words.SIZE
    assert len(vocabulary.text_ids("0123456789" * 3)) == 30
    assert vocabulary.decode(vocabulary.text_ids("Größe: 3\n")) == "Größe: 3\n"


def test_prompts_are_as_long_as_was_asked_and_what_TRL_writes(folder):
    renderer = ChatMLRenderer(Vocabulary.load(folder), thinking=False)
    tasks = Digits(3, 60, renderer)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for index in range(3):
        prompt = tasks[index].prompt
        assert num_tokens(renderer, prompt, ()) == 60
        messages = [{"role": message.role, "content": message.content} for message in prompt]
        theirs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, enable_thinking=False, return_dict=False
        )
        assert theirs == [*(i for span in renderer.render(prompt, ()) for i in span), *renderer.generation_prompt()]


def test_tools_and_their_results_are_told_in_the_same_ids(folder):
    """By TRL's way: the template that it trains with, and its tools as functions."""
    renderer = ChatMLRenderer(Vocabulary.load(folder), thinking=False)
    specs = tuple(ToolSpec(**schema["function"]) for schema in schemas())
    question, call = Message(role="user", content="Repair it."), ToolCall(name="test")
    said = Message(role="assistant", tool_calls=(call,))
    opening = [i for span in renderer.render([question], specs) for i in span] + list(renderer.generation_prompt())
    reply = renderer.write_reply(said)
    more = renderer.extend([Message(role="tool", content="1 failed")], reply)
    ours = [*opening, *reply, *(i for span in more for i in span), *renderer.generation_prompt()]

    tokenizer = AutoTokenizer.from_pretrained(folder)
    template = get_training_chat_template(tokenizer)
    options = {"chat_template": template, "enable_thinking": False, "return_dict": False}
    options["add_generation_prompt"] = True
    asked = {"role": "user", "content": "Repair it."}
    theirs = tokenizer.apply_chat_template([asked], tools=list(_TOOLS), **options)
    assert theirs == opening
    calls = [{"type": "function", "function": {"name": "test", "arguments": {}}}]
    talked = [asked, {"role": "assistant", "content": "", "tool_calls": calls}]
    before = tokenizer.apply_chat_template(talked, **options | {"add_generation_prompt": False})
    result = {"role": "tool", "name": "test", "content": "1 failed"}
    after = tokenizer.apply_chat_template([*talked, result], **options)
    end = len(before) - before[::-1].index(tokenizer.eos_token_id)
    assert ours == [*opening, *reply, *after[end:]]


def test_the_reward_of_a_turn_by_hand():
    assert share_of_even([2, 4, 5, 7]) == 0.5
    assert share_of_even([]) == 0.0


def test_attempts_that_are_not_all_trained_are_no_number():
    whole = Trace(id="t", task_id="t", group_id="g", attempt=0, seed=0, nodes=(), stop=Stop.DONE)
    check([whole, whole], 2)
    with pytest.raises(BenchError, match="1 of 2 attempts are trained"):
        check([whole, whole], 1)


def test_a_table_has_both_sides_and_what_differs():
    counts = Counts(episodes=64, steps=3, sampled=47.0, given=200.0)
    ours = Took(passed=(1.0, 2.0), used=(1.0, 1.0))
    took = Sides(ours=ours, theirs=Took(passed=(4.0, 10.0), used=(3.0, 3.0)), our_counts=counts, their_counts=counts)
    table = trl.as_table("tools", took)
    # medians of 1.5 and 7 s for 64 episodes; within steps 4/1 and 10/2
    assert table.rows[0] == ("ours", 64 / 1.5, 1.0, 1.0, 1.0, 1.0, 47.0, 200.0, 3)
    assert table.rows[1] == ("TRL", 64 / 7.0, 4.5, 4.0, 5.0, 3.0, 47.0, 200.0, 3)
    assert set(trl.DIFFERENCES + trl.TOOL_DIFFERENCES) == set(table.notes)
    assert (trl.aim("tools", took).wanted, trl.aim("single", took).reached) == (8.0, True)
