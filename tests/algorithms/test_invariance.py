"""Each check catches the mistakes it is there for, and stays silent on the right version of the same loss."""

import json
import math
from functools import partial

import pytest
import torch

from agentrl.algorithms import objectives, surrogates
from agentrl.algorithms.invariance import CHECKS, examine, examine_preset
from agentrl.algorithms.objectives import PolicyLoss
from agentrl.algorithms.presets import PRESETS
from agentrl.errors import ConfigError


def keep(values_T, mask_T):
    return torch.where(mask_T, values_T, 0.0)


def kept(logprobs_T, old_T, credit_T, mask_T):
    return keep(logprobs_T, mask_T), keep(old_T, mask_T).detach(), keep(credit_T, mask_T).detach()


def token_mean(loss_T, mask_T, total):
    return keep(loss_T, mask_T).sum() / total


# ---- losses that are right


def reinforce(*columns):
    x, _, a = kept(*columns)
    return -a * x


def weighted(*columns):
    """CISPO without a cap, written out."""
    x, old, a = kept(*columns)
    return -(x - old).clamp(max=5.0).exp().detach() * a * x


def clipped(*columns):
    """PPO with the dual clip, which leaves before exp."""
    x, old, a = kept(*columns)
    ratio = (x - old).detach().exp()
    bound = torch.where(a > 0, 1.2, 3.0)
    out = ((a > 0) & (ratio > 1.2)) | ((a < 0) & ((ratio < 0.8) | (ratio > 3.0)))
    capped = torch.where(ratio < 0.8, 0.8, bound)
    return -a * torch.where(out, capped, torch.where(out | (a == 0), 0.0, x - old).exp())


def with_statistics(*columns):
    x, old, a = kept(*columns)
    ratio = (x - old).detach().exp()
    return PolicyLoss(-a * x, torch.zeros_like(columns[3]), ratio)


def token_share(logprobs, old, credit, mask, *, num_tokens):
    return token_mean(reinforce(logprobs, old, credit, mask), mask, num_tokens)


def sequence_share(logprobs, old, credit, mask, sequence_T, num_sequences):
    loss = reinforce(logprobs, old, credit, mask)
    lengths = torch.zeros(int(sequence_T.max()) + 1, dtype=loss.dtype).index_add(0, sequence_T, mask.to(loss.dtype))
    return (loss / lengths[sequence_T].clamp(min=1)).sum() / num_sequences


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        return x.exp()

    @staticmethod
    def backward(ctx, upstream):
        return upstream * ctx.saved_tensors[0]


class WrongExp(Exp):
    @staticmethod
    def backward(ctx, upstream):
        return upstream


def by_hand(*columns, exp=Exp.apply):
    x, old, a = kept(*columns)
    return -a * exp((x - old).clamp(max=2.0))


RIGHT = {
    "reinforce": reinforce,
    "weighted": weighted,
    "clipped": clipped,
    "with_statistics": with_statistics,
    "token_share": token_share,
    "sequence_share": sequence_share,
    "sum": lambda *columns: reinforce(*columns).sum(),
    "in place of a name": partial(objectives.reinforce),
    "token with dual clip": partial(surrogates.ppo_dual_clip, clip_low=0.2, clip_high=0.2),
}

# ---- the same with a mistake


def masked_by_product(logprobs, old, credit, mask):
    return -credit.detach() * logprobs * mask


def where_after_exp(logprobs, old, credit, mask):
    return torch.where(mask, -credit.detach() * (logprobs - old.detach()).clamp(max=5.0).exp(), 0.0)


def garbage_in_the_mean(logprobs, old, credit, mask):
    return torch.where(mask, -(credit.detach() - 0 * credit.detach().mean()) * torch.where(mask, logprobs, 0.0), 0.0)


def mean_per_micro_batch(logprobs, old, credit, mask):
    return token_mean(reinforce(logprobs, old, credit, mask), mask, max(int(mask.sum()), 1))


def sequences_of_the_piece(logprobs, old, credit, mask, sequence_T):
    return sequence_share(logprobs, old, credit, mask, sequence_T, len(sequence_T[mask].unique()) or 1)


def whitened_in_the_piece(logprobs, old, credit, mask, *, num_tokens):
    kept_T = credit[mask].detach()
    centre = kept_T.mean() if len(kept_T) else 0.0
    return token_mean(-(credit.detach() - centre) * torch.where(mask, logprobs, 0.0), mask, num_tokens)


def mean_over_padded_length(logprobs, old, credit, mask):
    return reinforce(logprobs, old, credit, mask) / len(mask)


