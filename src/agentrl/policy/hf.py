"""Any causal language model of Hugging Face `transformers` in our trainer.

A packed batch goes through the model as one row with the positions of its tokens. Attention is ours: each group's
shared prefix is computed once, no token sees another sequence, no padding. On the CPU it is that of `packed.py`; on
other devices, and in layers that see fewer tokens back than a sequence has, that of `masked.py`. The logits are left to
the trainer, which needs them at the trained tokens alone.

What a model computes beyond plain causal attention is refused, with the reason; and before a model is taken, its own
forward pass over a few sequences is compared with ours (`comparison.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from agentrl.errors import ConfigError, TrainerError
from agentrl.policy.base import Attend, Output, Policy
from agentrl.policy.choice import OWN, choose_forward
from agentrl.policy.comparison import compare, longest_window
from agentrl.policy.masked import Masks, masked_attention
from agentrl.policy.packed import GroupSpan, chosen_attention, chosen_groups, group_spans, packed_attention
from agentrl.policy.plain import Forward, is_bare, uncalled
from agentrl.policy.plain_training import PlainTraining, plain_training
from agentrl.train.packing import Batch

try:
    from transformers import AttentionInterface, PreTrainedModel
except ImportError as error:
    raise ImportError("Hugging Face models need the package transformers: pip install 'agentrl[hf]'") from error

ATTENTION = "agentrl_packed"
"""Name of our attention among those of `transformers`."""
Attention = Literal["auto", "fused", "masked"]
"""Of training: ``fused`` on the CPU alone, ``masked`` anywhere; ``auto`` takes the fused one where it can."""
_WORDS_AT_ONCE = 16384
_FEW = 2
"""Attention at the predictors alone is cheaper where all continuations have so many times as many tokens."""
_PLAIN_LAYERS = {"full_attention", "sliding_attention"}
_ROPE_BY_LENGTH = {"dynamic", "longrope"}
_BEYOND_SOFTMAX = {
    "softcap": "caps its attention scores",
    "s_aux": "has attention sinks",
    "position_bias": "adds a bias by position to its attention scores",
}


class HuggingFacePolicy(Policy):
    """A causal language model, and a value head on its last hidden states where one is asked for.

    The model is changed in place: from now on its attention is ours, and its own ``forward`` and ``generate`` say so
    instead of working. `agentrl.engine.local.LocalEngine` samples from it.

    Args:
        model: on any device. Weights that are frozen stay so.
        value_head: adds one, with weights of zero, in float32 where the model has half precision.
        attention: of training.

    Raises:
        ConfigError: the model computes something that a packed batch cannot give exactly, its own forward pass gives
            other numbers than ours, or the fused attention is asked for off the CPU.
    """

    _sampling: Forward | None = None
    _uncalled: tuple[nn.Module, ...] = ()
    """Those that `_sampling` computes without calling them."""
    _training: PlainTraining | None = None
    _training_decided = False

    def __init__(self, model: PreTrainedModel, *, value_head: bool = False, attention: Attention = "auto") -> None:
        super().__init__()
        self.model = model
        self.attention: Attention = attention
        _check_kind(model)
        _check_device(self)
        self.logit_scale = _logit_scale(model.config)
        self.dropouts = _dropouts(model)
        self.adapted = getattr(model, "peft_config", None) is not None
        self.value = None
        if value_head:
            weight = _output_projection(model).weight
            dtype = torch.promote_types(weight.dtype, torch.float32)
            self.value = nn.Linear(weight.shape[1], 1, dtype=dtype, device=weight.device)
            nn.init.zeros_(self.value.weight)
            nn.init.zeros_(self.value.bias)
        _take_attention(self)

    def forward(self, batch: Batch) -> Output:
        """What predicts each trained token of a packed batch.

        Raises:
            TrainerError: the model is in training mode and has dropout.
        """
        if self.training and self.dropouts:
            raise TrainerError(
                f"{', '.join(self.dropouts)} would make every forward pass another; set them to 0 or call .eval(), "
                "which changes nothing else"
            )
        head, hidden_KD = _output_projection(self.model), self._hidden(batch)
        values_K = None
        if self.value is not None:
            values_K = self.value(hidden_KD.to(self.value.weight.dtype)).squeeze(-1)
        if self.logit_scale != 1.0:
            hidden_KD = hidden_KD * self.logit_scale
        return Output(hidden_KD=hidden_KD, projection_VD=head.weight, bias_V=head.bias, values_K=values_K)

    def saves(self, name: str) -> bool:
        """All weights; where adapters are trained, theirs and those of the value head."""
        return not self.adapted or ".lora_" in name or name.startswith("value.")

    @property
    def context(self) -> int:
        """The longest sequence in tokens that the model's configuration allows."""
        return int(self.model.config.max_position_embeddings)

    def advance(
        self,
        ids_M: Tensor,
        previous_ids_M: Tensor,  # noqa: ARG002
        positions_M: Tensor,
        attend: Attend,
        last_B: Tensor,
    ) -> Tensor:
        """The forward pass over new tokens of several conversations; see `Policy.advance`."""
        if self._sampling is None:
            self.sampling_choice = choose_forward(_decoder(self.model), _own_layers)
            self._sampling = self.sampling_choice.forward
            if self.sampling_choice.name != OWN:
                self._uncalled = (*uncalled(_decoder(self.model)),)
        # as in training, a module that somebody hooks is called from then on
        forward = self._sampling if all(map(is_bare, self._uncalled)) else self._through_own_layers
        hidden_MD = forward(ids_M, positions_M, attend)
        return self._logits(hidden_MD.index_select(0, last_B))

    def _through_own_layers(self, ids_M: Tensor, positions_M: Tensor, attend: Attend) -> Tensor:
        return _own_layers(_decoder(self.model), ids_M, positions_M, attend)

    def _logits(self, hidden_BD: Tensor) -> Tensor:
        """As the trainer computes them: half precision in float32, since bfloat16 has three digits and logits need
        more. The projection is converted piece by piece, so that no second copy of it is held."""
        head = _output_projection(self.model)
        if self.logit_scale != 1.0:
            hidden_BD = hidden_BD * self.logit_scale
        if head.weight.dtype not in (torch.bfloat16, torch.float16):
            return linear(hidden_BD, head.weight, head.bias)
        hidden_BD = hidden_BD.float()
        parts = [hidden_BD @ weight_WD.float().T for weight_WD in torch.split(head.weight, _WORDS_AT_ONCE)]
        logits_BV = torch.cat(parts, dim=-1)
        return logits_BV if head.bias is None else logits_BV + head.bias

    def _hidden(self, batch: Batch) -> Tensor:
        packed, quick = _Packed(batch, self.attention), self._plain_training()
        if quick is not None:
            return quick(batch.token_ids_M, batch.positions_M, packed.attend_tokens, batch.predictor_K)
        out = self.model.base_model(
            input_ids=batch.token_ids_M[None], position_ids=batch.positions_M[None], use_cache=False, packed=packed
        )
        hidden_MD: Tensor = out.last_hidden_state[0]
        return hidden_MD.index_select(0, batch.predictor_K)

    def _plain_training(self) -> PlainTraining | None:
        if not self._training_decided:
            self._training_decided = True
            self._training = plain_training(_decoder(self.model), self._through_own_layers)
        return self._training if self._training is not None and self._training.ready else None


