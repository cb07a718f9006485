"""Repairs in a shell: bash in the sandbox, an exact edit, and hidden tests that decide at the end."""

from agentrl.tasks.shell.environment import ShellEnvironment
from agentrl.tasks.shell.folder import RepairFolder
from agentrl.tasks.shell.session import ShellLimits

__all__ = ["RepairFolder", "ShellEnvironment", "ShellLimits"]
