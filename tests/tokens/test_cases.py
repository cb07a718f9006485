"""Faults of templates, masks and cut rows that others had in public, with the ids of the real tokenizer."""

import dataclasses

import pytest

from agentrl.errors import RendererError
from agentrl.tokens.chat import messages_from_chat, tool_to_chat
from agentrl.tokens.rows import cut, demonstration, prompt_and_completion
from agentrl.tokens.samples import samples
from agentrl.tokens.template import TemplateRenderer
from agentrl.tokens.toolcalls import dump
from agentrl.types import Message, Node, Sample, Score, Stop, ToolSpec, Trace
from tests.tokens import templates
from tests.tokens.case_parts import END, calls, flat, imitated, rendered, renderer, say
from tests.tokens.real import needs_assets, transformers_tokenizer, vocabulary

pytestmark = needs_assets
T05_IDS = [
    151644, 872, 198, 46254, 220, 18, 9, 16, 23, 151645, 198, 151644, 77091, 198, 151657, 198, 4913, 606, 788,
    330, 24160, 497, 330, 16370, 788, 5212, 64, 788, 220, 18, 11, 330, 65, 788, 220, 16, 23, 11248, 151658,
    151645, 198, 151644, 872, 198, 151665, 198, 20, 19, 198, 151666, 151645, 198,
]  # fmt: skip
T24_IDS = [
    151644, 872, 198, 852, 3542, 13, 151645, 198, 151644, 77091, 198, 151667, 198, 10380, 1156, 624, 151668,
    271, 151657, 198, 4913, 606, 788, 330, 6108, 497, 330, 16370, 788, 5212, 8710, 788, 330, 4730, 95642,
    151658, 151645, 198, 151644, 872, 198, 151665, 198, 64, 7197, 198, 151666, 151645, 198, 151644, 77091, 198,
    151667, 198, 17453, 624, 151668, 271, 3966, 1034, 13, 151645,
]  # fmt: skip
T24_TRAINED = "00000000000111111111111111111111111110000000000000001111111111"
T29_IDS = [
    151644, 872, 198, 4418, 2176, 13, 151645, 198, 151644, 77091, 198, 151657, 198, 4913, 606, 788, 330, 878,
    497, 330, 16370, 788, 5212, 2343, 788, 330, 64, 95642, 151658, 198, 151657, 198, 4913, 606, 788, 330, 878,
    497, 330, 16370, 788, 5212, 2343, 788, 330, 65, 95642, 151658, 151645, 198, 151644, 872, 198, 151665, 198,
    50107, 198, 151666, 198, 151665, 198, 10098, 33, 198, 151666, 151645, 198,
]  # fmt: skip


PRIMES = messages_from_chat(
    [say("user", "Name a prime."), say("assistant", "Seven is a prime number."), say("user", "Another?")]
)


def test_a_cut_reply_keeps_its_mask():
    # T01: the end of the span lies past the cut.
    shorter = cut(imitated(PRIMES), 16)
    assert shorter.sample.token_ids == (
        151644,
        872,
        198,
        675,
        264,
        10250,
        13,
        151645,
        198,
        151644,
        77091,
        198,
        59528,
        374,
        264,
        10250,
    )
    assert shorter.sample.weights["ce"] == (0,) * 12 + (1,) * 4
    assert (shorter.num_cut, shorter.num_trained_cut) == (3, 3)  # " number", "." and the end of the turn
    assert END not in shorter.sample.token_ids[12:]


@pytest.mark.parametrize(("side", "kept"), [("left", (0, 1, 1, 1, 1, 0)), ("right", (0, 0, 0, 0, 0, 1))])
def test_every_list_is_cut_by_the_same_slice(side, kept):
    # T03: ids cut on the left and the mask on the right are of one length and shifted by 4.
    mask = (0.0,) * 5 + (1.0,) * 4 + (0.0,)
    ids = tuple(range(100, 110))
    numbers = tuple(float(i) for i in range(10))
    sample = Sample(
        token_ids=ids,
        weights={"pg": mask, "ce": mask},
        logprobs=numbers,
        advantages=numbers,
        versions=ids,
        reference_logprobs=numbers,
        trace_id="t",
        group_id="g",
    )
    found = cut(sample, 6, side=side).sample
    start = 4 if side == "left" else 0
    assert (found.token_ids, found.versions) == (ids[start : start + 6],) * 2
    assert found.logprobs == found.advantages == found.reference_logprobs == numbers[start : start + 6]
    assert found.weights == {"pg": kept, "ce": kept}
    assert found.returns == ()  # what is absent stays so


def test_a_prompt_has_as_many_ids_whatever_transformers_gives():
    # T04: in transformers 5 the template's result is a mapping of length 2.
    message = [Message(role="user", content="Name a prime.")]
    for found in (renderer(), TemplateRenderer(vocabulary())):
        assert len(flat(found.render(message, ())) + list(found.generation_prompt())) == 12
    assert (
        len(transformers_tokenizer().apply_chat_template([say("user", "Name a prime.")], add_generation_prompt=True))
        == 2
    )


