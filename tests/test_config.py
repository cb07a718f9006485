"""Every value is checked before anything runs, and a refusal names the key, the value and what is allowed."""

import itertools
import random
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from agentrl.catalogue import CATALOGUE, CORRECTIONS
from agentrl.config import (
    LONGEST_PROMPT,
    AlgorithmName,
    CorrectionName,
    TrainConfig,
    apply_overrides,
    fingerprint,
    from_toml,
    load_recipe,
    read_toml,
    to_toml,
)
from agentrl.errors import ConfigError
from agentrl.fields import allowed, fields_of, nearest, parse_text
from agentrl.settings import engine
from agentrl.tasks.bugfix import tiny
from agentrl.tokens.tiny import TinyRenderer

BASE = TrainConfig(recipe="book-example")

# One other valid value for each field. A new field must be added here, which proves that it is written and read.
OTHERS = {
    "recipe": "other",
    "seed": "7",
    "tasks.name": None,  # one choice only
    "tasks.level": None,  # the one choice that TinyAgent has the words for
    "tasks.report": None,
    "tasks.reward": "visible",
    "tasks.on_hack": "zero",
    "warm_start.meddles": None,  # refused unless the tests can be changed; see below
    "warm_start.data": "chat.jsonl",
    "warm_start.overlong": "cut",
    "warm_start.validation": "0.1",
    "warm_start.patience": None,  # refused without a validation set
    "rejection.rounds": "3",
    "rejection.prefer": "shortest",
    "rl.algorithm": "grpo",
    "rl.parameters": None,  # a table, whose numbers are set one by one; see below
    "rl.correction_parameters": None,
    "rl.top_k": "20",
    "rl.min_p": "0.05",
    "rl.reduction": "sequence",
    "rl.correction": "token_tis",
    "rl.kl_coef": "0.1",
    "rl.kl_loss": "k2",
    "rl.entropy_coef": "0.1",
    "rl.entropy_target": None,  # refused beside a fixed coefficient
    "rl.separate_critic": None,  # refused without a critic
    "rl.critic_warmup": None,
    "rl.mode": "async",
    "rl.max_staleness": "3",
    "rl.order": "first_come",
    "rl.at_publication": "wait",
    "rl.extra_attempts": "1",
    "rl.attempt_s": "90.0",
    "engine.kind": "vllm",
    "engine.max_running": "16",
    "engine.cache_gib": "1.5",
    "engine.at_publication_keys": "keep",
    "engine.servers": "http://127.0.0.1:8001,http://127.0.0.1:8002",
    "engine.served_name": "policy",
    "engine.folder": "/mnt/shared",
    "engine.route": "reload",
    "engine.api_key_env": "KEY",
    "tasks.longest_program": "8",
    "model.name": "Qwen/Qwen3-0.6B",
    "eval.at_once": "16",
    "hf.renderer": "library:qwen3",
    "hf.today": "2026-01-31",
    "hf.dtype": "bfloat16",
    "hf.device": "cpu",
    "hf.attention": "masked",
    "hf.lora_targets": "q_proj,v_proj",
    "hf.lora_rank": "8",
    "harness.system_prompt": None,  # TinyAgent has no words for it
    "harness.system_prompts": None,  # a table; see tests/harness/test_prompts.py
    "harness.compaction": None,
    "harness.malformed": "end",
    "harness.malformed_penalty": None,  # refused unless it is asked for
    "sandbox.require": "landlock",
}


def other_value(key: str) -> str | None:
    """Text of a valid value of a field that differs from the one in BASE."""
    if key in OTHERS:
        return OTHERS[key]
    value: Any = BASE
    for part in key.split("."):
        value = getattr(value, part)
    if isinstance(value, bool):
        return str(not value).lower()
    return str(value * 2) if isinstance(value, int) else repr(value / 2)


CHANGES = {key: text for key in fields_of(TrainConfig) if (text := other_value(key)) is not None}
CHANGES["rl.parameters.clip_low"] = "0.1"
OF_TINY = (
    *("model.layers", "model.width", "model.heads", "model.mlp_width"),
    *("warm_start.matrix_learning_rate", "rejection.matrix_learning_rate", "rl.matrix_learning_rate"),
)
"""What is refused for other models, which have a shape of their own and no matrices that Muon trains."""


