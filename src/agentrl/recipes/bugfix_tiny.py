"""A small transformer learns to repair Python: supervised warm start, then reinforcement learning, on two CPU cores."""

from agentrl.config import EvalConfig, ModelConfig, RlConfig, SandboxConfig, TasksConfig, TrainConfig, WarmStartConfig


def config() -> TrainConfig:
    """The whole configuration."""
    return TrainConfig(
        recipe="bugfix-tiny",
        tasks=TasksConfig(level="tiny", train_tasks=3000, max_turns=7, max_reply=20),
        model=ModelConfig(layers=2, width=96, heads=6, mlp_width=256, context=320),
        warm_start=WarmStartConfig(
            steps=310,
            demonstrations=1,
            batch_size=64,
            learning_rate=5e-3,
            matrix_learning_rate=2e-2,
            meddles=0.3,
            wrong_edit=0.05,
            untested=0.4,
            gives_up=0.3,
        ),
        rl=RlConfig(
            steps=85,
            groups_per_step=16,
            group_size=8,
            learning_rate=1e-3,
            matrix_learning_rate=2e-3,
            clip_low=0.2,
            clip_high=0.28,
        ),
        eval=EvalConfig(tasks=200, attempts=2, during_tasks=64),
        sandbox=SandboxConfig(workers=2, wall_s=5.0, cpu_s=0.1),
    )
