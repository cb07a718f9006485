"""Public failures of asynchronous training, tried on ours in simulated time."""

from collections import Counter

import pytest

from agentrl.rollout.outstanding import End
from agentrl.rollout.pacing import Pacing
from agentrl.rollout.plan import GroupShape
from tests.rollout.simulated import Fates, Run
from tests.rollout.test_bounded_staleness import check

STEADY = Pacing(groups_per_step=2, max_staleness=2, steps=8)


class Slow(Fates):
    """All attempts are quick but those of the second group, which take a few steps."""

    def seconds(self, identity, trial):
        return 1.2 if identity.group_id == "rl-1-1" else 0.05


@pytest.mark.parametrize("kill_at", [0, 1, 2, 5])
@pytest.mark.parametrize("order", ["dispatch", "overtake"])
def test_a_resume_loses_no_prompt_and_none_that_is_slow(order, kill_at):
    """NeMo RL#3599: what was in flight at the kill was skipped, a third of the prompts, and of them the long ones."""
    killed = Run(pacing=STEADY, order=order, fates=Slow(), kill_at=kill_at).simulate()
    planned = [killed.plan(number) for number in range(16)]
    assert sorted(killed.consumed) == sorted(plan.id for plan in planned)
    trained = Counter(one.seed for groups in killed.steps for group in groups for one in group.traces)
    assert trained == Counter(seed for plan in planned for seed in plan.seeds)
    assert "rl-1-1" in killed.consumed
    assert max(killed.ages()) <= 2


def test_attempts_that_break_leave_every_other_in_its_own_group():
    """AReaL#1454: groups were cut by position, so behind a failure they crossed prompts."""
    run = Run(pacing=STEADY, shape=GroupShape(attempts=3), fates=Fates(broken=0.2, raising=0.2), repeatable=True)
    check(run.simulate())
    failed = 0
    for groups in run.steps:
        for group in groups:
            assert [one.attempt for one in group.traces] == [0, 1, 2]
            assert {(one.group_id, one.task_id) for one in group.traces} == {(group.id, group.task.id)}
            failed += sum(one.error is not None for one in group.traces)
    assert failed > 0


def test_a_second_trial_is_no_second_row():
    """verifiers#1739: a retry left two branches of one attempt, and both were trained."""
    run = Run(pacing=STEADY, fates=Fates(raising=0.4), repeatable=True).simulate()
    check(run)
    again = [one for one in run.ended if one.end is End.FAILED]
    consumed = Counter(one.trace.id for one in run.ended if one.end is End.CONSUMED)
    assert again
    assert set(consumed.values()) == {1}
    assert all(consumed[one.trace.id] == 1 for one in again)


def test_a_token_has_the_version_that_sampled_it_and_not_that_of_its_end():
    """AReaL#1569, rllm#622: tokens were labelled with the version at completion. An attempt of three tokens, 1.2 s
    apart, beside steps of 1 s: published at 1, 2, 3 s, sampled at 0, 1.2 and 2.4 s."""
    run = Run(pacing=STEADY, fates=Slow()).simulate()
    [slow] = [group for groups in run.steps for group in groups if group.id == "rl-1-1"]
    step = next(step for step, groups in enumerate(run.steps) if slow in groups)
    # step 0 waits for it in order of dispatch, until 3.6 s, so nothing is published meanwhile
    assert (step, [one.nodes[0].versions for one in slow.traces]) == (0, [(0, 0, 0)] * 2)
    overtaken = Run(pacing=STEADY, order="overtake", fates=Slow()).simulate()
    [slow] = [group for groups in overtaken.steps for group in groups if group.id == "rl-1-1"]
    step = next(step for step, groups in enumerate(overtaken.steps) if slow in groups)
    assert [one.nodes[0].versions for one in slow.traces] == [(0, 1, 2)] * 2
    assert step == 2, "its first token is 2 steps old there, and its last 0"


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_the_lead_is_the_bound_and_neither_less_nor_more(bound):
    """prime-rl#2937, #3050: one less stood still, one more raced ahead. Quick attempts: groups of K steps wait."""
    pacing = Pacing(groups_per_step=2, max_staleness=bound, steps=8)
    run = Run(pacing=pacing, fates=Fates(scale=1e-3)).simulate()
    assert run.most_out == 2 * (bound + 1)
    # step t takes groups of version max(0, t - K)
    assert sorted(Counter(run.ages()).items()) == sorted(
        Counter(min(step, bound) for step in range(8) for _ in range(2 * 2 * 3)).items()
    )
    assert run.ends(End.STALE) == 0


def test_nothing_is_dispatched_that_no_step_will_take():
    """tinker#480: a loop hung at the end of its data. Eight steps of two groups are 16 groups, of two attempts."""
    run = Run(pacing=STEADY, fates=Fates(scale=1e-3)).simulate()
    assert sum(run.dispatched.values()) == 32 == run.ends(End.CONSUMED)
