"""The configuration of a run: one validated tree, TOML files, dotted overrides and a fingerprint.

A recipe is a function that returns a whole `TrainConfig`; a run folder holds the one that was used, complete. Every
value is checked before anything runs, and a refusal names the key, the value and what is allowed. An optional field
must default to None, because TOML has no null: a key that is absent from the file is None again when it is read.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import tomli_w
from pydantic import Field, ValidationError, model_validator

from agentrl.catalogue import CATALOGUE, entry
from agentrl.errors import ConfigError
from agentrl.fields import allowed, fields_of, lookup, nearest, parse_text
from agentrl.settings import (
    TINY_AGENT,
    AlgorithmName,
    CorrectionName,
    EngineConfig,
    EvalConfig,
    HarnessConfig,
    HuggingFaceConfig,
    ModelConfig,
    RejectionConfig,
    RlConfig,
    SandboxConfig,
    Section,
    TasksConfig,
    WarmStartConfig,
)

__all__ = [
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
    "TasksConfig",
    "TrainConfig",
    "WarmStartConfig",
    "apply_overrides",
    "fingerprint",
    "from_toml",
    "load_recipe",
    "read_toml",
    "recipe_names",
    "to_toml",
]


LONGEST_PROMPT = 64
"""Tokens that no prompt of the tiny level exceeds, the marker that opens the reply included (the longest has 62)."""


OF_TINY_AGENT = (
    *("model.layers", "model.width", "model.heads", "model.mlp_width"),
    *("warm_start.matrix_learning_rate", "rejection.matrix_learning_rate", "rl.matrix_learning_rate"),
)
"""What other models have no use for."""


class TrainConfig(Section):
    """Everything that a training run depends on."""

    recipe: str = Field(min_length=1, pattern=r"^[a-z0-9][a-z0-9.-]*$", description="name of the experiment")
    seed: int = Field(default=0, ge=0, lt=2**63, description="root of every random number of the run")
    tasks: TasksConfig = TasksConfig()
    model: ModelConfig = ModelConfig()
    hf: HuggingFaceConfig = HuggingFaceConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    rejection: RejectionConfig = RejectionConfig()
    rl: RlConfig = RlConfig()
    engine: EngineConfig = EngineConfig()
    eval: EvalConfig = EvalConfig()
    harness: HarnessConfig = HarnessConfig()
    sandbox: SandboxConfig = SandboxConfig()

    @model_validator(mode="after")
    def _critic_has_a_head(self) -> Self:
        has_one = self.model.value_head or self.rl.separate_critic
        if entry(self.rl.algorithm).critic and not has_one:
            raise ValueError(
                f"rl.algorithm {self.rl.algorithm} trains a critic; set model.value_head or rl.separate_critic to true"
            )
        if self.model.value_head and self.rl.separate_critic:
            raise ValueError(
                "model.value_head with rl.separate_critic: one of two critics would not be trained; set one"
            )
        return self

    @model_validator(mode="after")
    def _what_is_for_other_models_is_not_set(self) -> Self:
        if self.model.is_tiny:
            for name, default in HuggingFaceConfig().model_dump(exclude={"micro_batch_tokens"}).items():
                value = getattr(self.hf, name)
                if value != default:
                    raise ValueError(
                        f"hf.{name} {value} with TinyAgent, which is no Hugging Face model; leave it out, or set "
                        "model.name"
                    )
        return self

    @model_validator(mode="after")
    def _what_is_for_tiny_agent_is_not_set(self) -> Self:
        if self.model.is_tiny:
            return self
        for key in OF_TINY_AGENT:
            section, name = key.split(".")
            part = getattr(self, section)
            value, default = getattr(part, name), type(part).model_fields[name].default
            if value != default:
                why = "has a shape of its own" if section == "model" else "has no matrices that Muon trains"
                instead = "" if section == "model" else f", and set {section}.learning_rate"
                raise ValueError(
                    f"{key} {value} with model.name {self.model.name}, which {why}; leave it out (it is {default} "
                    f"then){instead}"
                )
        return self

    @model_validator(mode="after")
    def _tiny_agent_has_the_words(self) -> Self:
        if not self.model.is_tiny:
            return self
        for key, value, right in (("level", self.tasks.level, "tiny"), ("report", self.tasks.report, "short")):
            if value != right:
                raise ValueError(
                    f"tasks.{key} {value}: TinyAgent, which is trained, has a vocabulary of the tiny level and its "
                    f"short reports alone; set tasks.{key} to {right}"
                )
        return self

    @model_validator(mode="after")
    def _tiny_agent_knows_the_words_of_the_harness(self) -> Self:
        for key, value, right in (
            ("system_prompt", self.harness.system_prompt, ""),
            ("system_prompts", self.harness.system_prompts, {}),
            ("compaction", self.harness.compaction, "none"),
        ):
            if self.model.is_tiny and value != right:
                raise ValueError(
                    f"harness.{key} {value!r}: TinyAgent has no words for it; set it to {right!r}, or model.name to "
                    "another model"
                )
        return self

    @model_validator(mode="after")
    def _a_reply_may_have_what_is_reserved(self) -> Self:
        if self.harness.reserve > self.tasks.max_reply:
            raise ValueError(
                f"harness.reserve {self.harness.reserve}: a reply has at most {self.tasks.max_reply} tokens "
                f"(tasks.max_reply); set harness.reserve to {self.tasks.max_reply} or less"
            )
        return self

    @model_validator(mode="after")
    def _the_engine_can_do_it(self) -> Self:
        if self.engine.kind == "vllm" and self.model.is_tiny:
            raise ValueError(
                "engine.kind vllm with TinyAgent, which no vLLM server knows; set it to local, or model.name to a "
                "Hugging Face model"
            )
        goes_on = self.rl.overlaps and self.rl.at_publication == "continue"
        if self.engine.at_publication_keys == "keep" and not goes_on:
            raise ValueError(
                "engine.at_publication_keys keep, and no conversation goes on over a publication; leave it out, or set "
                "rl.mode to async with rl.max_staleness 1 and rl.at_publication continue"
            )
        return self

    @model_validator(mode="after")
    def _servers_have_the_weights_that_are_measured(self) -> Self:
        every, measured = self.rl.publish_every, self.rl.eval_every
        if self.engine.kind == "vllm" and measured % every:
            raise ValueError(
                f"rl.eval_every {measured} with rl.publish_every {every} and engine.kind vllm: the servers would "
                f"evaluate older weights; set rl.eval_every to a multiple of {every}, or to 0"
            )
        return self

    @model_validator(mode="after")
    def _who_meddles_can(self) -> Self:
        if self.warm_start.meddles and not self.tasks.tests_writable:
            raise ValueError(
                f"warm_start.meddles {self.warm_start.meddles} with tests that cannot be changed; set "
                "tasks.tests_writable to true, or warm_start.meddles to 0"
            )
        return self

    @model_validator(mode="after")
    def _a_prompt_and_a_reply_fit(self) -> Self:
        least = LONGEST_PROMPT + self.tasks.max_reply
        if self.model.context < least:
            raise ValueError(
                f"model.context {self.model.context}: a prompt has up to {LONGEST_PROMPT} tokens and a reply up to "
                f"{self.tasks.max_reply} (tasks.max_reply); set model.context to {least} or more"
            )
        return self


def recipe_names() -> tuple[str, ...]:
    """The names of the recipes that come with the package, sorted."""
    return tuple(sorted(_recipes()))


def _recipes() -> dict[str, str]:
    """The module of each recipe by the recipe's name."""
    package = importlib.import_module("agentrl.recipes")
    named = {module: name for name, module in package.FILES.items()}
    modules = [found.name for found in pkgutil.iter_modules(package.__path__)]
    return {named.get(module, module.replace("_", "-")): module for module in modules}