def length_with_padding(logprobs, old, credit, mask, sequence_T, num_sequences):
    """Divides by all tokens of the sequence, as mean(-1) over a padded row does."""
    loss = reinforce(logprobs, old, credit, mask)
    lengths = torch.bincount(sequence_T).to(loss.dtype)
    return (loss / lengths[sequence_T]).sum() / num_sequences


def untrained_sequences_counted(logprobs, old, credit, mask, sequence_T):
    return reinforce(logprobs, old, credit, mask) / (sequence_T.max() + 1)


def nothing_divided_by_nothing(logprobs, old, credit, mask, sequence_T, num_sequences):
    loss = reinforce(logprobs, old, credit, mask)
    count = int(sequence_T.max()) + 1
    lengths = torch.zeros(count, dtype=loss.dtype).index_add(0, sequence_T, mask.to(loss.dtype))
    return (torch.zeros(count, dtype=loss.dtype).index_add(0, sequence_T, loss) / lengths).sum() / num_sequences


def runs_as_sequences(logprobs, old, credit, mask, sequence_T):
    """Takes neighbours with one number for a sequence, which interleaved tokens are not."""
    loss = reinforce(logprobs, old, credit, mask)
    _, run_T, length = sequence_T.unique_consecutive(return_inverse=True, return_counts=True)
    trained = torch.zeros(len(length), dtype=loss.dtype).index_add(0, run_T, mask.to(loss.dtype))
    return loss / trained[run_T].clamp(min=1)


def shifted_by_one(logprobs, old, credit, mask):
    return -torch.where(mask, credit.detach().roll(1) * logprobs, 0.0)


def mixed_up(logprobs, old, credit, mask, sequence_T):
    """Counts lengths in the order in which sequences come, and looks them up by number."""
    loss = reinforce(logprobs, old, credit, mask)
    order = sequence_T[sequence_T.diff(prepend=sequence_T.new_tensor([-1])) != 0]
    lengths = torch.stack([(mask & (sequence_T == number)).sum() for number in order]).to(loss.dtype)
    return loss / lengths[sequence_T.clamp(max=len(order) - 1)].clamp(min=1)


def not_detached(*columns):
    """Claims CISPO's -sg[rho] A log pi."""
    x, old, a = kept(*columns)
    return -(x - old).clamp(max=5.0).exp() * a * x


def wrong_sign(*columns):
    return -reinforce(*columns)


def without_a_graph(*columns):
    with torch.no_grad():
        return reinforce(*columns)


def clip_on_the_wrong_side(*columns):
    """max of the two in place of min."""
    x, old, a = kept(*columns)
    ratio = (x - old).clamp(max=5.0).exp()
    return -torch.maximum(ratio * a, ratio.clamp(0.8, 1.2) * a)


def dual_clip_on_good_tokens(*columns):
    x, old, a = kept(*columns)
    ratio = (x - old).clamp(max=5.0).exp()
    return -torch.maximum(torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a), 3 * a)


def min_after_exp(*columns):
    x, old, a = kept(*columns)
    ratio = (x - old).exp()
    return -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a)


def credit_in_the_graph(logprobs, old, credit, mask):
    return torch.where(mask, -torch.where(mask, credit, 0.0) * torch.where(mask, logprobs, 0.0), 0.0)


def old_in_the_graph(logprobs, old, credit, mask):
    x, _, a = kept(logprobs, old, credit, mask)
    return -a * (x - torch.where(mask, old, 0.0)).clamp(max=2.0).exp()


def always_float32(*columns):
    return reinforce(*columns).float()


def squeezed(*columns):
    return reinforce(*columns).squeeze()


def ratio_against_itself(*columns):
    x, _, a = kept(*columns)
    return PolicyLoss(-a * (x - x.detach()).exp(), torch.zeros_like(columns[3]), (x - x.detach()).detach().exp())


