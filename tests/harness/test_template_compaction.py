"""Summaries under chat templates of many families: what each can express of them is what is sent, to the id.

Gemma's turns alternate and know no tools, Llama's and SmolLM's know none that are read here, Qwen2.5's know them; and
there is one in which results are turns of the user's, behind which no other may stand.
"""

import asyncio
import datetime
import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.config import load_recipe
from agentrl.errors import ConfigError, RendererError
from agentrl.harness.compaction import Compaction
from agentrl.harness.configured import configured_loop
from agentrl.harness.conversation import ways
from agentrl.harness.loop import Limits, ToolLoop, Transcript
from agentrl.tokens.samples import samples
from agentrl.tokens.template import TemplateRenderer
from agentrl.types import Message, Stop, Task
from tests.harness import playing
from tests.harness.parts import Recorder, Talk, World, trace_of
from tests.tokens import templates

SUM_UP = Compaction(kind="summarize", summary=6, marker="gone", request="Sum up.", go_on="Go on.")
BUILT = {
    "gemma3": lambda: TemplateRenderer(templates.gemma3()),
    "llama3": lambda: TemplateRenderer(templates.llama3(), today=datetime.date(2026, 1, 1)),
    "smollm": lambda: TemplateRenderer(templates.small_vocabulary(templates.SMOLLM)),
    "qwen2.5": lambda: TemplateRenderer(templates.small_vocabulary(templates.QWEN25)),
    "alternating": lambda: TemplateRenderer(templates.small_vocabulary(templates.ALTERNATING)),
}
WITH_TOOLS = ("qwen2.5", "alternating")
LONG = "A plum is blue, and so is the sky on a day without clouds. "
CALL = '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'


@functools.cache
def built(name):
    return BUILT[name]()


def reply(renderer, text, *, stop=True):
    return (*renderer.vocabulary.encode(text), *((renderer.proof.stop_id,) if stop else ()))


def play(renderer, world, replies, context, system_prompt=""):
    transcript, session = Transcript(), Recorder(list(replies))
    limits = Limits(turns=9, reply=200, context=context)
    loop = ToolLoop(renderer, limits, compaction=SUM_UP, system_prompt=system_prompt)
    task = Task(id="t", prompt=(Message(role="user", content="Which?"),))
    asyncio.run(loop.run(task, world, session, transcript))
    return transcript, session


def shown(renderer, asked):
    return renderer.decode(asked.held)


# The exact ids.


def test_gemma_is_asked_in_the_turn_of_what_was_answered():
    renderer = built("gemma3")
    ids = renderer.vocabulary.encode
    said, summary, last = (reply(renderer, text) for text in ("A plum.", "Fruit.", "Blue."))
    prompt = ids("<bos><start_of_turn>user\nBe brief.\n\nWhich?<end_of_turn>\n")
    opening = ids("<start_of_turn>model\n")
    asked = ids(f"\n<start_of_turn>user\n{LONG.strip()}\n\nSum up.<end_of_turn>\n")
    going_on = ids("\n<start_of_turn>user\nGo on.<end_of_turn>\n")
    # Room for the answer, the request, the opening and the summary, and none for another reply.
    context = len(prompt + opening + said + asked + opening) + SUM_UP.summary
    transcript, session = play(renderer, Talk(sentences=[LONG.strip()]), [said, summary, last], context, "Be brief.")
    assert transcript.stop == Stop.DONE
    assert [one.held for one in session.asked] == [
        prompt + opening,
        prompt + opening + said + asked + opening,
        prompt + opening + summary + going_on + opening,
    ]
    assert [node.message.content for node in transcript.nodes if node.message.role == "user"] == [
        "Which?",
        f"{LONG.strip()}\n\nSum up.",
        "Go on.",
    ]
    [branch] = transcript.notes["branches"]
    assert branch["why"] == [f"no room in {context} tokens: summarized"]
    first, second = samples(trace_of(transcript), 1.0)
    trained = [
        tuple(token for token, weight in zip(one.token_ids, one.weights["pg"], strict=True) if weight)
        for one in (first, second)
    ]
    assert trained == [said + summary, last]  # the summary once, where it was sampled
    # as two turns, which other templates take, the template does not have it
    answer, request = Message(role="user", content=LONG), Message(role="user", content=SUM_UP.request)
    with pytest.raises(RendererError, match="must alternate"):
        renderer.extend([answer, request], said)