def load_recipe(name: str) -> TrainConfig:
    """The configuration of a recipe, by its name (`bugfix-tiny`) or from a TOML file (`runs/.../config.toml`).

    Raises:
        ConfigError: no such recipe (with the nearest name), or a file that cannot be read or is not valid.
    """
    if name.endswith(".toml"):
        return read_toml(Path(name))
    found = _recipes()
    if name not in found:
        names = sorted(found)
        raise ConfigError(
            f"there is no recipe {name!r}; {nearest(name, names)}the recipes are {', '.join(names) or 'none yet'}, "
            "or give the path of a .toml file"
        )
    module = importlib.import_module(f"agentrl.recipes.{found[name]}")
    config = module.config()
    if not isinstance(config, TrainConfig):
        raise ConfigError(f"recipe {name!r}: config() returned a {type(config).__name__}; return a TrainConfig")
    return config


def apply_overrides(config: TrainConfig, overrides: Mapping[str, str]) -> TrainConfig:
    """A new configuration with some values replaced by text, read by the type of each field.

    Args:
        config: the configuration to start from; it is not changed.
        overrides: dotted key to text, e.g. ``{"rl.learning_rate": "3e-4"}``.

    Raises:
        ConfigError: an unknown key (with the nearest one), text that is not of the field's type, a value out of its
            bounds, or values that contradict each other.
    """
    data = config.model_dump()
    if config.model.is_tiny and overrides.get("model.name", TINY_AGENT) != TINY_AGENT:
        _forget_tiny_agent(data)
    for key, text in overrides.items():
        _refuse_bare_parameter(key, text)
        field = lookup(TrainConfig, key, text)
        *sections, name = key.split(".")
        table = data
        for section in sections:
            table = table[section]
        table[name] = parse_text(key, text, field)
    return _validated(data)