class _Packed:
    """What our attention needs to know of a batch; handed through the model's layers to each of them."""

    def __init__(self, batch: Batch, attention: Attention) -> None:
        self.batch = batch
        self.groups: tuple[GroupSpan, ...] = group_spans(batch)
        self.few = _FEW * len(batch.predictor_K) <= sum(span.stop - span.continues for span in self.groups)
        self.longest = max(span.continues - span.start + run.length for span in self.groups for run in span.runs)
        self.fused = batch.token_ids_M.device.type == "cpu" and attention != "masked"
        self.masks = Masks(batch.token_ids_M.device)

    def attend(self, q_HME: Tensor, k_HME: Tensor, v_HME: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention (H, M, E) of one layer; a window that is wider than all sequences is none. Heads of keys and values
        are shared by as many of queries as there are more of those."""
        shared = q_HME.shape[0] // k_HME.shape[0]
        if shared > 1:
            k_HME, v_HME = (x.repeat_interleave(shared, 0) for x in (k_HME, v_HME))
        if window is not None and window >= self.longest:
            window = None
        if window is not None and window > longest_window(q_HME.device):
            raise TrainerError(
                f"a layer sees {window} tokens back, and a sequence of {self.longest} tokens is longer; a window as "
                "wide as that was not compared with the model's own: cut the sequences"
            )
        if self.fused and window is None:
            return packed_attention(q_HME, k_HME, v_HME, self.groups, scale)
        return masked_attention(q_HME, k_HME, v_HME, self.groups, scale, masks=self.masks, window=window)

    def attend_tokens(
        self, q_MHE: Tensor, k_MKE: Tensor, v_MKE: Tensor, *, scale: float, window: int | None, last: bool
    ) -> Tensor:
        """The same by tokens, see `AttendPacked`."""
        q_HME, k_KME, v_KME = (x.transpose(0, 1) for x in (q_MHE, k_MKE, v_MKE))
        if not last:
            return self.attend(q_HME, k_KME, v_KME, scale, window).transpose(0, 1).flatten(1)
        predictors = self.batch.predictor_K
        if self.few and self.fused and (window is None or window >= self.longest):
            groups, shared = chosen_groups(self.batch, self.groups, q_MHE.dtype), q_MHE.shape[1] // k_MKE.shape[1]
            k_HME, v_HME = (x.repeat_interleave(shared, 0) for x in (k_KME, v_KME))
            q_HKE = q_MHE.index_select(0, predictors).transpose(0, 1)
            return chosen_attention(q_HKE, k_HME, v_HME, groups, scale).transpose(0, 1).flatten(1)
        return self.attend(q_HME, k_KME, v_KME, scale, window).transpose(0, 1).flatten(1).index_select(0, predictors)


class _Sampled(NamedTuple):
    """What our attention needs to know of a step of sampling."""

    attend: Attend


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    packed: _Packed | _Sampled | None = None,
    **features: Any,
) -> tuple[Tensor, None]:
    """Our attention in the form that `transformers` calls: (1, heads, M, width) in, (1, M, heads, width) out."""
    name = type(module).__name__
    if packed is None:
        raise TrainerError(
            f"{name}: this model's attention is ours; call the HuggingFacePolicy with a batch, and sample with "
            "LocalEngine"
        )
    if attention_mask is not None or dropout or not getattr(module, "is_causal", True):
        raise TrainerError(f"{name}: attention here is causal, without another mask and without dropout")
    for feature, reason in _BEYOND_SOFTMAX.items():
        if features.get(feature) is not None:
            raise TrainerError(f"{name} {reason} ({feature}), which packed attention does not compute")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    if isinstance(packed, _Sampled):
        flat = (x[0].transpose(0, 1) for x in (query * scale, key, value))
        attended_MD = packed.attend(cast("int", module.layer_idx), *flat, window=sliding_window)
        return attended_MD.view(1, query.shape[2], query.shape[1], -1), None
    out_HME = packed.attend(query[0], key[0], value[0], scale, sliding_window)
    return out_HME.transpose(0, 1)[None], None


AttentionInterface.register(ATTENTION, _attention)


def _own_layers(base: Any, ids_M: Tensor, positions_M: Tensor, attend: Attend) -> Tensor:
    """Hidden states (M, D) of new tokens while sampling, as the model's own code computes them."""
    out = base(input_ids=ids_M[None], position_ids=positions_M[None], use_cache=False, packed=_Sampled(attend))
    hidden_MD: Tensor = out.last_hidden_state[0]
    return hidden_MD


# What is taken and what is refused.


def _decoder(model: Any) -> Any:
    """The layers, below adapters and without the output projection."""
    return getattr(model, "get_base_model", lambda: model)().base_model


def _output_projection(model: Any) -> nn.Linear:
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise ConfigError(f"{type(model).__name__} has no linear output projection; take a causal language model")
    return head


def _check_kind(model: PreTrainedModel) -> None:
    name, config = type(model).__name__, model.config
    _output_projection(model)
    others = sorted(set(getattr(config, "layer_types", None) or ()) - _PLAIN_LAYERS)
    if others:
        raise ConfigError(f"{name} has layers of {', '.join(others)}; only plain causal attention is computed here")
    moving = _rope_types(config) & _ROPE_BY_LENGTH
    if moving:
        raise ConfigError(
            f"{name} turns its positions by the longest sequence of a batch (rope_type {', '.join(moving)}), so that a "
            "sequence would depend on its neighbours"
        )
    softcap = getattr(config, "final_logit_softcapping", None)
    if softcap is not None:
        raise ConfigError(f"{name} caps its logits (final_logit_softcapping {softcap}), which is not computed here")


def _check_device(policy: HuggingFacePolicy) -> None:
    elsewhere = {str(parameter.device) for parameter in policy.parameters() if parameter.device.type != "cpu"}
    if elsewhere and policy.attention == "fused":
        raise ConfigError(
            f"the fused attention is computed on the CPU and the model is on {', '.join(sorted(elsewhere))}; set "
            "hf.attention to auto or masked"
        )


def _logit_scale(config: Any) -> float:
    """What the logits are multiplied by: Cohere's ``logit_scale`` and Granite's ``logits_scaling``, a divisor."""
    return float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)