def test_an_answer_that_leaves_no_room_is_withheld_and_the_request_stands_behind_the_marker():
    renderer, answer = built("gemma3"), LONG * 9
    replies = [reply(renderer, text) for text in ("A plum.", "Fruit.", "Blue.")]
    assert len(renderer.vocabulary.encode(answer)) > 200
    transcript, session = play(renderer, Talk(sentences=[answer]), replies, 200)
    assert transcript.stop == Stop.DONE
    end = "<start_of_turn>user\ngone\n\nSum up.<end_of_turn>\n<start_of_turn>model\n"
    assert shown(renderer, session.asked[1]).endswith(end)
    assert [note["messages"] for note in transcript.notes["withheld"]] == [[answer]]


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("gemma3", "<start_of_turn>user\n{}\n\nSum up.<end_of_turn>\n"),
        (
            "llama3",
            "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nSum up.<|eot_id|>",
        ),
        ("smollm", "<|im_start|>user\n{}<|im_end|>\n<|im_start|>user\nSum up.<|im_end|>\n"),
        ("qwen2.5", "<|im_start|>user\n{}<|im_end|>\n<|im_start|>user\nSum up.<|im_end|>\n"),
        ("alternating", "<|im_start|>user\n{}\n\nSum up.<|im_end|>\n"),
    ],
)
def test_the_request_is_a_turn_of_its_own_where_the_template_has_such(name, asked):
    renderer = built(name)
    answer = LONG.strip()
    replies = [reply(renderer, text) for text in ("A plum.", "Fruit.", "Blue.")]
    end = asked.format(answer) + renderer.decode(renderer.generation_prompt())
    opening = renderer.generation_prompt()
    [prompt] = renderer.render([Message(role="user", content="Which?")], ())
    size = len((*prompt, *opening, *replies[0], *renderer.vocabulary.encode(f"\n{end}")))
    transcript, session = play(renderer, Talk(sentences=[answer]), replies, size + SUM_UP.summary)
    assert transcript.stop == Stop.DONE
    assert len(session.asked) == 3
    assert shown(renderer, session.asked[1]).endswith(end)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        (
            "qwen2.5",
            "<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>user\nSum up.<|im_end|>\n",
        ),
        ("alternating", "<|im_start|>user\n<tool_response>{}\n\nSum up.</tool_response><|im_end|>\n"),
    ],
)
def test_behind_a_result_the_request_stands_as_the_template_can_express_it(name, asked):
    renderer = built(name)
    result = LONG.strip()
    call, summary, last = (reply(renderer, text) for text in (CALL, "Fruit.", "Blue."))
    end = asked.format(result) + renderer.decode(renderer.generation_prompt())
    world, opening = World(results=[result]), renderer.generation_prompt()
    [prompt] = renderer.render([Message(role="user", content="Which?")], world.tools())
    size = len((*prompt, *opening, *call, *renderer.vocabulary.encode(f"\n{end}")))
    transcript, session = play(renderer, world, [call, summary, last], size + SUM_UP.summary)
    assert transcript.stop == Stop.DONE
    assert len(session.asked) == 3
    assert shown(renderer, session.asked[1]).endswith(end)


@pytest.mark.parametrize("name", ["gemma3", "llama3", "smollm"])
def test_where_there_are_no_tools_the_policy_is_told_so_in_the_user_s_turn(name):
    renderer = built(name)
    said = [reply(renderer, text) for text in (f"{CALL}\n{CALL}", "Blue.")]
    transcript, _ = play(renderer, Talk(), said, 4096)
    assert transcript.stop == Stop.DONE
    told = [node.message for node in transcript.nodes if node.message.role == "user"][1:]
    assert "\n\n".join(one.content for one in told).count("there is no tool 'read'") == 2
    assert len(told) == (1 if name == "gemma3" else 2)
    assert not any(node.message.role == "tool" for node in transcript.nodes)


# The promises, over attempts of every shape.


