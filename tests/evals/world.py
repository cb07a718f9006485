"""A small real task set: repair a line of text. A policy that is drawn from a seed, and parts to evaluate it."""

import random
from pathlib import Path

from agentrl.engine.scripted import ScriptedSession
from agentrl.errors import ScorerError
from agentrl.evals.baselines import PlainRenderer, scripted_harness
from agentrl.evals.folder import EvaluationFolder, Spec
from agentrl.evals.running import Evaluator
from agentrl.tasks.environment import ToolEnvironment, tool
from agentrl.types import Message, Observation, Score, Task, ToolCall

SPEC = Spec(
    policy="coin",
    weights="coin",
    version=0,
    task_set="lines/test",
    settings={},
    harness="plain",
    temperature=None,
    seed=0,
)


class LineEnvironment(ToolEnvironment):
    """Line 2 of the file has to read as the solution's does."""

    def __init__(self, task, right, *, broken_judge=()):
        super().__init__(task)
        self.text, self.right, self.broken_judge = task.files["a.txt"], right, broken_judge

    @tool
    def edit(self, line: int, text: str, path: str = "") -> str:
        """Replace one line."""
        lines = self.text.split("\n")
        lines[min(line, len(lines)) - 1] = text
        self.text = "\n".join(lines)
        return "ok"

    @tool
    def submit(self) -> Observation:
        """Hand in."""
        return Observation(content="submitted", done=True)

    async def score(self, trace):
        """1 where the text is right."""
        if trace.attempt in self.broken_judge:
            raise ScorerError("the judge is away")
        visible = Score(name="visible", value=0.5, weight=0.0)
        return [Score(name="right", value=float(self.text == self.right)), visible]


class Lines:
    """Tasks in pairs: two with one solution, so that they are a cluster."""

    id = "lines"

    def __init__(self, number, *, broken_judge=()):
        self._tasks = [
            Task(
                id=f"lines/{n}",
                prompt=(Message(role="user", content=f"repair {n}"),),
                tools=LineEnvironment.tool_specs(),
                files={"a.txt": f"one\nwrong {n}\n"},
                family="even" if n % 4 < 2 else "odd",
            )
            for n in range(number)
        ]
        self.broken_judge = broken_judge

    def __len__(self):
        return len(self._tasks)

    def __getitem__(self, index):
        return self._tasks[index]

    def solution(self, task_id):
        """The right file."""
        return {"a.txt": f"one\nright {int(task_id.removeprefix('lines/')) // 2}\n"}

    def environment(self, task):
        """A fresh copy of the text."""
        return LineEnvironment(task, self.solution(task.id)["a.txt"], broken_judge=self.broken_judge)


class Coin:
    """Solves an attempt with a chance that its seed decides, and counts how often it was asked."""

    def __init__(self, task_set, chance=0.5):
        self.task_set, self.chance, self.opened = task_set, chance, []

    def __call__(self, task, seed):
        self.opened.append((task.id, seed))
        renderer = PlainRenderer()
        return ScriptedSession(self._script(task, seed), renderer.write, renderer.decode)

    def _script(self, task, seed):
        if random.Random(seed).random() < self.chance:
            line = self.task_set.solution(task.id)["a.txt"].split("\n")[1]
            yield ToolCall(name="edit", arguments={"line": 2, "text": line})
        yield ToolCall(name="submit")


def evaluator(path: Path, task_set, policy, *, spec=SPEC, wave=8):
    """Everything that an evaluation of a policy needs, in a folder."""
    tasks = [task_set[n] for n in range(len(task_set))]
    folder = EvaluationFolder.begin(path, spec, tasks)
    parts = {"folder": folder, "task_set": task_set, "harness": scripted_harness(4), "open_session": policy}
    return Evaluator(**parts, version=spec.version, seed=spec.seed, wave=wave), tasks


def go_on(standing):
    """A watch that never stops."""
    return False