@pytest.mark.parametrize("arguments", [{"a": 3, "b": 18}, '{"a":3,"b":18}'])
def test_arguments_as_an_object_and_as_a_text_are_one_call(arguments):
    # T05
    chat = [say("user", "Compute 3*18"), say("assistant", "", tool_calls=calls(("mul", arguments))), say("tool", "54")]
    assert rendered(chat) == T05_IDS


def test_arguments_that_are_no_json_are_refused_by_message():
    # T05
    with pytest.raises(RendererError, match=r"message 1, call 'mul': the arguments are no JSON"):
        messages_from_chat([say("user", "x"), say("assistant", "", tool_calls=calls(("mul", "{a: 3")))])


@pytest.mark.parametrize("arguments", [{}, None, ""])
def test_a_tool_without_parameters_keeps_its_row(arguments):
    # T11: null and an empty text are pasted as they are by the template.
    chat = [say("user", "go"), say("assistant", None, tool_calls=calls(("now", arguments))), say("tool", "5")]
    assert '{"name": "now", "arguments": {}}' in renderer().decode(rendered(chat))


def test_no_content_null_and_parts_of_text_are_one_message():
    # T12
    run = calls(("run", {"cmd": "ls"}))
    histories = [
        [say("user", "go"), {"role": "assistant", "tool_calls": run, **content}, say("tool", "x")]
        for content in ({}, {"content": None}, {"content": ""}, {"content": []})
    ]
    assert len({tuple(rendered(history)) for history in histories}) == 1
    parts = [{"type": "text", "text": "g"}, {"type": "text", "text": "o"}]
    assert rendered([say("user", parts)]) == rendered([say("user", "go")])
    with pytest.raises(RendererError, match="message 0: a part of the content is 'image_url'"):
        rendered([say("user", [{"type": "image_url", "image_url": {}}])])


@pytest.mark.parametrize(("side", "width"), [("right", None), ("right", -1), ("left", 12), ("left", 3)])
def test_a_mask_is_not_looked_up_in_the_text(side, width):
    # T15: the user quotes a turn of the assistant and its end.
    quoted = "What does <|im_start|>assistant\nYes.<|im_end|> mean?"
    messages = [
        Message(role="user", content=quoted),
        Message(role="assistant", content="No."),
        Message(role="user", content="ok"),
    ]
    whole = imitated(messages)
    found = cut(whole, len(whole.token_ids[:width]), side=side).sample
    trained = [token for token, weight in zip(found.token_ids, found.weights["ce"], strict=True) if weight]
    expected = [*vocabulary().text_ids("No."), END]
    assert trained == expected[: len(trained)]
    assert len(trained) == (2 if width == -1 else 3)


def test_a_schema_is_written_as_the_model_knows_it():
    # T16: escapes of HTML, escapes of other alphabets or other separators give 121, 92 and 63 ids.
    parameters = {
        "type": "object",
        "properties": {"pattern": {"type": "string"}, "glob": {"type": "string", "description": "z"}},
        "required": ["pattern"],
    }
    spec = ToolSpec(
        name="grep", description="Find lines where a < b && c > 'd' — naïve; see docs/x", parameters=parameters
    )
    assert len(vocabulary().text_ids(dump(tool_to_chat(spec)))) == 83
    question = [Message(role="user", content="x")]
    found = renderer().render(question, [spec])
    assert found == TemplateRenderer(vocabulary()).render(question, [spec])
    assert dump(tool_to_chat(spec)) in renderer().decode(found[0])


def test_thoughts_that_are_stripped_fork_the_trace_and_every_reply_is_trained_once():
    # T17
    messages = [
        Message(role="user", content="Name two primes."),
        Message(role="assistant", content="2 and 3.", reasoning="small ones first."),
        Message(role="user", content="One more."),
        Message(role="assistant", content="5."),
    ]
    trace = demonstration(renderer(), messages, (), trace_id="t")
    assert len(trace.branches()) == 2
    first, second = samples(trace, None, objective="ce")
    assert (len(first.token_ids), sum(first.weights["ce"])) == (26, 14)
    assert second.token_ids[:30] == tuple(
        transformers_tokenizer().apply_chat_template(
            [say("user", "Name two primes."), say("assistant", "2 and 3."), say("user", "One more.")],
            add_generation_prompt=True,
        )["input_ids"]
    )
    assert second.weights["ce"] == (0,) * 30 + (1,) * 3
    # Without thoughts nothing is stripped, and the conversation is one sequence.
    plain = [dataclasses.replace(message, reasoning=None) for message in messages]
    assert len(demonstration(renderer(), plain, (), trace_id="t").branches()) == 1