OF_LOCAL = tuple(f"engine.{name}" for name in engine.OF_LOCAL)
OF_VLLM = ("engine.kind", "engine.servers", *(f"engine.{name}" for name in engine.OF_VLLM))
SERVED = {
    "model.name": "Qwen/Qwen3-0.6B",
    "engine.kind": "vllm",
    "engine.servers": "http://127.0.0.1:8000",
}


def base_of(key: str) -> TrainConfig:
    """What takes a change of the key: settings of Hugging Face models are refused for TinyAgent, and those of
    asynchronous runs and of servers for others."""
    if key == "engine.at_publication_keys":
        return apply_overrides(BASE, {"rl.mode": "async"})
    if key == "engine.kind":
        return BASE
    if key in OF_VLLM:
        return apply_overrides(BASE, SERVED)
    if key in ("rl.max_staleness", "rl.order", "rl.at_publication", "rl.extra_attempts", "rl.attempt_s"):
        return apply_overrides(BASE, {"rl.mode": "async"})
    if not key.startswith("hf.") or key == "hf.micro_batch_tokens":
        return BASE
    adapters = {"hf.lora_rank": "4"} if key in ("hf.lora_alpha", "hf.lora_targets") else {}
    return apply_overrides(BASE, {"model.name": OTHERS["model.name"], **adapters})


@pytest.mark.parametrize("key", CHANGES)
def test_each_field_can_be_set_and_survives_toml_and_changes_the_fingerprint(key: str) -> None:
    more = SERVED if key == "engine.kind" else {}
    changed = apply_overrides(base_of(key), {**more, key: CHANGES[key]})
    assert changed != base_of(key)
    assert from_toml(to_toml(changed)) == changed
    assert to_toml(from_toml(to_toml(changed))) == to_toml(changed)
    assert fingerprint(changed) != fingerprint(base_of(key))


def test_all_fields_changed_at_once_survive_toml() -> None:
    changed = apply_overrides(BASE, {key: text for key, text in CHANGES.items() if key not in (*OF_TINY, *OF_LOCAL)})
    assert from_toml(to_toml(changed)) == changed
    single = {key: text for key, text in CHANGES.items() if key != "engine.kind"}  # not without servers
    prints = {fingerprint(apply_overrides(base_of(key), {key: text})) for key, text in single.items()}
    assert len(prints) == len(single)


@pytest.mark.parametrize("key", OF_LOCAL)
def test_settings_of_the_local_engine_are_refused_for_servers(key: str) -> None:
    name = key.removeprefix("engine.")
    with pytest.raises(ConfigError, match=rf"engine: {name} {CHANGES[key]} with kind vllm; leave it out"):
        apply_overrides(BASE, {**SERVED, key: CHANGES[key]})


@pytest.mark.parametrize("key", [key for key in OF_VLLM if key != "engine.kind"])
def test_settings_of_servers_are_refused_for_the_local_engine(key: str) -> None:
    name = key.removeprefix("engine.")
    with pytest.raises(ConfigError, match=rf"engine: {name} .* with kind local; leave it out, or set kind to vllm"):
        apply_overrides(BASE, {key: CHANGES[key]})


def test_settings_of_hugging_face_models_are_refused_for_tiny_agent() -> None:
    with pytest.raises(ConfigError, match=r"hf\.lora_rank 4 with TinyAgent, which is no Hugging Face model"):
        apply_overrides(BASE, {"hf.lora_rank": "4"})
    assert apply_overrides(BASE, {"hf.micro_batch_tokens": "512"}).hf.micro_batch_tokens == 512


@pytest.mark.parametrize("key", OF_TINY)
def test_settings_of_tiny_agent_are_refused_for_hugging_face_models(key: str) -> None:
    named = {"model.name": "Qwen/Qwen3-0.6B"}
    default = fields_of(TrainConfig)[key].default
    assert apply_overrides(BASE, {key: CHANGES[key]}) != BASE
    assert apply_overrides(BASE, {key: f"{default}", **named}) == apply_overrides(BASE, named)
    instead = r".*leave it out \(it is " + str(default)
    with pytest.raises(ConfigError, match=rf"{key} {CHANGES[key]} with model\.name Qwen/Qwen3-0\.6B" + instead):
        apply_overrides(BASE, {key: CHANGES[key], **named})


