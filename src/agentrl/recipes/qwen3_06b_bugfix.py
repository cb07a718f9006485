"""Qwen3-0.6B learns to repair Python on one GPU: demonstrations first, then reinforcement learning, then evaluation.

    agentrl train qwen3-0.6b-bugfix
    agentrl train qwen3-0.6b-bugfix --dry-run      the same steps on a CPU in minutes, with a small random model

Not run on a GPU yet, so there is no result to report; the dry run is a test. Weights are held in float32, since most
steps of training are smaller than bfloat16 can add: 9 GiB for weights, gradients and AdamW's moments, and 224 KiB for
each token of the 64 conversations that are sampled side by side (`agentrl plan-memory qwen3-0.6b-bugfix` says what that
comes to). With less memory: `--hf.lora_rank 32 --hf.dtype bfloat16 --rl.learning_rate 2e-5`.
"""

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
        recipe="qwen3-0.6b-bugfix",
        tasks=TasksConfig(level="small", report="full", train_tasks=1500, max_turns=8, max_reply=256),
        model=ModelConfig(name="Qwen/Qwen3-0.6B", context=2560),
        hf=HuggingFaceConfig(gradient_checkpointing=True, thinking=False),
        warm_start=WarmStartConfig(
            steps=60,
            demonstrations=1,
            batch_size=16,
            learning_rate=1e-5,
            reverts=0.0,
            wrong_edit=0.15,
            untested=0.0,
            gives_up=0.0,
        ),
        rl=RlConfig(
            steps=150,
            groups_per_step=8,
            group_size=8,
            learning_rate=1e-6,
            parameters={"clip_high": 0.28},
            eval_every=25,
        ),
        eval=EvalConfig(tasks=200, attempts=2, during_tasks=48, at_once=64),
        sandbox=SandboxConfig(workers=8, wall_s=10.0, cpu_s=1.0),
    )
