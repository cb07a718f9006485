"""Fixed attempts at a fixed task, and the files in which they were written down.

    python -m tests.golden.attempts             play them and compare with the files
    python -m tests.golden.attempts --write     play them and write the files of the present schema
    python -m tests.golden.attempts --model     train the small model anew, then as --write

Write them again only when a change is meant: of the vocabulary, the renderer, the harness, the sampler, the sandbox,
the scores or the schema. Read the difference line by line, then put the new digests, which are printed, into
test_golden.py. A file of an older schema stays as it is, so that what was stored then can be read for ever.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save

from agentrl.algorithms.presets import preset
from agentrl.cli import main
from agentrl.config import TrainConfig
from agentrl.engine.local import LocalEngine
from agentrl.engine.scripted import ScriptedSession
from agentrl.harness.loop import Limits, ToolLoop
from agentrl.loops.rl import credit
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.records import SCHEMA, trace_to_json
from agentrl.rewards.grading import CallGrader
from agentrl.rewards.programs import HiddenCalls
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.rollout.group import rollout
from agentrl.sandbox import Pool
from agentrl.store import RunFolder
from agentrl.tasks.bugfix.environment import BugFixEnvironment
from agentrl.tokens.samples import samples
from agentrl.tokens.tiny import WORDS, TinyRenderer
from agentrl.train.losses import supervised
from agentrl.train.trainer import OptimizerSettings, Trainer
from agentrl.types import Message, Sample, Task, ToolCall, Trace
from tests.pools import open_pool

HERE = Path(__file__).parent
MODEL = HERE / "model.safetensors"
MASKS = HERE / "masks.json"
SHOWN = {
    "show-meddles.txt": ("--trace", "scripted-meddles-1"),
    "show-sampled.txt": ("--trace", "sampled-0-3", "--tokens"),
}
"""Words after ``agentrl show RUN``, and the file with what they print."""
PHASE, STEP = "golden", 1
RENDERER = TinyRenderer()
HARNESS = ToolLoop(RENDERER, Limits(turns=5, reply=16, context=256))
SHAPE = TransformerShape(vocab_size=RENDERER.vocab_size, layers=1, width=16, heads=2, mlp_width=32, context=256)

BROKEN = '''def f(xs):
    """t is 0 plus x"""
    t = 1
    for x in xs:
        t = t + x
    return t
'''
TESTS = """from prog import f


def test_1():
    assert f([2, 3]) == 5


def test_2():
    assert f([7]) == 7
"""
PROMPT = "fix test_1\n" + "\n".join(f"{number}|{line}" for number, line in enumerate(BROKEN.splitlines(), start=1))
TASK = Task(
    id="golden-v1/sum/0",
    prompt=(Message(role="user", content=PROMPT),),
    tools=BugFixEnvironment.tool_specs(),
    files={"prog.py": BROKEN, "test_prog.py": TESTS},
)
HIDDEN = HiddenCalls(module="prog", calls=(("f", ([],)), ("f", ([4, 5],)), ("f", ([-3],))), expected=(0, 9, -3))


class OneTask:
    """The task, its hidden tests and where they run."""

    id = "golden-v1/sum"

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Task:
        return TASK

    def environment(self, task: Task) -> BugFixEnvironment:
        """A fresh workspace."""
        return BugFixEnvironment(task, runner=self.pool, grader=CallGrader(self.pool), hidden=HIDDEN, main="prog.py")


def edit(line: int, text: str) -> ToolCall:
    """A call of the tool."""
    return ToolCall(name="edit", arguments={"line": line, "text": text})


READ, TEST, SUBMIT = ToolCall(name="read"), ToolCall(name="test"), ToolCall(name="submit")
SCRIPTS: dict[str, tuple[ToolCall, ...]] = {
    # 5 turns, the repair is right: 1
    "repairs": (READ, TEST, edit(3, "t = 0"), TEST, SUBMIT),
    # line 9 does not exist, t = 2 is another bug: 0
    "meddles": (edit(9, "t = 0"), edit(3, "t = 2"), TEST, SUBMIT),
    # right where the sum is above 1, as in the visible tests; the hidden ones have [] and [-3] too: 0
    "hard_codes": (edit(6, "return t - 1 if t > 2 else t"), TEST, SUBMIT),
    # five turns are over before it submits, and what it leaves is right: 1
    "runs_out": (TEST, edit(3, "t = 0"), TEST, READ, TEST, SUBMIT),
}


async def scripted(task_set: OneTask) -> list[Trace]:
    """What the scripts do."""
    made = []
    for number, (name, calls) in enumerate(SCRIPTS.items()):
        session = ScriptedSession((call for call in calls), RENDERER.write_call, RENDERER.decode)
        identity = AttemptId(group_id=f"scripted-{name}", attempt=number, seed=0)
        made.append(await attempt(task_set, TASK, HARNESS, session, identity))
    return made


def trained_model(demonstrations: list[Trace]) -> TinyTransformer:
    """A model that has half learnt the right repair, so that its attempts are sensible and differ."""
    model = TinyTransformer(SHAPE, seed=0)
    settings = OptimizerSettings(learning_rate=2e-2, matrix_learning_rate=2e-2, total_steps=45)
    trainer = Trainer(model, settings)
    batch = [sample for trace in demonstrations for sample in samples(trace, None, objective="ce")]
    for _ in range(settings.total_steps):
        trainer.step(batch, supervised)
    return model


def stored_model() -> TinyTransformer:
    """The small model."""
    model = TinyTransformer(SHAPE, seed=0)
    model.load_state_dict(load_file(MODEL))
    return model


async def sampled(task_set: OneTask, model: TinyTransformer) -> list[Trace]:
    """A group of the model's attempts, with their advantages."""
    engine = LocalEngine(model, version=7)
    groups = await rollout(task_set, [TASK], harness=HARNESS, sampler=engine, attempts=4, seed=3, name="sampled")
    return credit(groups, preset("dr_grpo")).traces


