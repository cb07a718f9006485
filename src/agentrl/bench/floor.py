"""What no sampler can do without: the arithmetic and the bytes of a workload, and the time that they take.

Every token is computed once, every prompt once for its group; the last token of a conversation is not computed, since
nothing follows it. Each step of a batch reads the weights once, the keys and values of each prompt once for its group,
and those of each conversation once.

A multiplication with its addition counts as two operations.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of a model: decoder layers with gated feed-forward, heads of queries that share heads of keys, tied output."""

    name: str
    vocabulary: int
    width: int
    layers: int
    heads: int
    key_heads: int
    mlp_width: int

    @property
    def head_width(self) -> int:
        """Numbers of one head."""
        return self.width // self.heads

    @property
    def layer_weights(self) -> int:
        """Of the matrices of one layer: queries and output, keys and values, and three of the feed-forward."""
        return self.width * self.head_width * 2 * (self.heads + self.key_heads) + 3 * self.width * self.mlp_width

    @property
    def head_weights(self) -> int:
        """Of the output projection."""
        return self.width * self.vocabulary

    @property
    def kept_numbers(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.key_heads * self.head_width


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Of a workload: groups of conversations that share a prompt, and turns with an observation before all but one."""

    groups: int
    group: int
    prompt: int
    reply: int
    turns: int = 1
    observation: int = 0

    @property
    def conversations(self) -> int:
        """In all groups."""
        return self.groups * self.group

    @property
    def sampled(self) -> int:
        """Tokens that are generated."""
        return self.conversations * self.turns * self.reply

    @property
    def longest(self) -> int:
        """Tokens of a conversation at its end."""
        return self.prompt + self.turns * self.reply + (self.turns - 1) * self.observation

    @property
    def computed(self) -> int:
        """Tokens that go through the layers."""
        return self.groups * self.prompt + self.conversations * (self.longest - self.prompt - 1)


@dataclass(frozen=True, kw_only=True)
class Floor:
    """What a workload takes at least: operations, and bytes that are read."""

    operations: float
    bytes: float

    def seconds(self, speed: Speed) -> float:
        """Whichever takes longer on a machine, when the other hides behind it."""
        return max(self.operations / speed.operations_per_s, self.bytes / speed.bytes_per_s)

    def bound(self, speed: Speed) -> str:
        """What takes longer: ``arithmetic`` or ``bytes``."""
        takes_longer = self.operations / speed.operations_per_s >= self.bytes / speed.bytes_per_s
        return "arithmetic" if takes_longer else "bytes"


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Of a machine, with the threads that are measured: float32 operations and bytes read from memory a second."""

    operations_per_s: float
    bytes_per_s: float


def floor(sizes: Sizes, shape: Shape) -> Floor:
    """What a model of these sizes must compute and read for a workload."""
    layers = sizes.layers * sizes.layer_weights
    # two products of a query with a key or value, two operations each, for each number of a head of queries
    per_pair = 4 * sizes.layers * sizes.heads * sizes.head_width
    prompts = shape.groups * shape.prompt * (shape.prompt + 1) // 2
    pairs = prompts + shape.conversations * sum(range(shape.prompt + 1, shape.longest))
    operations = 2 * layers * shape.computed + per_pair * pairs + 2 * sizes.head_weights * shape.sampled
    return Floor(operations=float(operations), bytes=float(FLOAT_BYTES * _numbers_read(sizes, shape)))


def working_set(sizes: Sizes, shape: Shape) -> int:
    """Bytes that the last step of a workload reads: weights, and all keys and values."""
    kept = shape.groups * shape.prompt + shape.conversations * (shape.longest - shape.prompt - 1)
    weights = sizes.layers * sizes.layer_weights + sizes.head_weights
    return FLOAT_BYTES * (weights + kept * sizes.kept_numbers)


def _numbers_read(sizes: Sizes, shape: Shape) -> int:
    weights = sizes.layers * sizes.layer_weights + sizes.head_weights
    kept = 0  # tokens whose keys and values the steps read, all steps together
    steps = shape.turns * shape.reply
    for turn in range(shape.turns):
        begin = turn * (shape.reply + shape.observation)
        for drawn in range(shape.reply):
            # the step that draws the first token of a conversation computes the prompts and reads nothing kept
            own = begin + drawn
            kept += shape.groups * shape.prompt + shape.conversations * own if own else 0
    return steps * weights + kept * sizes.kept_numbers