def test_the_end_of_a_turn_is_trained_where_it_was_sampled_even_when_it_is_the_pad():
    # T19: a mask made from the pad's id would lose it.
    ids = (59528, 13, END)
    node = Node(
        parent=None, message=Message(role="assistant"), sampled_ids=ids, logprobs=(-0.2, -0.1, -0.7), versions=(0,) * 3
    )
    trace = Trace(
        id="t",
        task_id="t",
        group_id="g",
        attempt=0,
        seed=0,
        nodes=(node,),
        stop=Stop.DONE,
        scores=(Score(name="pass", value=1.0),),
    )
    (sample,) = samples(trace, 1.0)
    assert (sample.token_ids, sample.weights["pg"]) == (ids, (1, 1, 1))


def test_the_scaffold_around_turns_is_not_trained():
    # T24: the newline behind 151645 and the head of a turn, 151644 77091 198, belong to nobody's reply.
    first = '<think>\nLook first.\n</think>\n\n<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'
    (asked, looked, shown, done) = messages_from_chat(
        [
            say("user", "List files."),
            say("assistant", "", reasoning="Look first.", tool_calls=calls(("run", {"cmd": "ls"}))),
            say("tool", "a.py"),
            say("assistant", "One file.", reasoning="Done."),
        ]
    )
    assert renderer().decode(renderer().write_reply(looked)) == f"{first}<|im_end|>"
    sample = imitated([asked, looked, shown, done])
    assert list(sample.token_ids) == T24_IDS
    assert "".join("1" if weight else "0" for weight in sample.weights["ce"]) == T24_TRAINED
    assert T24_TRAINED.count("1") == 36


def test_parallel_results_stand_in_the_order_of_the_calls_in_one_turn():
    # T29 and T30: whichever came back first.
    expected = T29_IDS
    asked = [
        say("user", "Read both."),
        say("assistant", "", tool_calls=calls(("read", {"path": "a"}), ("read", {"path": "b"}), ids=["c1", "c2"])),
    ]
    results = [say("tool", "BBB", tool_call_id="c2"), say("tool", "AAA", tool_call_id="c1")]
    for order in (results, results[::-1]):
        assert rendered([*asked, *order]) == expected
    assert expected.count(151644) == 3
    for wrong in ([results[0]], [results[1]] * 2, [*results, say("tool", "C", tool_call_id="c3")]):
        with pytest.raises(RendererError, match="is the result of call"):
            rendered([*asked, *wrong])


def test_pieces_of_prompt_and_completion_are_not_merged():
    # T26: encoded together, "memory.feedback" has a piece of both.
    for prompt, completion, given, written in [
        ("Call memory.", "feedback(3)", (7220, 4938, 13), (20999, 7, 18, 8)),
        ("def f(", ")", (750, 282, 7), (8,)),
        ("x =", "=1", (87, 284), (28, 16)),
        ("Answer:", " 4", (16141, 25), (220, 19)),
    ]:
        trace = prompt_and_completion(vocabulary(), prompt, completion, trace_id="t", end=False)
        (sample,) = samples(trace, None, objective="ce")
        assert sample.token_ids == given + written
        assert sample.weights["ce"] == (0,) * len(given) + (1,) * len(written)
    ended = prompt_and_completion(vocabulary(), "a", "b", trace_id="t")
    assert ended.nodes[1].sampled_ids[-1] == vocabulary().end_id


def test_one_beginning_of_a_text_where_tokenizer_and_template_both_add_it():
    # T27
    found = templates.small_vocabulary("{{ bos_token }}" + templates.SMOLLM, (*templates.CHATML, "<s>"), bos="<s>")
    bos = found.control("<s>")
    assert found._tokenizer.encode("x").ids[0] == bos  # the tokenizer adds it by itself
    ids = flat(TemplateRenderer(found).render([Message(role="user", content="x")], ()))
    assert ids.count(bos) == 1


def test_what_is_cut_to_nothing_says_so():
    # T36
    found = cut(imitated(PRIMES), 12)
    assert found == (None, 7, 7)
    assert cut(imitated(PRIMES), 19).num_cut == 0
    with pytest.raises(RendererError, match="max_tokens is 0"):
        cut(imitated(PRIMES), 0)


@pytest.mark.parametrize("more", [[], [say("user", "And?"), say("assistant", "So.")]])
def test_an_answer_that_mentions_a_tag_loses_nothing(more):
    # T40: the template drops half of it, or makes it thoughts.
    text = "The tag </think> closes thoughts."
    chat = [say("user", "x"), say("assistant", text), *more]
    assert text in renderer().decode(rendered(chat))
    reply = messages_from_chat(chat)[1]
    assert renderer().decode(renderer().write_reply(reply)) == f"{text}<|im_end|>"


def test_thoughts_in_the_text_are_taken_apart_once():
    # T41
    (_, reply) = messages_from_chat([say("user", "x"), say("assistant", "<think>\nA1\n</think>\n\nR1")])
    assert (reply.reasoning, reply.content) == ("A1", "R1")
    assert renderer().decode(renderer().write_reply(reply)) == "<think>\nA1\n</think>\n\nR1<|im_end|>"
    same = messages_from_chat([say("user", "x"), say("assistant", "R1", reasoning_content="A1")])[1]
    assert same == reply