async def _play(task_set: OneTask, model: TinyTransformer) -> list[Trace]:
    return [*await scripted(task_set), *await sampled(task_set, model)]


def play(model: TinyTransformer | None = None) -> list[Trace]:
    """All attempts, without the time that they took."""
    with open_pool(1) as pool:
        traces = asyncio.run(_play(OneTask(pool), model or stored_model()))
    return [dataclasses.replace(trace, seconds={}) for trace in traces]


def masks(traces: list[Trace]) -> dict[str, str]:
    """Which tokens of each attempt are trained: one digit a token, 1 where it is."""
    return {trace.id: "".join(map(_mask, samples(trace, None, objective="ce"))) for trace in traces}


def _mask(sample: Sample) -> str:
    return "".join(f"{weight:g}" for weight in sample.weights["ce"])


def traces_file(schema: int = SCHEMA) -> Path:
    """Where the attempts are written down: a header, then one trace a line."""
    return HERE / f"traces-schema-{schema}.jsonl"


def text_of(traces: list[Trace]) -> str:
    """The file of the attempts."""
    header = {"schema": SCHEMA, "phase": PHASE, "step": STEP, "traces": len(traces)}
    return "".join(f"{json.dumps(line)}\n" for line in (header, *map(trace_to_json, traces)))


def run_folder(root: Path, text: str) -> RunFolder:
    """A run whose only attempts are those of such a file."""
    folder = RunFolder.create(root, TrainConfig(recipe="golden"))
    folder.write_vocabulary(WORDS)
    (folder.path / "traces" / f"{PHASE}-{STEP:06d}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def show(folder: RunFolder, words: Sequence[str]) -> str:
    """What ``agentrl show`` prints, without blanks at the ends of lines."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(["show", str(folder.path), *words])
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def contents() -> dict[Path, str]:
    """Every golden text as today's code makes it, on a page of 100 columns."""
    os.environ["COLUMNS"] = "100"
    traces = play()
    text = text_of(traces)
    with tempfile.TemporaryDirectory() as root:
        folder = run_folder(Path(root), text)
        shown = {HERE / name: show(folder, words) for name, words in SHOWN.items()}
    return {traces_file(): text, MASKS: json.dumps(masks(traces), indent=2) + "\n", **shown}


def digests() -> dict[str, str]:
    """SHA-256 of every golden file, by name."""
    files = [*HERE.glob("*.jsonl"), *HERE.glob("*.txt"), MASKS, MODEL]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


def train_and_store() -> None:
    """Make the small model."""
    with open_pool(1) as pool:
        demonstrations = asyncio.run(scripted(OneTask(pool)))
    MODEL.write_bytes(save(trained_model(demonstrations).tensors()))


def command() -> None:
    """The command of the module's description."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="write the files")
    parser.add_argument("--model", action="store_true", help="train the small model anew, and write")
    chosen = parser.parse_args()
    if chosen.model:
        train_and_store()
    for path, text in contents().items():
        same = path.exists() and path.read_text() == text
        print(f"{path.name}: {'as today' if same else 'differs'}")
        if chosen.write or chosen.model:
            path.write_text(text)
    print("\n".join(f'    "{name}": "{digest}",' for name, digest in digests().items()))


if __name__ == "__main__":
    command()