def test_a_recipe_of_tiny_agent_may_be_run_with_another_model() -> None:
    """It sets a width of 96 and rates of Muon, which the other has no use for; what is said beside is refused still."""
    named = {"model.name": "Qwen/Qwen3-0.6B"}
    recipe = load_recipe("bugfix-tiny")
    assert {recipe.model.width, apply_overrides(recipe, {"model.name": "tiny-agent"}).model.width} == {96}
    other = apply_overrides(recipe, named)
    assert (other.model.width, other.rl.matrix_learning_rate) == (64, 2e-3)
    assert other.rl.learning_rate == recipe.rl.learning_rate
    with pytest.raises(ConfigError, match=r"model\.width 96 with model\.name"):
        apply_overrides(recipe, {**named, "model.width": "96"})
    with pytest.raises(ConfigError, match=r"model\.width 96 with model\.name"):
        from_toml(to_toml(recipe).replace('name = "tiny-agent"', 'name = "Qwen/Qwen3-0.6B"'))


@pytest.mark.parametrize(("key", "text"), [("lora_alpha", "16"), ("lora_targets", "q_proj,v_proj")])
def test_settings_of_adapters_are_refused_where_none_are_trained(key: str, text: str) -> None:
    named = {"model.name": "Qwen/Qwen3-0.6B", f"hf.{key}": text}
    with pytest.raises(ConfigError, match=rf"{key} {text} with lora_rank 0, which trains no adapters; set lora_rank"):
        apply_overrides(BASE, named)
    assert getattr(apply_overrides(BASE, {**named, "hf.lora_rank": "8"}).hf, key)


@given(rate=st.floats(min_value=5e-324, max_value=1e300), seed=st.integers(0, 2**63 - 1))
def test_numbers_survive_toml_and_the_command_line_to_the_bit(rate: float, seed: int) -> None:
    config = apply_overrides(BASE, {"rl.learning_rate": repr(rate), "seed": str(seed)})
    assert (config.rl.learning_rate, config.seed) == (rate, seed)
    assert from_toml(to_toml(config)) == config


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    # sha256 of the canonical JSON, so it depends neither on hashing nor on the order of the keys
    assert fingerprint(BASE) == fingerprint(from_toml(to_toml(BASE)))
    assert len(fingerprint(BASE)) == 64


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-6", 1e-6), ("1E-6", 1e-6), ("1_000", 1000.0), (".5", 0.5), ("3.", 3.0), ("0", 0.0), ("2", 2.0)],
)
def test_a_number_is_read_in_every_usual_spelling(text: str, value: float) -> None:
    assert apply_overrides(BASE, {"rl.learning_rate": text}).rl.learning_rate == value


# the spellings that YAML readers turn into text or octal numbers (cases C01 and C05)
@pytest.mark.parametrize("text", ["inf", "-inf", "nan", "012", "0x10", "1e", "", " 1", "1,5", "1e999", "none", "true"])
def test_what_is_no_finite_decimal_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"rl\.learning_rate = .* it must be a finite number >= 0"):
        apply_overrides(BASE, {"rl.learning_rate": text})


@pytest.mark.parametrize("text", ["1e3", "1.0", "ten", "010", "1__0", ""])
def test_an_integer_is_digits_only(text: str) -> None:
    with pytest.raises(ConfigError, match=r"rl\.steps = .* it must be an integer >= 0"):
        apply_overrides(BASE, {"rl.steps": text})


@pytest.mark.parametrize(("text", "value"), [("true", True), ("True", True), ("false", False), ("FALSE", False)])
def test_a_flag_is_true_or_false(text: str, value: bool) -> None:
    assert apply_overrides(BASE, {"tasks.tests_writable": text}).tasks.tests_writable is value


@pytest.mark.parametrize("text", ["0", "1", "yes", "maybe", ""])
def test_a_flag_is_nothing_else(text: str) -> None:
    with pytest.raises(ConfigError, match=r"tasks\.show_results = .* true or false"):
        apply_overrides(BASE, {"tasks.show_results": text})


