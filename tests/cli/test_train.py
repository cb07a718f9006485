"""`agentrl train` refuses what is wrong before anything is made, and Ctrl-C ends a run cleanly."""

import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from agentrl.cli.interrupt import stop_on_interrupt
from agentrl.cli.train import reporter_for, show_result
from agentrl.config import TrainConfig, from_toml, to_toml
from agentrl.store import RunFolder
from agentrl.ui.live import PlainReporter, RichReporter
from tests.cli.conftest import Command

CONFIG = TrainConfig(recipe="book-example")


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """A recipe as a file."""
    (tmp_path / "book.toml").write_text(to_toml(CONFIG))
    return "book.toml"


# one row for each way in which public tools were seen to accept and drop a setting (cases C01 to C05)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rl.learnig_rate", "1e-4"], "unknown key rl.learnig_rate (set to '1e-4'); did you mean rl.learning_rate?"),
        (["--taks.level=tiny"], "did you mean tasks.level?"),
        (["--rl.learning-rate", "1"], "did you mean rl.learning_rate?"),
        (["--RL.STEPS", "1"], "did you mean rl.steps?"),
        (["+rl.steps=1"], "one RECIPE is needed and 2 were given (book.toml, +rl.steps=1)"),
        (["--no-tasks.show_results"], "--no-tasks.show_results has no value"),
        (["--rl.steps", "many"], "rl.steps = 'many' is not allowed; it must be an integer >= 0"),
        (["--rl.steps", "-1"], "rl.steps = -1 is not allowed; it must be an integer >= 0"),
        (["--rl.learning_rate=inf"], "rl.learning_rate = 'inf' is not allowed; it must be a finite number >= 0"),
        (["--sandbox", "zygote"], "sandbox is a table and cannot be set to 'zygote'"),
        (["--tasks.level.x", "1"], "unknown key tasks.level.x"),
        (["--seed"], "--seed has no value"),
        (["--resume", "latest"], "there is no run in runs"),
        (["--print_config"], "there is no option --print_config; did you mean --print-config?"),
        (["--algoritm", "grpo"], "there is no option --algoritm; did you mean --algorithm?"),
        (["--mode", "asink"], "rl.mode = 'asink' is not allowed; it must be one of sync, async"),
        (["--max-stalenes", "2"], "there is no option --max-stalenes; did you mean --max-staleness?"),
        (["--max-staleness", "1"], "--max-staleness 1 without --mode async: in a synchronous run nothing is old"),
        (["--mode", "async", "--max-staleness", "some"], "rl.max_staleness = 'some' is not allowed"),
        (["--mode", "async", "--rl.mode", "sync"], "--mode async with --rl.mode sync: they are one setting"),
        (["--seed", "1", "--seed=2"], "'--seed=2': seed is given twice; leave one of them out"),
        (["--tasks.level", "small"], "error: tasks.level small: TinyAgent"),
        (["--model.context", "8"], "error: model.context 8: a prompt has up to 64 tokens"),
        (["--warm_start.batch_size", "1"], "error: warm_start: batch_size 1 with demonstrations 2"),
        (["--rl.algorithm", "ppo"], "error: rl.algorithm ppo trains a critic"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(
    agentrl: Command, recipe: str, tmp_path: Path, words: list[str], message: str
) -> None:
    done = agentrl("train", recipe, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["book.toml"]


def test_a_recipe_is_needed_and_is_looked_up(agentrl: Command) -> None:
    assert "one RECIPE is needed and none was given" in agentrl("train").stderr
    done = agentrl("train", "bugfix-tinny")
    assert done.returncode == 2
    assert "there is no recipe 'bugfix-tinny'" in done.stderr


def test_the_configuration_is_printed_whole_with_what_was_set(agentrl: Command, recipe: str, tmp_path: Path) -> None:
    done = agentrl("train", "--rl.learning_rate", "1e-6", recipe, "--rl.steps=7", "--print-config")
    assert done.returncode == 0, done.stderr
    assert "\nlearning_rate = 1e-06  # set on the command line\n" in done.stdout
    assert done.stdout.count("# set on the command line") == 2
    printed = from_toml(done.stdout)
    assert (printed.rl.learning_rate, printed.rl.steps) == (1e-6, 7)
    assert printed.warm_start == CONFIG.warm_start
    found = json.loads(agentrl("train", recipe, "--seed", "3", "--print-config", "--json").stdout)
    assert found == {**CONFIG.model_dump(mode="json"), "seed": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["book.toml"]


def test_short_options_set_what_they_stand_for(agentrl: Command, recipe: str) -> None:
    done = agentrl("train", recipe, "--mode", "async", "--max-staleness", "2", "--print-config")
    assert done.returncode == 0, done.stderr
    assert '\nmode = "async"  # set on the command line\n' in done.stdout
    printed = from_toml(done.stdout).rl
    assert (printed.mode, printed.max_staleness) == ("async", 2)
    assert printed.overlaps


def test_without_torch_training_says_what_to_install(agentrl: Command, recipe: str, tmp_path: Path) -> None:
    done = agentrl("train", recipe)
    assert done.returncode == 2
    assert "torch cannot be imported" in done.stderr
    assert "pip install 'torch>=" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_resume_takes_no_other_configuration(agentrl: Command, run_folder: RunFolder) -> None:
    for words in (["--rl.steps", "9"], ["another-recipe"], ["--mode", "async"], ["--max-staleness", "0"]):
        done = agentrl("train", *words, "--resume", "latest")
        assert done.returncode == 2
        assert "--resume goes on with the run's own configuration; leave out" in done.stderr


def test_the_result_says_where_the_time_went(run_folder: RunFolder) -> None:
    out, summary = io.StringIO(), {"eval": {}, "seconds": {"tasks": 2.0, "rl": 61.0, "tools": 5.0}}
    show_result(Console(file=out), run_folder, summary)
    assert "\nseconds: tasks 2.0, RL 61.0 (tools 5.0, other 56.0)\n" in out.getvalue()


INTERRUPTED = """
import signal, sys, time
from pathlib import Path
from agentrl.cli import main, train
from agentrl.config import TrainConfig
from agentrl.store import RunFolder
import typer

def loop(config, folder, reporter, resume):
    reporter.phase("rl", 1000)
    for step in range(1, 1000):
        print("stepping", flush=True)
        time.sleep(0.02)
        if reporter.stop_requested and sys.argv[1] == "clean":
            return {"recipe": config.recipe, "eval": {}, "finished": False}
    return {}

folder = RunFolder.create("runs", TrainConfig(recipe="book-example"))
try:
    train._run(folder.config, folder, loop, resume=False, as_json=False)
except typer.Exit as stop:
    sys.exit(stop.exit_code)
except KeyboardInterrupt:
    sys.exit(99)
"""


def interrupted(tmp_path: Path, how: str, signals: int) -> tuple[int, str]:
    """Exit status and output of a run that gets so many SIGINTs, one after the other."""
    command = [sys.executable, "-c", INTERRUPTED, how]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = ""
        for _ in range(signals):
            while "stepping" not in (line := process.stdout.readline()):
                seen += line
            process.send_signal(signal.SIGINT)
            while signals > 1 and "stopping" not in seen:
                seen += process.stdout.readline()
        return process.wait(30), seen + process.stdout.read()


def test_one_interrupt_ends_the_run_after_its_step_and_says_how_to_go_on(tmp_path: Path) -> None:
    status, output = interrupted(tmp_path, "clean", 1)
    assert status == 130
    assert "stopping after this step with a checkpoint" in output
    assert "stopped early with a checkpoint; go on with: agentrl train --resume runs/book-example-0-" in output


def test_a_second_interrupt_ends_it_at_once(tmp_path: Path) -> None:
    status, output = interrupted(tmp_path, "deaf", 2)
    assert status == 99
    assert output.count("stopping after this step") == 1


def test_the_handler_of_before_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt(lambda: None, lambda text: None, "hint"):
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize(
    ("is_terminal", "term", "kind"),
    [(True, "xterm", RichReporter), (True, "dumb", PlainReporter), (False, "xterm", PlainReporter)],
)
def test_a_table_is_redrawn_only_where_that_can_be_done(is_terminal: bool, term: str, kind: type) -> None:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, _environ={"TERM": term})
    assert type(reporter_for(console, io.StringIO())) is kind


def test_no_color_is_respected() -> None:
    for environment, coloured in (({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)):
        out = io.StringIO()
        console = Console(file=out, force_terminal=True, _environ=environment)
        with reporter_for(console, io.StringIO()) as reporter:
            reporter.phase("rl", 2)
            reporter.step(1, {"reward": 0.5})
        assert bool(re.search(r"\x1b\[[0-9;]*3[0-7]m", out.getvalue())) == coloured


def test_a_model_that_is_refused_leaves_no_run_behind(with_torch: Command, tmp_path: Path) -> None:
    """`latest` would else mean a run that never was."""
    pytest.importorskip("transformers")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text("{}")
    runs = tmp_path / "runs"
    done = with_torch("train", "bugfix-tiny", "--model.name", str(tmp_path / "bare"), "--runs", str(runs))
    assert done.returncode == 2
    assert "has no tokenizer.json" in done.stderr
    assert list(runs.iterdir()) == []
