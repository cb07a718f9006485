"""Users, thoughts and summaries in the language of Qwen3, with its real tokenizer."""

import asyncio

import pytest

from agentrl.engine.local import LocalEngine
from agentrl.harness.compaction import Compaction
from agentrl.harness.loop import Limits, ToolLoop, Transcript
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.tokens.chatml import ChatMLRenderer
from agentrl.tokens.samples import samples
from agentrl.tokens.toolcalls import Status, count_statuses
from agentrl.types import Message, Observation, Stop, Task
from tests.harness.parts import Recorder, World, path_to, trace_of
from tests.tokens.real import needs_assets, transformers_tokenizer, vocabulary

pytestmark = needs_assets
END = 151645
GOOD = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
SUBMIT = '<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>'


def ids(text):
    return (*vocabulary().encode(text), END)


def play(*replies, world=None, question="Name two primes.", thinking=True, compaction=None, **limits):
    transcript, session = Transcript(), Recorder([ids(reply) for reply in replies])
    renderer = ChatMLRenderer(vocabulary(), thinking=thinking)
    loop = ToolLoop(renderer, Limits(**{"context": 4000, "reply": 400} | limits), compaction=compaction or Compaction())
    task = Task(id="t", prompt=(Message(role="user", content=question),))
    asyncio.run(loop.run(task, world or World(), session, transcript))
    return trace_of(transcript), session


class Chat(World):
    """A user without tools."""

    def tools(self):
        return ()


T17_FIRST = [151644, 872, 198, 675, 1378, 49433, 13, 151645, 198, 151644, 77091, 198]
T17_REPLY = [151667, 198, 25307, 6174, 1156, 624, 151668, 271, 17, 323, 220, 18, 13, 151645]
T17_SECOND = [
    *T17_FIRST, 17, 323, 220, 18, 13, 151645, 198, 151644, 872, 198, 3966, 803, 13, 151645, 198, 151644, 77091, 198,
]  # fmt: skip


def test_thoughts_that_the_template_drops_fork_the_branch():
    # T17: the prompt of the second turn lost the thoughts, and the row that was trained kept them.
    trace, session = play("<think>\nSmall ones first.\n</think>\n\n2 and 3.", "5.", world=Chat(sentences=["One more."]))
    assert [list(asked.held) for asked in session.asked] == [T17_FIRST, T17_SECOND]
    assert session.rewinds == [(26, 12)]
    (branch,) = trace.metadata["branches"]
    assert branch["why"] == ["a new message of the user drops the thoughts of earlier replies (message 1)"]
    assert branch["removed"] == 26 - 19  # eight ids of the thoughts, and the newline behind the reply is told now
    first, second = samples(trace, 1.0)
    assert first.token_ids == (*T17_FIRST, *T17_REPLY)
    assert first.weights["pg"] == (0.0,) * 12 + (1.0,) * 14
    assert second.token_ids == (*T17_SECOND, 20, 13, END)
    assert second.weights["pg"] == (0.0,) * 30 + (1.0,) * 3
    assert (trace.stop, trace.num_turns) == (Stop.DONE, 2)
    assert [node.copied for node in trace.nodes] == [False, False, True, False, False]


def test_without_thoughts_a_user_is_appended():
    trace, session = play("2 and 3.", "5.", world=Chat(sentences=["One more."]))
    assert session.rewinds == []
    assert len(trace.branches()) == 1
    (sample,) = samples(trace, 1.0)
    chat = [{"role": "user", "content": "Name two primes."}, {"role": "assistant", "content": "2 and 3."}]
    chat.append({"role": "user", "content": "One more."})
    wanted = transformers_tokenizer().apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert sample.token_ids == (*wanted, 20, 13, END)


def test_thoughts_stay_as_long_as_only_tools_answer():
    think = f"<think>\nhm\n</think>\n\n{GOOD}"
    trace, session = play(think, think, SUBMIT)
    assert (session.rewinds, len(trace.branches())) == ([], 1)
    assert trace.stop == Stop.DONE