def _forget_tiny_agent(data: Mapping[str, Any]) -> None:
    """A recipe of TinyAgent may be run with another model, without saying first what that has no use for."""
    known = fields_of(TrainConfig)
    for key in OF_TINY_AGENT:
        section, name = key.split(".")
        data[section][name] = known[key].default


def _refuse_bare_parameter(key: str, text: str) -> None:
    """A parameter of an algorithm has a table of its own."""
    section, _, name = key.rpartition(".")
    if section == "rl" and name not in RlConfig.model_fields and any(name in e.parameters for e in CATALOGUE.values()):
        raise ConfigError(f"unknown key {key} (set to {text!r}); did you mean rl.parameters.{name}?")


def to_toml(config: TrainConfig) -> str:
    """The whole configuration as TOML; `from_toml` gives an equal one.

    What an algorithm does where nothing is set stands in a comment at the end, so that the text says all that the run
    depends on.
    """
    text = tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
    known = entry(config.rl.algorithm)
    in_force = {**known.parameters, **config.rl.parameters}
    said = [f"{name} = {value!r}" for name, value in in_force.items()]
    return f"{text}\n# {known.name}, with its defaults: {', '.join(said) or 'no parameters'}; credit {known.credit}\n"


def from_toml(text: str) -> TrainConfig:
    """Read a configuration that `to_toml` or a person wrote.

    Raises:
        ConfigError: text that is not TOML, an unknown key, a wrong type or an impossible value.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the configuration is not valid TOML: {error}") from error
    return _validated(data)


def read_toml(path: Path) -> TrainConfig:
    """Read a configuration file.

    Raises:
        ConfigError: as `from_toml`, or a file that cannot be read; the message starts with the path.
    """
    try:
        return from_toml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a configuration ({error})") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def fingerprint(config: TrainConfig) -> str:
    """SHA-256 (64 hexadecimal digits) of the configuration in canonical form; any changed value changes it."""
    canonical = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _validated(data: Mapping[str, Any]) -> TrainConfig:
    """Build the configuration from plain data, strictly: no text for a number, no 3.0 for an integer."""
    try:
        return TrainConfig.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(one) for one in error.errors())) from error


def _explain(error: Any) -> str:
    """One line for one finding of the validation."""
    key, value = ".".join(str(part) for part in error["loc"]), error["input"]
    known = fields_of(TrainConfig)
    if error["type"] == "extra_forbidden":
        hint = nearest(key, [*known, *TrainConfig.model_fields])
        return f"unknown key {key} = {value!r}; {hint}all keys: --print-config"
    if error["type"] == "missing":
        return f"{key} is missing; set it to {allowed(known[key])}"
    if error["type"] == "value_error":
        return f"{key}: {error['ctx']['error']}" if key else str(error["ctx"]["error"])
    if key.rpartition(".")[0] in known:
        return f"{key} = {value!r} is not allowed; it must be {allowed(lookup(TrainConfig, key, str(value)))}"
    if key not in known:
        return f"{key} = {value!r} must be a table with the keys {', '.join(k for k in known if k.startswith(key))}"
    return f"{key} = {value!r} is not allowed; it must be {allowed(known[key])}"
