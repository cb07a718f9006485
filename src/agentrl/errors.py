"""One exception per boundary, so that a failure always says which side of the house it came from."""


class AgentRLError(Exception):
    """Base of every error that agentrl raises on purpose."""

    boundary = "agentrl"


class ConfigError(AgentRLError):
    """A setting is unknown, has the wrong type, is out of range or contradicts another."""

    boundary = "config"


class TaskError(AgentRLError):
    """A task or a task set is malformed, missing or failed its own validation."""

    boundary = "task"


class EnvironmentFault(AgentRLError):
    """An environment broke. This is never the policy's fault and never becomes a reward."""

    boundary = "environment"


class SandboxError(AgentRLError):
    """The machinery that runs untrusted code failed (not the code that it ran)."""

    boundary = "sandbox"


class SamplerError(AgentRLError):
    """A sampler returned no, misaligned or impossible numbers, or could not be reached."""

    boundary = "sampler"


class RendererError(AgentRLError):
    """Messages cannot be written as tokens, or tokens cannot be read as messages."""

    boundary = "renderer"


class ScorerError(AgentRLError):
    """A scorer could not reach a verdict. The attempt stays unscored; this is not a zero."""

    boundary = "scorer"


class TrainerError(AgentRLError):
    """A training step met numbers that it must not use."""

    boundary = "trainer"


class StoreError(AgentRLError):
    """A run folder, a trace file or a checkpoint is missing, damaged or of another schema."""

    boundary = "store"
