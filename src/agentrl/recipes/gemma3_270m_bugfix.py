"""Gemma 3 270M, with its real pretrained weights, learns on two CPU cores to use the tools and to repair Python."""

from agentrl.config import (
    EvalConfig,
    HuggingFaceConfig,
    ModelConfig,
    RlConfig,
    SandboxConfig,
    TasksConfig,
    TrainConfig,
    WarmStartConfig,
)


def config() -> TrainConfig:
    """The whole configuration."""
    return TrainConfig(
        recipe="gemma3-270m-bugfix",
        tasks=TasksConfig(
            level="small", report="short", train_tasks=200, longest_program=8, max_turns=6, max_reply=160
        ),
        model=ModelConfig(name="assets/gemma3-270m", context=1280),
        hf=HuggingFaceConfig(thinking=False),
        warm_start=WarmStartConfig(
            steps=20,
            demonstrations=1,
            batch_size=8,
            learning_rate=5e-5,
            warmup_steps=4,
            reverts=0.0,
            wrong_edit=0.1,
            untested=0.0,
            gives_up=0.0,
        ),
        rl=RlConfig(
            steps=8,
            groups_per_step=4,
            group_size=6,
            learning_rate=5e-6,
            parameters={"clip_high": 0.28},
            final_fraction=0.5,
            eval_every=0,
            checkpoint_every=100,
            traces_every=1,
        ),
        eval=EvalConfig(tasks=40, attempts=1, during_tasks=8),
        sandbox=SandboxConfig(workers=2, wall_s=10.0, cpu_s=1.0),
    )