@st.composite
def plans(draw, name):
    renderer, tools = built(name), name in WITH_TOOLS and draw(st.booleans())
    texts = st.sampled_from([CALL, f"{CALL}\n{CALL}", "A plum."] if tools else ["A plum.", "I look.", CALL, ""])
    odd = st.lists(st.integers(0, renderer.vocabulary.num_ids - 1), max_size=6)
    replies = st.one_of(
        texts.map(lambda text: reply(renderer, text)), odd.map(lambda ids: (*ids, renderer.proof.stop_id))
    )
    answers = draw(st.lists(st.sampled_from([LONG, LONG, "Yes.", "2 < 3"]), min_size=4, max_size=9))
    call = len(reply(renderer, CALL))
    return playing.Plan(
        replies=draw(st.lists(replies, min_size=3, max_size=8)),
        results=answers,
        sentences=answers,
        prompt=(playing.user("Which fruit is blue?"),),
        limits=Limits(
            turns=draw(st.sampled_from([9, 3])),
            reply=draw(st.sampled_from([2 * call + 2, 2 * call + 2, call])),
            context=draw(st.integers(260, 480)) + (300 if tools else 0),
            reserve=draw(st.integers(1, 3)),
        ),
        compaction=Compaction(
            kind="summarize",
            summary=draw(st.sampled_from([20, 60, 90, 1])),
            marker="gone",
            request="Sum up.",
            go_on="Go on.",
        ),
        system_prompt=draw(st.sampled_from(["", "Be brief."])) if name not in WITH_TOOLS else "",
        world=World if tools else Talk,
    )


@pytest.mark.parametrize("name", list(BUILT))
def test_what_is_trained_is_what_was_sent_and_sampled(name):
    found = set()

    @settings(max_examples=25, deadline=None, derandomize=True, database=None)
    @given(plans(name))
    def collect(plan):
        trace, session = playing.play(plan, built(name))
        playing.check(trace, session, plan)
        contents = [node.message.content for node in trace.nodes]
        found.add(trace.stop)
        found.update(["summarized"] if "Go on." in contents else [])
        found.update(["joined"] if any(text.endswith("\n\nSum up.") for text in contents) else [])
        found.update(["apart"] if "Sum up." in contents else [])

    collect()
    assert {"summarized", "joined" if name in ("gemma3", "alternating") else "apart"} <= found, found


# What a template cannot express.


def test_a_template_that_forgets_is_refused_with_what_works_instead():
    renderer = TemplateRenderer(templates.small_vocabulary(templates.FORGETFUL))
    with pytest.raises(RendererError, match=r"a user message cannot be .* leaves .* out .* compaction to drop_results"):
        ToolLoop(renderer, Limits(), compaction=SUM_UP)
    ToolLoop(renderer, Limits(), compaction=Compaction(kind="drop_results"))


@pytest.mark.parametrize("name", ["gemma3", "llama3", "smollm"])
def test_where_there_are_no_results_none_are_dropped(name):
    dropping = Compaction(kind="drop_results")
    with pytest.raises(RendererError, match=r"a tool message cannot be appended: .* set compaction to summarize"):
        ToolLoop(built(name), Limits(), compaction=dropping)
    ToolLoop(built(name), Limits(), compaction=SUM_UP)


def test_a_run_says_so_before_it_starts_with_the_setting_s_name():
    config = load_recipe("qwen3-0.6b-bugfix")
    config = config.model_copy(update={"harness": config.harness.model_copy(update={"compaction": "summarize"})})
    renderer = TemplateRenderer(templates.small_vocabulary(templates.FORGETFUL))
    with pytest.raises(ConfigError, match=r"harness.compaction summarize: a user message .* to drop_results"):
        configured_loop(renderer, config)
    configured_loop(built("gemma3"), config)


# The ways to say the same.

RESULTS = [Message(role="tool", content=text, tool_call_id=text) for text in "ab"]
REQUEST = Message(role="user", content="c")


def test_the_ways_are_as_it_is_then_joined_then_as_the_user_s_words():
    def written(spoken):
        return [[(one.role[0], one.content) for one in way] for way in ways([*RESULTS, REQUEST], spoken=spoken)]

    with_results = [[("t", "a"), ("t", "b"), ("u", "c")], [("t", "a"), ("t", "b\n\nc")]]
    assert written(spoken=False) == with_results
    assert written(spoken=True) == [*with_results, [("u", "a"), ("u", "b"), ("u", "c")], [("u", "a\n\nb\n\nc")]]
    assert [way[-1].tool_call_id for way in ways(RESULTS, spoken=True)] == ["b", None, None]
    assert list(ways([REQUEST], spoken=True)) == [[REQUEST]]