def test_the_users_next_question_is_what_the_template_writes_for_the_whole_conversation():
    # Results between: all thoughts go, and what was sampled before stays in the first branch.
    think = f"<think>\nhm\n</think>\n\n{GOOD}"
    replies = (think, "<think>\nso\n</think>\n\nDone?", "Fine.")
    trace, session = play(*replies, world=World(results=["x = 1"], sentences=["Yes."]))
    chat = [
        {"role": "user", "content": "Name two primes."},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"type": "function", "function": {"name": "read", "arguments": {"path": "a"}}}],
        },
        {"role": "tool", "content": "x = 1"},
        {"role": "assistant", "content": "Done?", "reasoning_content": "so"},
        {"role": "user", "content": "Yes."},
    ]
    tools = [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in World.tool_specs()
    ]
    wanted = transformers_tokenizer().apply_chat_template(chat, tools=tools, add_generation_prompt=True)["input_ids"]
    assert list(session.asked[2].held) == wanted
    assert [sum(sample.weights["pg"]) for sample in samples(trace, 1.0)] == [
        len(ids(replies[0])) + len(ids(replies[1])),
        len(ids(replies[2])),
    ]


def test_a_summary_with_thoughts_goes_on_without_them_and_is_trained_with_them():
    compaction = Compaction(kind="summarize", summary=40, request="Sum up.", go_on="Go on.")
    summary = "<think>\nhm\n</think>\n\nI read a."
    _, whole = play(GOOD, SUBMIT, world=World(results=["line\n" * 60]))
    context = len(whole.asked[-1].held) + 60  # room for a summary, and none beside it
    world = World(results=["line\n" * 60])
    trace, _ = play(GOOD, summary, SUBMIT, world=world, compaction=compaction, context=context)
    assert trace.stop == Stop.DONE
    first, second = samples(trace, 1.0)
    text = vocabulary().decode(second.token_ids)
    assert text.endswith(
        "<|im_start|>assistant\nI read a.<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n"
        f"<|im_start|>assistant\n{SUBMIT}<|im_end|>"
    )
    assert (
        vocabulary().decode(first.token_ids).endswith(f"Sum up.<|im_end|>\n<|im_start|>assistant\n{summary}<|im_end|>")
    )
    assert first.weights["pg"][-len(ids(summary)) :] == (1.0,) * len(ids(summary))
    assert [len(branch["why"]) for branch in trace.metadata["branches"]] == [2]


def test_ids_that_no_tokenizer_gives_for_their_text_stay_in_a_branch_that_is_laid_again():
    # "i", "s", " a": decoding and encoding would make one piece of the first two.
    spelt = (72, 82, 264)
    assert vocabulary().encode(vocabulary().decode(spelt)) == (285, 264)
    replies = [(*spelt, *ids(f"\n{GOOD}"))] * 2 + [ids(SUBMIT)]
    results = ["line\n" * 80, "line\n" * 60]

    def loop(context):
        dropping = Compaction(kind="drop_results", fill=1.0, marker="[removed]")
        return ToolLoop(ChatMLRenderer(vocabulary()), Limits(context=context, reply=200), compaction=dropping)

    task = Task(id="t", prompt=(Message(role="user", content="Go."),))
    whole = Recorder([*replies])
    asyncio.run(loop(4000).run(task, World(results), whole, Transcript()))
    transcript, session = Transcript(), Recorder([*replies])
    asyncio.run(loop(len(whole.asked[-1].held)).run(task, World(results), session, transcript))
    trace = trace_of(transcript)
    assert (trace.stop, len(session.rewinds)) == (Stop.DONE, 1)
    held = session.asked[-1].held
    assert [held[place : place + 3] for place in range(len(held) - 2)].count(spelt) == 2
    for index, node in enumerate(trace.nodes):
        if node.sampled_ids:
            asked = next(one for one in session.asked if one.completion.versions == node.versions)
            assert path_to(trace.nodes, index) == asked.held + node.sampled_ids


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ('{"path": "a.py"', Status.UNCLOSED),
        ("{'path': 'a'}", Status.INVALID_JSON),
        ("null", Status.NOT_A_CALL),
        ("[]", Status.NOT_A_CALL),
        ('"x"', Status.NOT_A_CALL),
        ("5", Status.NOT_A_CALL),
        ('{"path": "a", "path": "b"}', Status.INVALID_JSON),
        ('{"n": NaN}', Status.INVALID_JSON),
        ("", Status.INVALID_JSON),
    ],
)
def test_arguments_that_are_none_are_answered_and_the_attempt_goes_on(arguments, status):
    # EO-T02: a quarter of the attempts was lost. The unclosed object makes of the whole call no JSON.
    bad = f'<tool_call>\n{{"name": "read", "arguments": {arguments}}}\n</tool_call>'
    if status is Status.UNCLOSED:
        bad = bad.removesuffix("}\n</tool_call>")
    trace, _ = play(bad, SUBMIT)
    assert (trace.stop, trace.num_turns) == (Stop.DONE, 2)
    assert count_statuses(trace) == {status: 1, Status.OK: 1}
    answer = trace.nodes[2].message
    assert (answer.role, answer.content[:7]) == ("tool", "error: ")


