"""The parts of a run's configuration, each with its fields, their bounds, and what contradicts what within it."""

from agentrl.settings.agent import TINY_AGENT, HarnessConfig, HuggingFaceConfig, ModelConfig, TasksConfig
from agentrl.settings.around import EvalConfig, SandboxConfig
from agentrl.settings.engine import EngineConfig
from agentrl.settings.imitation import RejectionConfig, WarmStartConfig
from agentrl.settings.rl import AlgorithmName, CorrectionName, RlConfig
from agentrl.settings.section import Section

__all__ = [
    "TINY_AGENT",
    "AlgorithmName",
    "CorrectionName",
    "EngineConfig",
    "EvalConfig",
    "HarnessConfig",
    "HuggingFaceConfig",
    "ModelConfig",
    "RejectionConfig",
    "RlConfig",
    "SandboxConfig",
    "Section",
    "TasksConfig",
    "WarmStartConfig",
]
