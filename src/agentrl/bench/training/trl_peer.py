"""TRL's side: `GRPOTrainer` with its own training loop; at the end of each of its steps ours takes its turn."""

from __future__ import annotations

import asyncio
import importlib
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PrinterCallback, Qwen3ForCausalLM, TrainerCallback
from transformers.utils import logging
from transformers.utils.chat_template_utils import get_json_schema

from agentrl.bench.report import BenchError
from agentrl.bench.rounds import Took
from agentrl.bench.training.ours import BETAS, LEARNING_RATE, MAX_GRAD_NORM, Counts
from agentrl.bench.training.worlds import share_of_even
from agentrl.protocols import TaskSet
from agentrl.types import Stop, ToolCall, Trace

# by name, since neither has types
datasets: Any = importlib.import_module("datasets")
trl: Any = importlib.import_module("trl")


@dataclass(frozen=True, kw_only=True)
class Sides:
    """What each step of both sides took, the first left out, and what their last steps were made of."""

    ours: Took
    theirs: Took
    our_counts: Counts
    their_counts: Counts


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What TRL is told of lengths.

    Attributes:
        completion: tokens of a completion at most, what tools say among them.
        tool_rounds: how often tools may be called in an attempt.
    """

    completion: int
    tool_rounds: int = 0


class _Turns(TrainerCallback):
    """Lets ours take its turn when TRL has finished a step."""

    def __init__(self, ours: Callable[[], Counts], tell: Callable[[str], None]) -> None:
        self.ours, self.tell = ours, tell
        self.theirs: list[tuple[float, float]] = []
        self.mine: list[tuple[float, float]] = []
        self.counts: list[Counts] = []
        self.started = (0.0, 0.0)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.started = _now()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        ended = _now()
        self.theirs.append(_since(self.started, ended))
        self.counts.append(self.ours())
        self.started = _now()
        self.mine.append(_since(ended, self.started))
        self.tell(f"step {len(self.mine)}: TRL {self.theirs[-1][0]:.2f} s, ours {self.mine[-1][0]:.2f} s")


def _now() -> tuple[float, float]:
    """Time that passes, and processor time of this process, in seconds."""
    return time.perf_counter(), time.process_time()


def _since(started: tuple[float, float], ended: tuple[float, float]) -> tuple[float, float]:
    return ended[0] - started[0], ended[1] - started[1]


def _took(steps: Sequence[tuple[float, float]]) -> Took:
    """All but the first."""
    return Took(passed=tuple(step[0] for step in steps[1:]), used=tuple(step[1] for step in steps[1:]))


def compare(
    model: Qwen3ForCausalLM,
    words: Path,
    tasks: TaskSet,
    ours: Callable[[], Counts],
    *,
    group: int,
    steps: int,
    budget: Budget,
    tools: bool,
    tell: Callable[[str], None],
) -> Sides:
    """Train both for so many steps, in turns.

    Args:
        model: TRL's, with the weights that ours began with.
        words: the folder of the tokenizer.
        tasks: all of them are played in every step.
        ours: takes one step of ours.
        group: attempts at each task.
        steps: of the optimizer; the first is not timed.
        budget: of lengths.
        tools: whether the tasks' environments are given to TRL, else the reward is that of a single turn.
        tell: is told what each step took.
    """
    tokenizer = AutoTokenizer.from_pretrained(words)
    _quieten()
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as folder:
        trainer = trl.GRPOTrainer(
            model=model,
            args=_settings(folder, group * len(tasks), group, steps, budget),
            train_dataset=_dataset(tasks),
            processing_class=tokenizer,
            **({"environment_factory": _factory(tasks)} if tools else {"reward_funcs": _reward}),
        )
        turns = _Turns(ours, tell)
        trainer.remove_callback(PrinterCallback)  # it would write between the lines of a report
        trainer.add_callback(turns)
        seen = _watch(trainer)
        trainer.train()
    if len(turns.theirs) != steps or trainer.state.global_step != steps:
        raise BenchError(f"TRL took {trainer.state.global_step} steps; {steps} were wanted")
    return Sides(
        ours=_took(turns.mine),
        theirs=_took(turns.theirs),
        our_counts=turns.counts[-1],
        their_counts=_counts(seen[-1], steps),
    )


def _quieten() -> None:
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    warnings.filterwarnings("ignore")


def _settings(folder: str, batch: int, group: int, steps: int, budget: Budget) -> Any:
    return trl.GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=10**6,
        disable_tqdm=True,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        loss_type="grpo",
        beta=0.0,
        learning_rate=LEARNING_RATE,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        max_grad_norm=MAX_GRAD_NORM,
        max_steps=steps,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=1,
        num_generations=group,
        max_completion_length=budget.completion,
        max_tool_calling_iterations=budget.tool_rounds or None,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        chat_template_kwargs={"enable_thinking": False},
    )


def _dataset(tasks: TaskSet) -> Any:
    rows = [tasks[index] for index in range(len(tasks))]
    prompts = [[{"role": message.role, "content": message.content} for message in task.prompt] for task in rows]
    return datasets.Dataset.from_dict({"prompt": prompts, "place": list(range(len(rows)))})


def _reward(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    return [share_of_even(ids) for ids in completion_ids]


def _watch(trainer: Any) -> list[dict[str, Any]]:
    """What the trainer makes of each batch before it trains on it."""
    seen: list[dict[str, Any]] = []
    make = trainer._generate_and_score_completions

    def noted(inputs: Any) -> Any:
        made = make(inputs)
        seen.append(made)
        return made

    trainer._generate_and_score_completions = noted
    return seen


def _counts(batch: dict[str, Any], steps: int) -> Counts:
    mask = batch.get("tool_mask")
    trained = batch["completion_mask"] if mask is None else batch["completion_mask"] * mask
    episodes = len(batch["completion_ids"])
    whole = int(batch["prompt_mask"].sum() + batch["completion_mask"].sum())
    sampled = int(trained.sum())
    return Counts(episodes=episodes, steps=steps, sampled=sampled / episodes, given=(whole - sampled) / episodes)


class Repair:
    """The environment of `agentrl.bench.training.worlds.Repairs` in the form that TRL takes."""

    def __init__(self, tasks: TaskSet) -> None:
        self._tasks = tasks
        self._attempts = 0

    def reset(self, place: int, **_: Any) -> None:
        """Begin an attempt at the task of that place."""
        self._task = self._tasks[place]
        self._environment = self._tasks.environment(self._task)
        self._attempts += 1

    def read(self, path: str = "") -> str:
        """Show a file with line numbers.

        Args:
            path: the file; the main file when empty.
        """
        return self._call("read", path=path)

    def test(self) -> str:
        """Run the visible tests on the files as they are now."""
        return self._call("test")

    def edit(self, line: int, text: str, path: str = "") -> str:
        """Replace one line of a file.

        Args:
            line: its number as shown by read.
            text: what stands there then.
            path: the file; the main file when empty.
        """
        return self._call("edit", line=line, text=text, path=path)

    def submit(self) -> str:
        """Hand in the files as they are now."""
        return self._call("submit")

    def get_reward(self) -> float:
        """The hidden tests are run, and the reward is drawn."""
        seed = id(self) * 1_000_003 + self._attempts
        trace = Trace(id="trl", task_id=self._task.id, group_id="trl", attempt=0, seed=seed, nodes=(), stop=Stop.DONE)
        scores = asyncio.run(self._environment.score(trace))
        return sum(score.weight * (score.value or 0.0) for score in scores)

    def _call(self, name: str, **arguments: object) -> str:
        return asyncio.run(self._environment.call(ToolCall(name=name, arguments=arguments))).content


_TOOLS = (Repair.edit, Repair.read, Repair.submit, Repair.test)
"""In the order in which TRL tells them."""
for _tool in _TOOLS:
    del _tool.__annotations__["return"]  # it would stand in the schema, where ours has no place for it


def schemas() -> list[dict[str, Any]]:
    """The tools as `transformers` tells them to the model."""
    return [get_json_schema(tool) for tool in _TOOLS]


def _factory(tasks: TaskSet) -> Callable[[], Repair]:
    return lambda: Repair(tasks)
