"""`agentrl plan-memory`: a table for people, JSON for programs, and refusals."""

import json

from tests.cli.conftest import Command

FEW = ("--rl.groups_per_step", "2", "--rl.group_size", "2", "--eval.tasks", "2", "--rl.eval_every", "0")


def test_the_table_adds_up(with_torch: Command) -> None:
    done = with_torch("plan-memory", "bugfix-tiny", *FEW, "--tokens", "100")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 groups of 2 conversations with up to 100 tokens, 64 of them the prompt" in done.stdout
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:9]}
    parts = [int(row[0].replace(",", "")) for name, row in rows.items() if name not in ("MiB", "together")]
    assert abs(sum(parts) - int(rows["together"][0].replace(",", ""))) <= len(parts)  # each is rounded
    assert "fits: needs" in done.stdout


def test_a_program_reads_bytes(with_torch: Command) -> None:
    found = json.loads(with_torch("plan-memory", "bugfix-tiny", *FEW, "--json").stdout)
    assert found["phases"]["training"] == sum(part["bytes"].get("training", 0) for part in found["parts"])
    assert found["needed"]["host"] == max(found["phases"].values())
    assert found["fits"] is True
    assert found["changes"] == []
    assert found["seconds_per_step"]["training"]["flops"] > 0


def test_what_is_wrong_is_named(agentrl: Command) -> None:
    none = agentrl("plan-memory")
    assert (none.returncode, none.stdout) == (2, "")
    assert "one RECIPE is needed" in none.stderr
    misspelt = agentrl("plan-memory", "bugfix-tinny")
    assert misspelt.returncode == 2
    assert "bugfix-tiny" in misspelt.stderr
