"""A small transformer learns to repair Python: supervised warm start, then reinforcement learning, on two CPU cores."""

from agentrl.config import EvalConfig, ModelConfig, RlConfig, SandboxConfig, TasksConfig, TrainConfig, WarmStartConfig


def config() -> TrainConfig:
    """The whole configuration."""
    return TrainConfig(
        recipe="bugfix-tiny",
        tasks=TasksConfig(level="tiny", train_tasks=2500, max_turns=6, max_reply=20),
        model=ModelConfig(layers=4, width=64, heads=4, mlp_width=256, context=320),
        warm_start=WarmStartConfig(
            steps=250,
            batch_size=64,
            demonstrations=2,
            learning_rate=5e-3,
            wrong_line=0.1,
            wrong_edit=0.3,
            untested=0.3,
            gives_up=0.15,
        ),
        rl=RlConfig(
            steps=100,
            groups_per_step=8,
            group_size=16,
            learning_rate=1e-3,
            clip_low=0.2,
            clip_high=0.28,
            eval_every=25,
            checkpoint_every=25,
        ),
        eval=EvalConfig(tasks=200, attempts=2, during_tasks=64),
        sandbox=SandboxConfig(workers=2, wall_s=5.0, cpu_s=1.0),
    )
