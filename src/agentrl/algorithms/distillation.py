"""Losses that draw a student's next-token distribution to a teacher's, per token, over flat tokens.

Shapes: ``mask_T`` is boolean, True at the tokens that are trained; ``*_TV`` are logits of shape [T, V], and row t
says which token is expected at place t, that is, rows are shifted before they come here. ``*_TK`` are of shape
[T, K], K tokens of the vocabulary at each place. What stands at untrained places is not read. In the formulas

    p = softmax(teacher logits / temperature)        q = softmax(student logits / temperature)

Losses are in nats, in float32 (float64 where the student's logits are), 0 at untrained places, and nothing is
averaged. The teacher is constant. There is no factor of temperature squared.

Only ``max_tokens_per_chunk`` rows are ever held in float32, forward and backward, where each chunk is computed a
second time; the one tensor of [T, V] that is made is the gradient, in the dtype of the student's logits. The
default of 128 rows makes 78 MB of each such copy at a vocabulary of 151,936. The result does not depend on it.

A token that both give probability 0 adds 0. TrainerError is raised where a divergence is infinite, because the second
distribution of a KL excludes a token of the first, and where the teacher's scores are no distribution. A NaN of the
student comes out as NaN.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from agentrl.algorithms.divergences import chunked, divergence, log_probabilities
from agentrl.errors import ConfigError, TrainerError

Rest = Literal["bucket", "renormalize"]
"""What becomes of the probability outside of K tokens: one more outcome, or nothing, each side rescaled to sum to 1."""


class TopK(NamedTuple):
    """A teacher's log-probabilities of K distinct tokens at each place, and of all other tokens together.

    ``logprobs_TK`` are those of the full distribution at the temperature of the loss, not rescaled.
    ``rest_T`` is the log of the probability outside of them, -inf where there is none.
    """

    ids_TK: Tensor
    logprobs_TK: Tensor
    rest_T: Tensor


def sampled_reverse_kl(
    logprobs_T: Tensor, teacher_logprobs_T: Tensor, mask_T: Tensor, *, coefficient: float = 1.0
) -> Tensor:
    """On-policy distillation as credit for a policy gradient: what the teacher thinks of the student's tokens.

        A_t = -c (log pi_S(a_t) - log pi_T(a_t))

    With ``reinforce``, and tokens sampled from the student, the expected gradient is that of c KL(pi_S || pi_T) at
    each visited place; later places are not credited to earlier tokens (a discount of 0). Where student and teacher
    agree it is exactly 0.

    Args:
        logprobs_T: of the sampled tokens under the student, natural log; taken as constant.
        teacher_logprobs_T: of the same tokens in the same places under the teacher, at the same temperature.
        mask_T: True at trained tokens.
        coefficient: c, above 0; 1 in the source.

    Returns:
        One advantage per token, 0 at untrained ones, without gradient.

    Raises:
        TrainerError: a teacher's score of a trained token is not finite, or shapes differ.

    Source: Thinking Machines 2025, "On-Policy Distillation".

    >>> sampled_reverse_kl(torch.tensor([-1.0, -2.0]), torch.tensor([-0.5, -3.0]), torch.tensor([True, True])).tolist()
    [0.5, -1.0]
    """
    _check_mask(mask_T, logprobs_T=logprobs_T, teacher_logprobs_T=teacher_logprobs_T)
    if not (math.isfinite(coefficient) and coefficient > 0):
        raise ConfigError(f"coefficient is {coefficient!r}; give a finite number above 0, for instance 1.0")
    _check_teacher(mask_T & ~teacher_logprobs_T.isfinite())
    return torch.where(mask_T, coefficient * (teacher_logprobs_T - logprobs_T), 0.0).detach()


def forward_kl(
    student_logits_TV: Tensor,
    teacher_logits_TV: Tensor,
    mask_T: Tensor,
    *,
    temperature: float = 1.0,
    max_tokens_per_chunk: int = 128,
) -> Tensor:
    """``loss_t = KL(p || q)``, teacher first: the student has to cover whatever the teacher may say.

    Source: Hinton et al. 2015, arXiv 1503.02531, without its factor of temperature squared.

    >>> student, teacher = torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([[0.5, 0.4, 0.1]]).log()
    >>> [round(kl(student, teacher, torch.tensor([True])).item(), 6) for kl in (forward_kl, reverse_kl)]
    [0.109023, 0.096901]
    """
    return generalized_jsd(
        student_logits_TV,
        teacher_logits_TV,
        mask_T,
        beta=0.0,
        temperature=temperature,
        max_tokens_per_chunk=max_tokens_per_chunk,
    )


def reverse_kl(
    student_logits_TV: Tensor,
    teacher_logits_TV: Tensor,
    mask_T: Tensor,
    *,
    temperature: float = 1.0,
    max_tokens_per_chunk: int = 128,
) -> Tensor:
    """``loss_t = KL(q || p)``, student first: the student may only say what the teacher might.

    Source: Gu et al. 2023, arXiv 2306.08543, here at each token and not over sequences.
    """
    return generalized_jsd(
        student_logits_TV,
        teacher_logits_TV,
        mask_T,
        beta=1.0,
        temperature=temperature,
        max_tokens_per_chunk=max_tokens_per_chunk,
    )


def generalized_jsd(
    student_logits_TV: Tensor,
    teacher_logits_TV: Tensor,
    mask_T: Tensor,
    *,
    beta: float,
    temperature: float = 1.0,
    max_tokens_per_chunk: int = 128,
) -> Tensor:
    """Generalised Jensen-Shannon divergence, between the two KLs.

        m = beta p + (1 - beta) q        loss_t = beta KL(p || m) + (1 - beta) KL(q || m)

    and by convention KL(p || q) at beta = 0, KL(q || p) at beta = 1. The formula itself tends to 0 at both ends
    (divided by beta, or 1 - beta, to those KLs), so losses just inside are much smaller than at the ends. Within,
    it is at most the entropy of (beta, 1 - beta): log 2 at beta = 0.5.

    Args:
        student_logits_TV: any float dtype; at trained places finite or -inf.
        teacher_logits_TV: likewise, over the same vocabulary.
        mask_T: True at trained tokens.
        beta: in [0, 1].
        temperature: of both, above 0.
        max_tokens_per_chunk: rows worked on at once, at least 1.

    Raises:
        TrainerError: shapes differ, the mask is not boolean, or the teacher is not finite at a trained place.
        ConfigError: beta, temperature or chunk size out of range.

    Source: Agarwal et al. 2023, arXiv 2306.13649 (GKD), equation 1.
    """
    _check_settings(beta, temperature, max_tokens_per_chunk)
    _check_logits(student_logits_TV, mask_T)
    if teacher_logits_TV.shape != student_logits_TV.shape:
        raise TrainerError(
            f"teacher logits have shape {tuple(teacher_logits_TV.shape)} and the student's "
            f"{tuple(student_logits_TV.shape)}; they need one vocabulary, so cut padding entries off the larger one"
        )

    def row_loss(student_CV: Tensor, teacher_CV: Tensor) -> Tensor:
        student = log_probabilities(student_CV, temperature, student_CV.dtype)
        return divergence(student, log_probabilities(teacher_CV, temperature, student_CV.dtype), beta)

    loss_T = chunked(row_loss, student_logits_TV, (teacher_logits_TV,), mask_T, max_tokens_per_chunk)
    suspects = (mask_T & loss_T.detach().isnan()).nonzero().squeeze(1)
    _check_teacher(_scatter(mask_T, suspects, ~teacher_logits_TV[suspects].logsumexp(-1).isfinite()))
    return loss_T


def top_k_divergence(
    student_logits_TV: Tensor,
    teacher: TopK,
    mask_T: Tensor,
    *,
    rest: Rest,
    beta: float,
    temperature: float = 1.0,
    max_tokens_per_chunk: int = 128,
) -> Tensor:
    """``generalized_jsd`` on K tokens of the vocabulary per place, when the teacher's other scores are not at hand.

    With "bucket" all other tokens are one more outcome, of probability 1 minus the sum, on both sides. It is never
    above the full divergence and is 0 only where all K probabilities agree. With "renormalize" both sides are
    rescaled to sum to 1 over the K tokens: the student's probability outside of them goes unpunished. With all
    tokens of the vocabulary, both are the full divergence. A sum over K tokens that does neither is no divergence
    (its least value is not at p = q, it can be negative) and is not offered.

    Args:
        student_logits_TV: as in ``generalized_jsd``.
        teacher: the teacher's side, of ``top_k`` or ``top_k_from_logprobs``. The usual K tokens are the teacher's
            likeliest; any distinct ones will do, for instance the student's own.
        mask_T: True at trained tokens.
        rest: what becomes of the probability outside; there is no default.
        beta: 0 for KL(p || q), 1 for KL(q || p), or within.
        temperature: of the student; the teacher's log-probabilities are taken at it already.
        max_tokens_per_chunk: rows worked on at once, at least 1.

    Raises:
        TrainerError: shapes differ, an id is outside of the vocabulary or occurs twice at a place, or the teacher's
            scores are not log-probabilities.
        ConfigError: a setting is out of range, or "renormalize" with one token, where every loss is 0.
    """
    _check_settings(beta, temperature, max_tokens_per_chunk)
    _check_logits(student_logits_TV, mask_T)
    _check_top_k(teacher, student_logits_TV.shape[1], mask_T, rest)
    row_loss = _bucket_rows if rest == "bucket" else _renormalized_rows

    def rows(student_CV: Tensor, *teacher_rows: Tensor) -> Tensor:
        return row_loss(student_CV, *teacher_rows, beta=beta, temperature=temperature)

    return chunked(rows, student_logits_TV, tuple(teacher), mask_T, max_tokens_per_chunk)


def top_k(teacher_logits_TV: Tensor, k: int, *, temperature: float = 1.0, max_tokens_per_chunk: int = 128) -> TopK:
    """The teacher's k likeliest tokens at each place, with the rest summed exactly. Of equals, any may be taken.

    Raises:
        ConfigError: k is not in [1, V], or another setting is out of range.
    """
    _check_settings(0.0, temperature, max_tokens_per_chunk)
    if not 1 <= k <= teacher_logits_TV.shape[-1]:
        raise ConfigError(
            f"k is {k}; give a number of tokens between 1 and the {teacher_logits_TV.shape[-1]} there are"
        )
    chunks = [_top_k(chunk, k, temperature) for chunk in torch.split(teacher_logits_TV.detach(), max_tokens_per_chunk)]
    return TopK(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))


def top_k_from_logprobs(ids_TK: Tensor, logprobs_TK: Tensor) -> TopK:
    """Scores as an engine sends them, ids and log-probabilities of shape [T, K], with the rest as 1 minus their sum.

    That difference is not known below the resolution of the float (1.2e-7 in float32), which is its least value
    here: a rest of 0 would make the reverse KL infinite for a rounding error.
    """
    logprobs_TK = logprobs_TK.detach().to(torch.promote_types(logprobs_TK.dtype, torch.float32))
    least = torch.finfo(logprobs_TK.dtype).eps
    return TopK(ids_TK, logprobs_TK, (1 - logprobs_TK.exp().sum(-1)).clamp(min=least).log())


def _top_k(teacher_CV: Tensor, k: int, temperature: float) -> TopK:
    logprobs_CV = log_probabilities(teacher_CV, temperature, torch.promote_types(teacher_CV.dtype, torch.float32))
    logprobs_CK, ids_CK = logprobs_CV.topk(k, dim=-1)
    return TopK(ids_CK, logprobs_CK, logprobs_CV.scatter(1, ids_CK, -math.inf).logsumexp(-1))


def _bucket_rows(
    student_CV: Tensor, ids_CK: Tensor, teacher_CK: Tensor, teacher_rest_C: Tensor, *, beta: float, temperature: float
) -> Tensor:
    logprobs_CV = log_probabilities(student_CV, temperature, student_CV.dtype)
    rest_C = logprobs_CV.scatter(1, ids_CK, -math.inf).logsumexp(-1)
    student = torch.cat([logprobs_CV.gather(1, ids_CK), rest_C[:, None]], dim=-1)
    teacher = torch.cat([teacher_CK, teacher_rest_C[:, None]], dim=-1).to(student.dtype)
    return divergence(student, teacher, beta)


def _renormalized_rows(
    student_CV: Tensor, ids_CK: Tensor, teacher_CK: Tensor, _: Tensor, *, beta: float, temperature: float
) -> Tensor:
    student = log_probabilities(student_CV.gather(1, ids_CK), temperature, student_CV.dtype)
    return divergence(student, log_probabilities(teacher_CK, 1.0, student.dtype), beta)


def _scatter(mask_T: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    return torch.zeros_like(mask_T).index_put((rows,), values)


def _check_mask(mask_T: Tensor, **tensors: Tensor) -> None:
    if mask_T.dtype != torch.bool:
        raise TrainerError(f"mask_T has dtype {mask_T.dtype}; give booleans, for instance weight_T != 0")
    for name, tensor in tensors.items():
        if tensor.shape != mask_T.shape or tensor.dim() != 1:
            raise TrainerError(
                f"{name} has shape {tuple(tensor.shape)} and mask_T {tuple(mask_T.shape)}; "
                "give one entry per token, flat, in both"
            )


def _check_logits(student_TV: Tensor, mask_T: Tensor) -> None:
    if student_TV.dim() != 2:
        raise TrainerError(
            f"student logits have shape {tuple(student_TV.shape)}; give flat tokens by vocabulary, [T, V]"
        )
    _check_mask(mask_T, student_logits_TV=student_TV[:, 0])


def _check_settings(beta: float, temperature: float, max_tokens_per_chunk: int) -> None:
    if not 0.0 <= beta <= 1.0:
        raise ConfigError(f"beta is {beta!r}; give 0 for forward KL, 1 for reverse KL, or a number between")
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError(f"temperature is {temperature!r}; give a finite number above 0, for instance 1.0")
    if max_tokens_per_chunk < 1:
        raise ConfigError(f"max_tokens_per_chunk is {max_tokens_per_chunk}; give at least 1, for instance 128")


def _check_teacher(broken_T: Tensor) -> None:
    if bool(broken_T.any()):
        raise TrainerError(
            f"the teacher's scores at trained token {int(broken_T.nonzero()[0])} are not finite log-probabilities that "
            "sum to 1; score the token again, or take it out of the mask"
        )


def _check_top_k(teacher: TopK, vocabulary: int, mask_T: Tensor, rest: Rest) -> None:
    num_tokens, k = len(mask_T), teacher.ids_TK.shape[-1]
    if rest not in ("bucket", "renormalize"):
        raise ConfigError(f"rest is {rest!r}; write 'bucket' or 'renormalize'")
    if rest == "renormalize" and k == 1:
        raise ConfigError("one token rescaled to sum to 1 has probability 1 on both sides; give K of at least 2")
    shapes = [tuple(part.shape) for part in teacher]
    if shapes != [(num_tokens, k), (num_tokens, k), (num_tokens,)]:
        raise TrainerError(f"shapes of the teacher's top k are {shapes} for {num_tokens} tokens; give [T, K] and [T]")
    ids = teacher.ids_TK[mask_T].sort(-1).values
    if bool((ids < 0).any() | (ids >= vocabulary).any() | (ids.diff(dim=-1) == 0).any()):
        raise TrainerError(f"ids of the teacher's top k must be distinct at each place, between 0 and {vocabulary - 1}")
    total_T = torch.cat([teacher.logprobs_TK, teacher.rest_T[:, None]], dim=-1).exp().sum(-1)
    # NaN fails the comparison too. Engines round log-probabilities to about three digits.
    _check_teacher(mask_T & ~((total_T - 1).abs() < 1e-2))