WRONG = [
    (masked_by_product, "masked places", reinforce),
    (where_after_exp, "masked places", weighted),
    (garbage_in_the_mean, "masked places", reinforce),
    (mean_per_micro_batch, "micro-batches", token_share),
    (sequences_of_the_piece, "micro-batches", sequence_share),
    (whitened_in_the_piece, "micro-batches", token_share),
    (mean_over_padded_length, "padding", reinforce),
    (length_with_padding, "padding", sequence_share),
    (untrained_sequences_counted, "untrained sequence", sequence_share),
    (nothing_divided_by_nothing, "untrained sequence", sequence_share),
    (runs_as_sequences, "token order", sequence_share),
    (shifted_by_one, "token order", reinforce),
    (mixed_up, "sequence order", sequence_share),
    (partial(by_hand, exp=WrongExp.apply), "finite differences", by_hand),
    (not_detached, "ratio one", weighted),
    (wrong_sign, "ratio one", reinforce),
    (without_a_graph, "ratio one", reinforce),
    (dual_clip_on_good_tokens, "ratio one", clipped),
    (clip_on_the_wrong_side, "way back", clipped),
    (min_after_exp, "ratio overflow", clipped),
    (credit_in_the_graph, "constants", reinforce),
    (old_in_the_graph, "constants", clipped),
    (always_float32, "dtype and shape", reinforce),
    (squeezed, "dtype and shape", reinforce),
    (ratio_against_itself, "statistics", with_statistics),
]


def verdicts(loss, **keywords):
    return {finding.check: finding.verdict for finding in examine(loss, **keywords)}


def name_of(value):
    return getattr(value, "__name__", None) or (value if isinstance(value, str) else "wrong_backward")


@pytest.mark.parametrize(("wrong", "check", "right"), WRONG, ids=name_of)
def test_a_mistake_is_caught_by_the_check_that_is_for_it(wrong, check, right):
    assert verdicts(wrong)[check] == "fail"
    assert verdicts(right)[check] == "pass"


def test_every_check_has_a_mistake_to_catch():
    assert {check for _, check, _ in WRONG} == set(CHECKS)


@pytest.mark.parametrize("loss", RIGHT.values(), ids=RIGHT)
def test_what_is_right_fails_nothing(loss):
    found = verdicts(loss)
    assert list(found) == list(CHECKS)
    assert set(found.values()) <= {"pass", "not applicable"}


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_preset_passes(preset):
    found = examine_preset(preset)
    assert set(found) == ({"objective", "step"} | ({"value"} if preset.critic else set()))
    for findings in found.values():
        assert not [finding for finding in findings if finding.verdict == "fail"]
        by_name = {finding.check: finding for finding in findings}
        assert by_name["micro-batches"].deviation <= by_name["micro-batches"].tolerance <= 1e-6
        assert by_name["masked places"].deviation == by_name["masked places"].tolerance == 0.0
        assert by_name["finite differences"].verdict == "pass"


def test_the_clip_of_ppo_alone_has_a_limit_and_the_dual_clip_takes_it_away():
    clip = {"clip_low": 0.2, "clip_high": 0.2}
    assert verdicts(partial(objectives.ppo_clip, **clip))["ratio overflow"] == "limit"
    assert verdicts(partial(surrogates.ppo_dual_clip, **clip))["ratio overflow"] == "pass"


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (reinforce, "gradient -A"),
        (lambda *columns: 2.5 * reinforce(*columns), "gradient -A times 2.5"),
        (token_share, "gradient -A / T, T the trained tokens of the step"),
        (sequence_share, "gradient -A / (N |y|)"),
    ],
)
def test_the_scale_at_ratio_one_is_said(loss, words):
    assert next(finding.note for finding in examine(loss) if finding.check == "ratio one") == words


def test_garbage_is_named_with_its_column():
    finding = examine(masked_by_product)[0]
    assert (finding.check, finding.deviation, finding.note) == (
        "masked places",
        math.inf,
        "nan in logprobs_T of masked tokens",
    )


def test_an_error_on_another_layout_is_a_failure_with_its_words():
    def picky(logprobs, old, credit, mask):
        if logprobs.isnan().any():
            raise ValueError("NaN in logprobs")
        return reinforce(logprobs, old, credit, mask)

    finding = examine(picky)[0]
    assert (finding.verdict, finding.note) == ("fail", "it raised ValueError: NaN in logprobs")


def test_what_cannot_be_differenced_is_not_passed():
    found = {finding.check: finding for finding in examine(always_float32)}
    assert found["finite differences"].verdict == "not applicable"
    assert "float32" in found["finite differences"].note


def test_a_skipped_check_says_why_and_an_unknown_one_is_refused():
    found = {finding.check: finding for finding in examine(wrong_sign, skip={"ratio one": "a penalty"})}
    assert (found["ratio one"].verdict, found["ratio one"].note) == ("not applicable", "a penalty")
    with pytest.raises(ConfigError, match="no check 'ratio 1'; the checks are masked places"):
        examine(reinforce, skip={"ratio 1": ""})


def test_every_check_says_what_a_failure_means_and_where_it_was_seen():
    for check in CHECKS.values():
        assert "#" in check.meaning
        assert len(json.dumps(check.promise)) > 20