# misspelled in the last part, in the first, with dashes, upper case, a plus, without its section (case C02)
@pytest.mark.parametrize(
    ("key", "right"),
    [
        ("rl.learnig_rate", "rl.learning_rate"),
        ("taks.level", "tasks.level"),
        ("rl.learning-rate", "rl.learning_rate"),
        ("RL.Steps", "rl.steps"),
        ("+rl.steps", "rl.steps"),
        ("learning_rate", "rl.learning_rate"),
        ("no-tasks.show_results", "tasks.show_results"),
        ("rl.steps.x", "rl.steps"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(key: str, right: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_overrides(BASE, {key: "1"})
    assert f"unknown key {key} (set to '1'); did you mean {right}?" in str(caught.value)


def test_a_key_like_nothing_gets_no_suggestion() -> None:
    assert nearest("zzzz", ["rl.steps", "seed"]) == ""


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rl.steps": "-1"}, "rl.steps = -1 is not allowed; it must be an integer >= 0"),
        ({"rl.group_size": "0"}, "rl.group_size = 0 is not allowed; it must be an integer >= 1"),
        ({"warm_start.learning_rate": "0"}, "warm_start.learning_rate = 0.0 is not allowed"),
        ({"seed": "-1"}, "seed = -1 is not allowed; it must be an integer >= 0 and < 9223372036854775808"),
        ({"tasks.level": "huge"}, "tasks.level = 'huge' is not allowed; it must be one of tiny, small, repo"),
        ({"recipe": "no/slash"}, "recipe = 'no/slash' is not allowed"),
        ({"rl": "fast"}, "rl is a table and cannot be set to 'fast'; set one of rl.algorithm, rl.parameters"),
        ({"tasks.level": "small"}, "set tasks.level to tiny"),
        ({"tasks.level": "repo"}, "tasks.level repo: TinyAgent"),
        ({"tasks.report": "full"}, "set tasks.report to short"),
        # 64 tokens of prompt and 20 or 40 of reply
        ({"model.context": "83"}, "model.context 83: a prompt has up to 64 tokens and a reply up to 20"),
        ({"model.context": "103", "tasks.max_reply": "40"}, "set model.context to 104 or more"),
        ({"warm_start.batch_size": "7", "warm_start.demonstrations": "8"}, "warm_start: batch_size 7 with demonst"),
        ({"rl.max_staleness": "2"}, "rl: max_staleness 2 with mode sync, in which nothing is played ahead"),
        ({"rl.order": "first_come"}, "rl: order first_come with mode sync"),
        ({"rl.extra_attempts": "1"}, "leave it out, or set mode to async"),
        ({"rl.mode": "asynk"}, "rl.mode = 'asynk' is not allowed; it must be one of sync, async"),
        ({"rl.mode": "async", "rl.max_staleness": "-1"}, "rl.max_staleness = -1 is not allowed"),
        ({"rl.mode": "async", "rl.attempt_s": "0"}, "rl.attempt_s = 0.0 is not allowed"),
        # the sampler has version 0 until step 3 has been taken: fresh tokens are up to 2 steps old
        (
            {"rl.mode": "async", "rl.publish_every": "3"},
            "max_staleness 1 with publish_every 3 cannot be met: before a publication fresh tokens are 2 steps old; "
            "set max_staleness to 2 or more, or publish_every to 2 or less",
        ),
        # 3 heads of 64/3: no whole number, and 6 = 2 * 3 is what the width must be a multiple of
        ({"model.heads": "3"}, "set width to a multiple of 6"),
    ],
)
def test_an_impossible_value_is_refused_with_what_is_allowed(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_overrides(BASE, overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('recipe = "a"\nsandbox = "zygote"', "sandbox = 'zygote' must be a table with the keys sandbox.workers"),
        ("seed = 1", "recipe is missing; set it to text"),
        ('recipe = "a"\n[rl]\nlearning_rate = "1e-6"', "rl.learning_rate = '1e-6' is not allowed; it must be a finite"),
        ('recipe = "a"\n[rl]\nlearning_rate = nan', "rl.learning_rate = nan is not allowed"),
        ('recipe = "a"\n[rl]\nsteps = 3.0', "rl.steps = 3.0 is not allowed; it must be an integer"),
        ('recipe = "a"\n[rl]\nsteps = true', "rl.steps = True is not allowed"),
        ('recipe = "a"\n[tasks]\nshow_results = 1', "tasks.show_results = 1 is not allowed; it must be true or false"),
        ('recipe = "a"\n[modle]\nwidth = 8', "unknown key modle = {'width': 8}; did you mean model?"),
        ('recipe = "a"\n[rl]\nstep = 8', "unknown key rl.step = 8; did you mean rl.steps?"),
        ("recipe = ", "not valid TOML"),
        ('recipe = "a"\nseed = 2026-01-01', "seed = '2026-01-01' is not allowed"),
    ],
)
def test_a_wrong_file_is_refused_by_key_and_value(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_toml(text)
    assert message in str(caught.value)


def test_an_integer_will_do_for_a_number_in_a_file() -> None:
    assert from_toml('recipe = "a"\n[sandbox]\nwall_s = 3').sandbox.wall_s == 3.0


def test_several_findings_are_all_told() -> None:
    with pytest.raises(ConfigError, match=r"rl\.steps = -1 .*; rl\.epochs = 0 "):
        apply_overrides(BASE, {"rl.steps": "-1", "rl.epochs": "0"})


def test_fields_that_contradict_each_other_only_one_by_one_are_set_together() -> None:
    # 12 is no multiple of 2*8 = 16 and 64 is; 96 is a multiple of 2*6 = 12 and 64 is not: set both or none
    assert apply_overrides(BASE, {"model.heads": "6", "model.width": "96"}).model.width == 96


def test_the_least_that_is_possible_is_allowed() -> None:
    least = {"model.context": "84", "warm_start.batch_size": "8", "warm_start.demonstrations": "8"}
    assert apply_overrides(BASE, least).model.context == LONGEST_PROMPT + 20


def test_no_tiny_prompt_is_longer_than_the_context_is_checked_for() -> None:
    found = itertools.islice(tiny.candidates(random.Random(0)), 400)
    prompts = [tiny.prompt(one.files[tiny.MAIN_PATH], "test_8") for one in found]
    renderer = TinyRenderer()
    opening = len(renderer.generation_prompt())
    longest = max(sum(map(len, renderer.render(prompt, ()))) + opening for prompt in prompts)
    assert LONGEST_PROMPT - 8 < longest <= LONGEST_PROMPT


def test_a_contradiction_between_sections_is_told_without_a_key_before_it() -> None:
    words = r"^rl\.algorithm ppo trains a critic; set model\.value_head or rl\.separate_critic to true$"
    with pytest.raises(ConfigError, match=words):
        apply_overrides(BASE, {"rl.algorithm": "ppo"})


def test_demonstrations_meddle_with_tests_that_can_be_changed_only() -> None:
    with pytest.raises(ConfigError, match=r"^warm_start\.meddles 0\.5 with tests .* set tasks\.tests_writable to true"):
        apply_overrides(BASE, {"warm_start.meddles": "0.5"})
    meddling = apply_overrides(BASE, {"warm_start.meddles": "0.5", "tasks.tests_writable": "true"})
    assert from_toml(to_toml(meddling)) == meddling
    assert fingerprint(meddling) != fingerprint(apply_overrides(BASE, {"tasks.tests_writable": "true"}))


def test_overrides_leave_the_original_alone() -> None:
    before = BASE.model_dump()
    apply_overrides(BASE, {"rl.steps": "3"})
    assert BASE.model_dump() == before


def test_a_configuration_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValueError, match="frozen"):
        BASE.rl.steps = 3  # type: ignore[misc]


def test_optional_and_list_fields_are_read_by_their_type() -> None:
    class Example(BaseModel):
        revision: str = "main"
        limit: int | None = Field(default=None, ge=1)
        kinds: tuple[str, ...] = ()

    fields = fields_of(Example)
    assert parse_text("revision", "0012", fields["revision"]) == "0012"  # leading zeros of an id survive (case C05)
    assert parse_text("revision", "none", fields["revision"]) == "none"  # none is a word where None is no value
    assert parse_text("limit", "none", fields["limit"]) is None
    assert parse_text("limit", "12", fields["limit"]) == 12
    assert parse_text("kinds", "a,b=c", fields["kinds"]) == ["a", "b=c"]
    assert parse_text("kinds", "", fields["kinds"]) == []
    assert allowed(fields["limit"]) == "an integer >= 1 (or none)"
    assert allowed(fields["kinds"]) == "a list of text"


def test_every_field_says_what_it_is_for() -> None:
    assert [key for key, field in fields_of(TrainConfig).items() if not field.description] == []


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"there is no recipe 'bugfix-tinny'; .*the recipes are"):
        load_recipe("bugfix-tinny")


def test_a_file_is_a_recipe_too(tmp_path: Any) -> None:
    path = tmp_path / "config.toml"
    path.write_text(to_toml(BASE))
    assert load_recipe(str(path)) == BASE
    path.write_text("seed = true")
    with pytest.raises(ConfigError, match=r"config\.toml: .*seed = True"):
        read_toml(path)
    with pytest.raises(ConfigError, match="cannot be read as a configuration"):
        read_toml(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rl.algorithm": "reinforce", "rl.parameters.clip_low": "0.2"}, "clip_low 0.2 with reinforce, which does not"),
        (
            {"rl.algorithm": "cispo", "rl.parameters.lam": "0.2"},
            "cispo has no parameter 'lam'; it has ratio_min",
        ),
        ({"rl.parameters.clip_low": "1.5"}, r"clip_low 1\.5 with dr_grpo: it must be a number from 0 to 1"),
        ({"rl.algorithm": "ppo", "model.value_head": "true", "rl.parameters.lam": "-1"}, "lam -1 with ppo: it must be"),
        ({"rl.algorithm": "ppo", "model.value_head": "true", "rl.parameters.lam": "1.5"}, "it must be a number from 0"),
        ({"rl.algorithm": "ppo", "model.value_head": "true", "rl.parameters.gamma": "2"}, "it must be a number from 0"),
        ({"rl.algorithm": "ppo", "model.value_head": "true", "rl.parameters.value_coef": "0"}, "a number above 0"),
        ({"rl.algorithm": "vapo", "model.value_head": "true", "rl.parameters.alpha": "0"}, "alpha 0 with vapo"),
        ({"rl.algorithm": "cispo", "rl.parameters.ratio_min": "6"}, "ratio_min 6 is above ratio_max 5"),
        ({"rl.algorithm": "two_sided", "rl.parameters.delta": "1.1"}, r"delta 1\.1 is not above 1 \+ clip_high"),
        ({"rl.algorithm": "sapo", "rl.parameters.temperature_positive": "0"}, "it must be a number above 0"),
        ({"rl.correction": "token_mis", "rl.correction_parameters.low": "9"}, "low 9 is above high 5"),
        ({"rl.algorithm": "topr", "rl.correction": "token_tis"}, "topr, whose formula looks at the sampler itself"),
        ({"rl.algorithm": "gspo", "rl.correction": "token_tis"}, "it has one ratio a sequence"),
        ({"rl.parameters.clip_hgih": "0.3"}, "no parameter 'clip_hgih'; did you mean 'clip_high'"),
        ({"rl.clip_high": "0.3"}, r"unknown key rl.clip_high .* did you mean rl.parameters.clip_high"),
        (
            {"rl.algorithm": "ppo", "model.value_head": "true", "rl.critic_warmup": "100"},
            "critic_warmup 100 with steps 100: the policy would never learn",
        ),
        (
            {"rl.algorithm": "cispo", "rl.parameters.ratio_max": "-5"},
            "ratio_max -5 with cispo: it must be a number of at least",
        ),
        ({"rl.correction_parameters.cap": "2"}, "correction_parameters without a correction"),
        ({"rl.correction": "token_tis", "rl.correction_parameters.low": "2"}, "token_tis has no parameter 'low'"),
        (
            {"rl.algorithm": "decoupled_ppo", "rl.correction": "token_tis"},
            "token_tis with decoupled_ppo, whose formula looks at the sampler",
        ),
        ({"rl.entropy_coef": "0.1", "rl.entropy_target": "0.2"}, r"entropy_coef 0\.1 with entropy_target 0\.2"),
        ({"rl.separate_critic": "true"}, "separate_critic True with dr_grpo, which has no critic"),
        ({"rl.critic_warmup": "5"}, "critic_warmup 5 with dr_grpo, which has no critic"),
        ({"rl.algorithm": "ppo"}, "trains a critic; set model.value_head or rl.separate_critic to true"),
        (
            {"rl.algorithm": "ppo", "model.value_head": "true", "rl.separate_critic": "true"},
            "one of two critics would not be trained",
        ),
        ({"rl.minibatches": "13"}, "minibatches 13 with groups_per_step 12: a group is never cut"),
        ({"rl.parameters": "0.2"}, r"rl.parameters is a table and cannot be set to '0.2'; .* rl.parameters.NAME"),
        ({"rl.parameters.clip_low": "wide"}, "rl.parameters.clip_low = 'wide' is not allowed; it must be a finite"),
        ({"rl.algorithm": "grpo", "rl.group_size": "1"}, "group_size 1 with grpo"),
        ({"rl.algorithm": "ppoo"}, "rl.algorithm = 'ppoo'"),
        ({**SERVED, "engine.servers": ""}, "kind vllm without servers; set servers to their addresses"),
        ({**SERVED, "model.name": "tiny-agent"}, "engine.kind vllm with TinyAgent, which no vLLM server knows"),
        ({"engine.at_publication_keys": "keep"}, "at_publication_keys keep, and no conversation goes on over a"),
        (
            {"engine.at_publication_keys": "keep", "rl.mode": "async", "rl.at_publication": "wait"},
            "at_publication_keys keep, and no conversation goes on over a",
        ),
        (
            {**SERVED, "rl.publish_every": "2", "rl.eval_every": "25"},
            "the servers would evaluate older weights; set rl.eval_every to a multiple of 2, or to 0",
        ),
        ({"engine.cache_gib": "0"}, "engine.cache_gib = '0' is not allowed|cache_gib = 0"),
        (
            {"tasks.reward": "random", "tasks.on_hack": "zero"},
            "reward random with on_hack zero: the reward would depend",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        apply_overrides(BASE, settings)


def test_a_drawn_reward_is_for_training_alone() -> None:
    drawn = apply_overrides(BASE, {"tasks.reward": "random"}).tasks
    assert drawn.for_evaluation() == BASE.tasks
    visible = apply_overrides(BASE, {"tasks.reward": "visible"}).tasks
    assert visible.for_evaluation() is visible


def test_a_group_of_one_is_allowed_where_no_group_is_needed() -> None:
    assert apply_overrides(BASE, {"rl.algorithm": "reinforce_pp", "rl.group_size": "1"}).rl.group_size == 1


def test_bounds_that_never_clip_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="so wide it never clips"):
        apply_overrides(BASE, {"rl.algorithm": "gspo", "rl.parameters.clip_low": "0.2"})


def test_the_names_of_the_algorithms_are_those_of_the_catalogue() -> None:
    assert get_args(AlgorithmName) == tuple(CATALOGUE)


def test_the_names_of_the_corrections_are_those_of_the_catalogue() -> None:
    assert get_args(CorrectionName) == ("none", *CORRECTIONS)


def test_parameters_of_the_algorithm_are_set_by_name_and_kept() -> None:
    set_ = {"rl.algorithm": "ppo", "rl.separate_critic": "true", "rl.parameters.lam": "0.9", "rl.parameters.gamma": "1"}
    found = apply_overrides(BASE, set_)
    assert found.rl.parameters == {"lam": 0.9, "gamma": 1.0}
    assert from_toml(to_toml(found)) == found


def test_a_correction_with_one_factor_a_sequence_suits_a_ratio_of_the_sequence() -> None:
    assert (
        apply_overrides(BASE, {"rl.algorithm": "gspo", "rl.correction": "sequence_tis"}).rl.correction == "sequence_tis"
    )


@pytest.mark.parametrize("value", ['"wide"', "true", "inf"])
def test_a_parameter_in_a_file_is_a_finite_number(value: str) -> None:
    with pytest.raises(ConfigError, match=r"rl\.parameters\.clip_high = .* it must be a finite number"):
        from_toml(f'recipe = "x"\n[rl.parameters]\nclip_high = {value}\n')


def test_what_is_in_force_without_being_set_is_in_the_text() -> None:
    assert "# dr_grpo, with its defaults: clip_low = 0.1, clip_high = 0.2; credit A = r - m" in to_toml(
        apply_overrides(BASE, {"rl.parameters.clip_low": "0.1"})
    )
