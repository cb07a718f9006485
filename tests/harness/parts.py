"""A world, and a session that records what passes, for the tests of the agent loop."""

from dataclasses import dataclass, field

from agentrl.tasks.environment import ToolEnvironment, tool
from agentrl.types import Completion, Message, Observation, Score, Task, Trace

PROMPT = (Message(role="user", content="fix test_1"),)
TASK = Task(id="t", prompt=PROMPT)


class World(ToolEnvironment):
    """Tools that give the next of some results; a user who says the next of some sentences."""

    def __init__(self, results=(), sentences=(), parallel=()):
        super().__init__(TASK)
        self.results, self.sentences = list(results), list(sentences)
        self.parallel_tools = frozenset(parallel)
        self.heard = []

    @tool
    def read(self, path: str = "") -> str:
        """Look."""
        return self.results.pop(0) if self.results else "ok"

    @tool
    def submit(self) -> Observation:
        """End."""
        return Observation(content="submitted", done=True)

    async def respond(self, reply):
        self.heard.append(reply.content)
        return Observation(content=self.sentences.pop(0)) if self.sentences else None

    async def score(self, trace):
        return [Score(name="pass", value=1.0)]


class Talk(ToolEnvironment):
    """No tools; a user who says the next of some sentences, and goes when there is none."""

    def __init__(self, results=(), sentences=(), parallel=()):
        super().__init__(TASK)
        self.sentences = list(sentences)

    async def respond(self, reply):
        return Observation(content=self.sentences.pop(0)) if self.sentences else None

    async def score(self, trace):
        return [Score(name="pass", value=1.0)]


@dataclass
class Asked:
    """One reply: the conversation that the session held when it was asked for, and what it gave."""

    held: tuple[int, ...]
    max_tokens: int
    completion: Completion


@dataclass
class Recorder:
    """A session that gives some replies as ids, cut at their limit. Every sampled token has a version of its own."""

    replies: list[tuple[int, ...]]
    held: list[int] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    rewinds: list[tuple[int, int]] = field(default_factory=list)
    num_sent: int = 0
    closed: int = 0

    async def sample(self, context_ids, *, max_tokens, stop_ids):
        assert max_tokens >= 1
        assert len(context_ids) >= 1
        self.num_sent += len(context_ids)
        self.held += context_ids
        whole = self.replies.pop(0)
        ids = whole[:max_tokens]
        first = sum(len(one.completion.token_ids) for one in self.asked)
        completion = Completion(
            token_ids=ids,
            logprobs=tuple(-0.5 - 0.001 * place for place in range(len(ids))),
            versions=tuple(range(first, first + len(ids))),
            finish_reason="stop" if ids and ids == whole and ids[-1] in stop_ids else "length",
        )
        self.asked.append(Asked(tuple(self.held), max_tokens, completion))
        self.held += ids
        return completion

    async def rewind(self, num_tokens):
        assert 0 <= num_tokens <= len(self.held)
        self.rewinds.append((len(self.held), num_tokens))
        del self.held[num_tokens:]

    async def close(self):
        self.closed += 1


def trace_of(transcript):
    """The attempt as a scored trace."""
    return Trace(
        id="t1",
        task_id="t",
        group_id="g",
        attempt=0,
        seed=0,
        nodes=tuple(transcript.nodes),
        stop=transcript.stop or "error",
        scores=(Score(name="pass", value=1.0),),
        metadata=transcript.notes,
    )


def path_to(nodes, index):
    """All ids of a branch up to a node, that node included."""
    parts = []
    while index is not None:
        parts.append(nodes[index].context_ids + nodes[index].sampled_ids)
        index = nodes[index].parent
    return tuple(token for part in reversed(parts) for token in part)
