"""How far generation may run ahead of the trainer, so that what is dispatched is consumed within the bound.

Versions count trainer steps: version v are the weights after v steps, whatever the number of optimizer updates in a
step. The age of a token at step t is ``t - version``, taken when the trainer takes its group, so that all the time in
a queue counts.

**Which groups may be dispatched.** Let the trainer be at step t, the sampler hold version v, and ``need`` be the groups
that step t still takes (0 once it has them and learns). A group that is dispatched now has tokens of version v or
later, so step ``last = min(v + K, steps - 1)`` may still take it. Step t and those behind it up to that one take ``need
+ (last - t) * groups_per_step`` groups. As many may be out (in flight or waiting to be taken); one more could not be
taken in time, or at all. So

    room = need + (min(v + K, steps - 1) - t) * groups_per_step - out

With K = 0 and v = t that is ``need - out``: a step's groups are played, then nothing until the next publication. The
groups out are counted, not those ever dispatched, so neither drops nor a resume move the bound.

**What follows.** With the orders ``dispatch`` and ``overtake`` no group becomes too old, however long its attempts
take: the trainer waits for a late group rather than step past its last chance. In the steady state a group is
dispatched when a version is published and taken K steps later, so nobody waits for an attempt that ends within the time
of K steps. With ``first_come`` the trainer does not wait: none is too old as long as each is complete when its turn by
order of dispatch comes; where some are late, some are dropped whole, and counted. Nothing stands still: at the start of
a step ``need`` groups are out or may be dispatched, and every attempt ends, at its deadline if not before.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Pacing:
    """The bound of a run.

    Attributes:
        groups_per_step: groups that the trainer takes in a step.
        max_staleness: K, the largest age in trainer steps of a token that is trained.
        steps: of the run; what no step would take is not dispatched.
        publish_every: steps between publications. A sampler that lags makes tokens that are old already.

    Raises:
        ConfigError: a value out of range, or a sampler that lags further than the bound.
    """

    groups_per_step: int
    max_staleness: int
    steps: int
    publish_every: int = 1

    def __post_init__(self) -> None:
        if self.groups_per_step < 1 or self.max_staleness < 0 or self.steps < 0 or self.publish_every < 1:
            raise ConfigError(
                f"groups_per_step {self.groups_per_step}, max_staleness {self.max_staleness}, steps {self.steps} and "
                f"publish_every {self.publish_every}; write at least 1, 0, 0 and 1"
            )
        if self.publish_every - 1 > self.max_staleness:
            raise ConfigError(
                f"max_staleness {self.max_staleness} with publish_every {self.publish_every} cannot be met: before a "
                f"publication fresh tokens are {self.publish_every - 1} steps old; set max_staleness to "
                f"{self.publish_every - 1} or more, or publish_every to {self.max_staleness + 1} or less"
            )

    def last_step(self, version: int) -> int:
        """The last step that may take a token of this version."""
        return version + self.max_staleness

    def room(self, *, step: int, version: int, need: int, out: int) -> int:
        """How many groups may be dispatched now.

        Args:
            step: that the trainer is at.
            version: of the sampler.
            need: groups that the step still takes.
            out: groups in flight or waiting to be taken.
        """
        last = min(self.last_step(version), self.steps - 1)
        if last < step:
            return 0
        return max(0, need + (last - step) * self.groups_per_step - out)