def test_a_cut_anywhere_in_a_call_is_answered_or_ends_the_attempt():
    whole = ids(GOOD)
    for length in range(len(whole)):
        transcript, session = Transcript(), Recorder([(*whole[:length], END), ids(SUBMIT)])
        task = Task(id="t", prompt=(Message(role="user", content="Go."),))
        loop = ToolLoop(ChatMLRenderer(vocabulary()), Limits(context=2000, reply=200))
        asyncio.run(loop.run(task, World(), session, transcript))
        assert transcript.stop == Stop.DONE
        assert transcript.num_malformed == (0 if length in (0, len(whole) - 1) else 1)


def test_one_flag_for_an_attempt_whatever_its_replies_and_messages():
    # T33: finish reasons [stop, length], [stop], [stop, stop, stop] gave six flags for three attempts.
    cut, one, three = (
        play(GOOD, "word " * 400)[0],
        play("done")[0],
        play(GOOD, GOOD, SUBMIT)[0],
    )
    assert [trace.stop for trace in (cut, one, three)] == [Stop.MAX_TOKENS, Stop.DONE, Stop.DONE]


def test_with_the_engine_a_branch_is_sampled_as_if_it_had_been_sent_whole():
    # Rewinding keeps the cache of what the branches share; the numbers are those of a fresh conversation.
    shape = TransformerShape(vocab_size=151669, layers=1, width=8, heads=1, mlp_width=8, context=1024)
    engine = LocalEngine(TinyTransformer(shape, seed=0))

    async def both():
        session = engine.session(3)
        await session.sample(T17_FIRST, max_tokens=4, stop_ids=frozenset())
        await session.rewind(len(T17_FIRST))
        going_on = T17_SECOND[len(T17_FIRST) :]
        rewound = await session.sample(going_on, max_tokens=4, stop_ids=frozenset())
        await session.close()
        fresh = engine.session(3)
        fresh.num_drawn = 4
        whole = await fresh.sample(T17_SECOND, max_tokens=4, stop_ids=frozenset())
        await fresh.close()
        return rewound, whole

    rewound, whole = asyncio.run(both())
    assert rewound.token_ids == whole.token_ids
    assert rewound.logprobs == pytest.approx(whole.logprobs, abs=1e-5)


T29_IDS = [
    151644, 77091, 198, 151657, 198, 4913, 606, 788, 330, 878, 497, 330, 16370, 788, 5212, 2343, 788, 330, 64, 95642,
    151658, 198, 151657, 198, 4913, 606, 788, 330, 878, 497, 330, 16370, 788, 5212, 2343, 788, 330, 65, 95642, 151658,
    151645, 198, 151644, 872, 198, 151665, 198, 50107, 198, 151666, 198, 151665, 198, 10098, 33, 198, 151666, 151645,
    198,
]  # fmt: skip


@pytest.mark.parametrize("parallel", [(), ("read",)])
def test_results_stand_in_the_order_of_the_calls_whichever_came_first(parallel):
    # T29: the second call ended first, and its result was shown as the answer to the first.
    class Racing(World):
        def __init__(self, **options):
            super().__init__(**options)
            self.ended = []

        async def call(self, call):
            if call.arguments.get("path") == "a":
                for _ in range(5):
                    await asyncio.sleep(0)
            self.ended.append(call.arguments.get("path"))
            if call.name == "read":
                return Observation(content={"a": "AAA", "b": "BBB"}[call.arguments["path"]])
            return await super().call(call)

    both = GOOD + "\n" + GOOD.replace('"a"', '"b"')
    world = Racing(parallel=parallel)
    _, session = play(both, SUBMIT, world=world, question="Read both.")
    assert world.ended[:2] == (["b", "a"] if parallel else ["a", "b"])
    opening = len(session.asked[0].held) - 3
    assert list(session.asked[1].held[opening:-3]) == T29_IDS
