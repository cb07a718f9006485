"""A small transformer learns to repair Python: supervised warm start, then reinforcement learning, on two CPU cores.

    agentrl train bugfix-tiny --seed N

Measured on 2 cores of an x86-64 server, Python 3.11, torch 2.13 (CPU), 200 held-out programs, 2 attempts each,
sampling at temperature 1; pass@1 with 95 % intervals clustered by task:

| seed | before RL | after RL | paired difference |
|---|---|---|---|
| 0 | 0.453 [0.399, 0.506] | 0.708 [0.653, 0.762] | +0.255 [+0.192, +0.318] |
| 1 | 0.435 [0.381, 0.489] | 0.620 [0.561, 0.679] | +0.185 [+0.120, +0.250] |

The aim of 0.85 is not reached; docs/decisions/0001 has what was tried and what holds it back. Controls, seed 0:

| control | before RL | after RL |
|---|---|---|
| `--tasks.show_results false`: the policy does not see test results | 0.385 [0.332, 0.438] | 0.590 [0.530, 0.650] |
| `--tasks.max_turns 1`: the policy may act once | 0.600 [0.542, 0.658] | 0.685 [0.625, 0.745] |

Acting once is no clearly worse: it starts higher, since whoever acts once cannot meddle, and several turns gain only
0.02 on it. What the retries bring on silent tasks is lost where failed edits are repeated.

Time of seed 0: tasks 18 s, demonstrations 23 s, warm start 41 s, RL 63 s (sampling 33, tools 20, training 10),
evaluation 7 s; 787 MiB resident at most. Linters ran beside it for a part of that time.

On collapse: with the warm start of this recipe the entropy of the policy falls from 0.27 to 0.15 nats and stays there;
submitting at once was not seen (handing in untested is in 0.6 of the failures before RL and in 0.05 after it).
Larger learning rates and several passes over a batch gained nothing.
"""

from agentrl.config import EvalConfig, ModelConfig, RlConfig, SandboxConfig, TasksConfig, TrainConfig, WarmStartConfig


def config() -> TrainConfig:
    """The whole configuration."""
    return TrainConfig(
        recipe="bugfix-tiny",
        tasks=TasksConfig(level="tiny", train_tasks=3000, max_turns=7, max_reply=20),
        model=ModelConfig(layers=2, width=96, heads=6, mlp_width=256, context=320),
        warm_start=WarmStartConfig(
            steps=330,
            demonstrations=1,
            batch_size=64,
            learning_rate=2e-3,
            matrix_learning_rate=2e-2,
            reverts=0.65,
            wrong_edit=0.05,
            untested=0.1,
            gives_up=0.1,
        ),
        rl=RlConfig(
            steps=145,
            groups_per_step=16,
            group_size=8,
            learning_rate=7e-4,
            matrix_learning_rate=1.4e-3,
            clip_low=0.2,
            clip_high=0.28,
        ),
        eval=EvalConfig(tasks=200, attempts=2, during_tasks=64),
        sandbox=SandboxConfig(workers=2, wall_s=5.0, cpu_s=0.1),
    )