def _rope_types(config: Any) -> set[str]:
    """One, or one for each kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]
    return {str(found["rope_type"]) for found in (parameters, *nested) if "rope_type" in found}


def _dropouts(model: PreTrainedModel) -> tuple[str, ...]:
    """Every dropout above 0, by the name of its module or setting; those of classifiers do not count."""
    settings = {
        name: value
        for name, value in vars(model.config).items()
        if name.endswith(("dropout", "pdrop")) and not name.startswith(("classifier", "summary"))
    }
    layers = {name: module.p for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
    return tuple(f"{name} ({share})" for name, share in (settings | layers).items() if share)


@torch.no_grad()
def _take_attention(policy: HuggingFacePolicy) -> None:
    """Make the model's attention ours, or leave the model as it was and say why."""
    model, training = policy.model, policy.model.training
    before = model.config._attn_implementation
    policy.eval()
    try:
        if before == ATTENTION:  # its configuration is that of a model which was taken before
            model.config._attn_implementation = "eager"
        compare(policy, policy.logit_scale, lambda: _replace_attention(model))
    except (ConfigError, TrainerError, KeyError, TypeError) as error:
        model.config._attn_implementation = before
        raise ConfigError(f"{type(model).__name__} cannot take a packed batch: {error}") from error
    finally:
        policy.train(training)


def _replace_attention(model: PreTrainedModel) -> None:
    model.set_attn_implementation(ATTENTION)
    if model.config._attn_implementation != ATTENTION:
        raise ConfigError("its attention does not go through the interface of transformers, so that it can be replaced")
