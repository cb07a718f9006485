"""Distillation losses against naive sums over the vocabulary, autograd without chunks, and enumeration."""

import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from agentrl.algorithms.distillation import (
    TopK,
    forward_kl,
    generalized_jsd,
    reverse_kl,
    sampled_reverse_kl,
    top_k,
    top_k_divergence,
    top_k_from_logprobs,
)
from agentrl.algorithms.objectives import reinforce
from agentrl.algorithms.reduce import token_mean
from agentrl.errors import ConfigError, TrainerError

BETAS = [0.0, 0.1, 0.5, 0.9, 1.0]
every_beta = pytest.mark.parametrize("beta", BETAS)
every_rest = pytest.mark.parametrize("rest", ["bucket", "renormalize"])


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def logits(probabilities):
    """One token, shifted so that normalisation is tested too."""
    return tensor([probabilities]).log() + 0.7


def random_logits(*shape, seed=0, dtype=torch.float64):
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def ones(num_tokens):
    return torch.ones(num_tokens, dtype=torch.bool)


def plain_softmax(row, temperature=1.0):
    weights = [math.exp(x / temperature) for x in row]
    return [w / sum(weights) for w in weights]


def plain_kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def plain_jsd(p, q, beta):
    """Teacher p, student q, by GKD's convention."""
    if beta in (0.0, 1.0):
        return plain_kl(p, q) if beta == 0.0 else plain_kl(q, p)
    m = [beta * a + (1 - beta) * b for a, b in zip(p, q, strict=True)]
    return beta * plain_kl(p, m) + (1 - beta) * plain_kl(q, m)


def plain_top_k(p, q, beta, rest, ids):
    p, q = [[side[i] for i in ids] for side in (p, q)]
    if rest == "bucket":
        return plain_jsd([*p, 1 - sum(p)], [*q, 1 - sum(q)], beta)
    return plain_jsd([a / sum(p) for a in p], [b / sum(q) for b in q], beta)


ROW = st.lists(st.floats(-6, 6), min_size=4, max_size=4)
ROWS = st.lists(st.tuples(ROW, ROW, st.booleans()), min_size=1, max_size=7)


@settings(max_examples=40, deadline=None)
@given(rows=ROWS, beta=st.sampled_from(BETAS), temperature=st.sampled_from([0.5, 1.0, 2.0]), chunk=st.integers(1, 8))
def test_agrees_with_a_loop_over_the_vocabulary(rows, beta, temperature, chunk):
    student, teacher, mask = zip(*rows, strict=True)
    loss = generalized_jsd(
        tensor(student),
        tensor(teacher),
        torch.tensor(mask),
        beta=beta,
        temperature=temperature,
        max_tokens_per_chunk=chunk,
    )
    expected = [
        plain_jsd(plain_softmax(p, temperature), plain_softmax(q, temperature), beta) if kept else 0.0
        for q, p, kept in rows
    ]
    assert loss.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("student", "teacher", "forward", "reverse", "jsd"),
    [
        ([0.7, 0.2, 0.1], [0.5, 0.4, 0.1], 0.109023, 0.096901, 0.025362),
        ([0.4, 0.4, 0.2], [0.7, 0.2, 0.1], 0.183787, 0.192042, 0.046201),
    ],
)
def test_worked_values(student, teacher, forward, reverse, jsd):
    # .5 ln(5/7) + .4 ln 2 = .109023, and so on; the directions are told apart.
    rows = logits(student), logits(teacher), ones(1)
    assert forward_kl(*rows).item() == pytest.approx(forward, abs=1e-6)
    assert reverse_kl(*rows).item() == pytest.approx(reverse, abs=1e-6)
    assert generalized_jsd(*rows, beta=0.5).item() == pytest.approx(jsd, abs=1e-6)
    swapped = logits(teacher), logits(student), ones(1)
    assert forward_kl(*swapped).item() == pytest.approx(reverse, abs=1e-6)


def naive(student, teacher, beta):
    """All rows at once, by autograd."""
    log_q, log_p = student.log_softmax(-1), teacher.log_softmax(-1)
    q, p = log_q.exp(), log_p.exp()
    if beta == 0.0:
        return (p * (log_p - log_q)).sum(-1)
    if beta == 1.0:
        return (q * (log_q - log_p)).sum(-1)
    log_m = (beta * p + (1 - beta) * q).log()
    return (beta * p * (log_p - log_m) + (1 - beta) * q * (log_q - log_m)).sum(-1)


@every_beta
@pytest.mark.parametrize("chunk", [3, 100])
def test_gradient_is_that_of_the_naive_formula(beta, chunk):
    student, teacher = random_logits(7, 11).requires_grad_(), random_logits(7, 11, seed=1)
    weight, mask = torch.linspace(-1, 2, 7, dtype=torch.float64), torch.arange(7) != 4
    loss = generalized_jsd(student, teacher, mask, beta=beta, temperature=1.7, max_tokens_per_chunk=chunk)
    expected = torch.where(mask, naive(student / 1.7, teacher / 1.7, beta), 0.0)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-14)
    (gradient,) = torch.autograd.grad((loss * weight).sum(), student)
    (exact,) = torch.autograd.grad((expected * weight).sum(), student)
    torch.testing.assert_close(gradient, exact, rtol=1e-10, atol=1e-13)


def test_gradients_by_hand():
    # q - p for the forward KL; q (ln q/p - KL) for the reverse one
    student, teacher = logits([0.7, 0.2, 0.1]).requires_grad_(), logits([0.5, 0.4, 0.1])
    forward = torch.autograd.grad(forward_kl(student, teacher, ones(1)).sum(), student)[0]
    assert forward[0].tolist() == pytest.approx([0.2, -0.2, 0.0], abs=1e-12)
    reverse = torch.autograd.grad(reverse_kl(student, teacher, ones(1)).sum(), student)[0]
    kl = 0.7 * math.log(1.4) + 0.2 * math.log(0.5)
    expected = [0.7 * (math.log(1.4) - kl), 0.2 * (math.log(0.5) - kl), 0.1 * (0 - kl)]
    assert reverse[0].tolist() == pytest.approx(expected, abs=1e-12)


TEACHER = random_logits(6, 9, seed=1)
FULL = {"forward": forward_kl, "reverse": reverse_kl, "beta=0.3": partial(generalized_jsd, beta=0.3)}


def with_top_k(student, teacher_logits, mask, *, rest, **settings):
    return top_k_divergence(student, top_k(teacher_logits.double(), 4), mask, rest=rest, **settings)


TOP = {
    f"{rest} beta={beta}": partial(with_top_k, rest=rest, beta=beta)
    for rest, beta in itertools.product(["bucket", "renormalize"], [0.0, 0.3, 1.0])
}
every_divergence = pytest.mark.parametrize("divergence", (FULL | TOP).values(), ids=FULL | TOP)


def value_and_gradient(divergence, student, teacher, mask, **settings):
    student = student.clone().requires_grad_()
    loss = divergence(student, teacher, mask, **settings)
    return loss.detach(), torch.autograd.grad(loss.sum(), student)[0]


@every_divergence
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_size_of_a_chunk_changes_nothing(divergence, dtype):
    rows = random_logits(6, 9, dtype=dtype), TEACHER.to(dtype), ones(6)
    whole = value_and_gradient(divergence, *rows, max_tokens_per_chunk=1000)
    for chunk in (1, 2, 4):
        for got, expected in zip(value_and_gradient(divergence, *rows, max_tokens_per_chunk=chunk), whole, strict=True):
            # Not to the bit: exp and log round differently at the end of a vector register.
            torch.testing.assert_close(got, expected, rtol=8 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)


@every_divergence
@pytest.mark.parametrize("poison", [math.nan, -math.inf, 1e9])
def test_what_stands_behind_the_mask_changes_nothing_to_the_bit(divergence, poison):
    mask = torch.tensor([True, False, True, True, False, True])

    def run(hidden):
        student, teacher = random_logits(6, 9), TEACHER.clone()
        student[~mask], teacher[~mask] = hidden, hidden
        return value_and_gradient(divergence, student, teacher, mask)

    for clean, poisoned in zip(run(0.0), run(poison), strict=True):
        assert torch.equal(clean, poisoned)
        assert (poisoned[~mask] == 0).all()


def test_multiplying_by_the_mask_would_fail_that_check():
    # Negative control: NaN * 0 is NaN.
    student = random_logits(2, 3)
    student[1] = math.nan
    assert (naive(student, TEACHER[:2, :3], 0.0) * torch.tensor([1.0, 0.0])).isnan().tolist() == [False, True]


@every_divergence
def test_gradient_agrees_with_finite_differences(divergence):
    student, mask, step = random_logits(2, 9), ones(2), 1e-6
    _, gradient = value_and_gradient(divergence, student, TEACHER[:2], mask)
    for entry in range(9):
        moved = torch.zeros_like(student)
        moved[:, entry] = step
        up, down = (divergence(student + sign * moved, TEACHER[:2], mask) for sign in (1, -1))
        torch.testing.assert_close(gradient[:, entry], (up - down) / (2 * step), rtol=1e-5, atol=1e-8)


@every_divergence
def test_a_student_equal_to_the_teacher_has_no_loss_and_no_gradient(divergence):
    loss, gradient = value_and_gradient(divergence, TEACHER, TEACHER, ones(6))
    assert loss.tolist() == pytest.approx([0.0] * 6, abs=1e-14)
    assert gradient.abs().max() < 1e-14
    # Negative control: one place later is another teacher.
    assert divergence(TEACHER, TEACHER.roll(1, 0), ones(6)).min() > 0.01


@every_divergence
def test_only_the_student_gets_a_gradient(divergence):
    student, teacher = random_logits(6, 9).requires_grad_(), TEACHER.clone().requires_grad_()
    divergence(student, teacher, ones(6)).sum().backward()
    assert student.grad is not None
    assert teacher.grad is None


@every_divergence
def test_a_nan_of_the_student_comes_out_at_its_own_token(divergence):
    student = random_logits(6, 9)
    student[2] = math.nan
    assert divergence(student, TEACHER, ones(6)).isnan().tolist() == [False, False, True, False, False, False]


@every_divergence
def test_low_precision_logits_are_worked_on_in_single(divergence):
    student = random_logits(6, 9).bfloat16()
    loss, gradient = value_and_gradient(divergence, student, TEACHER, ones(6))
    exact, exact_gradient = value_and_gradient(divergence, student.float(), TEACHER, ones(6))
    assert (loss.dtype, gradient.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(loss, exact)
    assert torch.equal(gradient, exact_gradient.bfloat16())


@every_divergence
def test_large_logits_stay_finite(divergence):
    # Log-probabilities of -2000 underflow to probability 0 and do not turn into 0 * inf.
    student, teacher = torch.zeros(2, 9), torch.zeros(2, 9)
    student[:, 0], teacher[0, 1], teacher[1, 0] = 2000.0, 2000.0, 2000.0
    for part in value_and_gradient(divergence, student, teacher, ones(2)):
        assert part.isfinite().all()


@every_divergence
def test_a_token_that_both_exclude_counts_for_nothing(divergence):
    # As padding entries of the vocabulary do.
    student, teacher = random_logits(6, 9), TEACHER
    padding = torch.full((6, 2), -math.inf, dtype=torch.float64)
    loss, gradient = value_and_gradient(divergence, student, teacher, ones(6))
    wide = value_and_gradient(divergence, torch.cat([student, padding], -1), torch.cat([teacher, padding], -1), ones(6))
    torch.testing.assert_close(wide[0], loss, rtol=1e-13, atol=0)
    torch.testing.assert_close(wide[1][:, :9], gradient, rtol=1e-12, atol=1e-15)
    assert (wide[1][:, 9:] == 0).all()


def test_a_token_that_one_side_excludes():
    without = tensor([[0.0, 0.0, -math.inf]])
    uniform = tensor([[0.0, 0.0, 0.0]])
    # KL of (1/2, 1/2, 0) from thirds: ln 1.5, whichever is first
    assert forward_kl(uniform, without, ones(1)).item() == pytest.approx(math.log(1.5))
    assert reverse_kl(without, uniform, ones(1)).item() == pytest.approx(math.log(1.5))
    for kl, pair in ((forward_kl, (without, uniform)), (reverse_kl, (uniform, without))):
        with pytest.raises(TrainerError, match="trained token 0 is infinite"):
            kl(*pair, ones(1))
    for pair in ((without, uniform), (uniform, without)):
        loss, gradient = value_and_gradient(partial(generalized_jsd, beta=0.3), *pair, ones(1))
        assert 0 < loss.item() < math.log(2)
        assert gradient.isfinite().all()


@settings(max_examples=25, deadline=None)
@given(rows=st.tuples(ROW, ROW), beta=st.floats(0.01, 0.99))
def test_the_mixture_is_bounded_and_symmetric(rows, beta):
    a, b = (tensor([row]) for row in rows)
    value = generalized_jsd(a, b, ones(1), beta=beta).item()
    bound = -beta * math.log(beta) - (1 - beta) * math.log(1 - beta)
    assert -1e-12 <= value <= bound + 1e-12
    assert generalized_jsd(b, a, ones(1), beta=1 - beta).item() == pytest.approx(value, abs=1e-12)


def test_the_ends_of_the_mixture_jump():
    rows = logits([0.7, 0.2, 0.1]), logits([0.5, 0.4, 0.1]), ones(1)
    small = 1e-5
    assert generalized_jsd(*rows, beta=small).item() / small == pytest.approx(0.109023, rel=1e-3)
    assert generalized_jsd(*rows, beta=1 - small).item() / small == pytest.approx(0.096901, rel=1e-3)
    assert generalized_jsd(*rows, beta=0.0).item() == pytest.approx(0.109023, abs=1e-6)


def test_temperature_flattens_both_sides():
    # Logits 2 ln x at temperature 2 are ln x.
    student, teacher = 2 * logits([0.7, 0.2, 0.1]), 2 * logits([0.5, 0.4, 0.1])
    assert forward_kl(student, teacher, ones(1), temperature=2.0).item() == pytest.approx(0.109023, abs=1e-6)
    # Negative control: nothing makes up for it.
    assert forward_kl(student, teacher, ones(1)).item() > 0.2


class Sizes(TorchDispatchMode):
    """Records how many entries the tensors have that operations make, by dtype."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {id(x) for x in args if isinstance(x, torch.Tensor)}
        view = torch.Tag.inplace_view in function.tags or function.is_view
        for made in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(made, torch.Tensor) and not view and id(made) not in given:
                self.made.append((made.dtype, made.numel()))
        return result

    def most(self, dtype):
        return max((numel for made, numel in self.made if made == dtype), default=0)


@every_divergence
def test_no_copy_of_all_logits_is_made_but_the_gradient(divergence):
    num_tokens, vocabulary, chunk = 64, 50, 4
    student = random_logits(num_tokens, vocabulary).bfloat16().requires_grad_()
    teacher = random_logits(num_tokens, vocabulary, seed=1)
    with Sizes() as forward:
        loss = divergence(student, teacher, ones(num_tokens), max_tokens_per_chunk=chunk).sum()
    with Sizes() as backward:
        loss.backward()
    for sizes in (forward, backward):
        assert sizes.most(torch.float32) <= (chunk + 1) * vocabulary
    assert [numel for dtype, numel in backward.made if numel >= num_tokens * vocabulary] == [num_tokens * vocabulary]
    assert backward.most(torch.bfloat16) == num_tokens * vocabulary
    # Negative control: the naive formula is seen to make them.
    with Sizes() as plain:
        naive(student.float(), teacher.float(), 0.0)
    assert plain.most(torch.float32) == num_tokens * vocabulary


@settings(max_examples=40, deadline=None)
@given(rows=ROWS, beta=st.sampled_from(BETAS), rest=st.sampled_from(["bucket", "renormalize"]), k=st.integers(2, 3))
def test_top_k_agrees_with_a_loop_over_the_tokens(rows, beta, rest, k):
    student, teacher, mask = zip(*rows, strict=True)
    scores = top_k(tensor(teacher), k)
    loss = top_k_divergence(tensor(student), scores, torch.tensor(mask), rest=rest, beta=beta, max_tokens_per_chunk=2)
    expected = [
        plain_top_k(plain_softmax(p), plain_softmax(q), beta, rest, ids) if kept else 0.0
        for (q, p, kept), ids in zip(rows, scores.ids_TK.tolist(), strict=True)
    ]
    assert loss.tolist() == pytest.approx(expected, abs=1e-9)


@every_beta
@every_rest
def test_all_tokens_are_the_full_divergence(beta, rest):
    student, mask = random_logits(6, 9), torch.arange(6) != 1
    full = value_and_gradient(partial(generalized_jsd, beta=beta, temperature=1.3), student, TEACHER, mask)
    scores = top_k(TEACHER, 9, temperature=1.3)
    assert scores.rest_T.isneginf().all()

    def divergence(student, teacher, mask):
        return top_k_divergence(student, teacher, mask, rest=rest, beta=beta, temperature=1.3)

    for got, expected in zip(value_and_gradient(divergence, student, scores, mask), full, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-13)


@settings(max_examples=25, deadline=None)
@given(rows=st.tuples(ROW, ROW), beta=st.sampled_from(BETAS), k=st.integers(1, 3))
def test_a_bucket_never_adds_divergence(rows, beta, k):
    student, teacher = (tensor([row]) for row in rows)
    full = generalized_jsd(student, teacher, ones(1), beta=beta).item()
    part = top_k_divergence(student, top_k(teacher, k), ones(1), rest="bucket", beta=beta).item()
    assert -1e-12 <= part <= full + 1e-12


def test_reverse_kl_on_the_students_likeliest_token():
    # Sum over one token only: .5 ln(.5/.8) = -.235002, no divergence. With the rest: + .5 ln(.5/.2) = .223144
    teacher = TopK(torch.tensor([[0]]), tensor([[0.8]]).log(), tensor([0.2]).log())
    student = logits([0.5, 0.3, 0.2]).requires_grad_()
    loss = top_k_divergence(student, teacher, ones(1), rest="bucket", beta=1.0)
    assert loss.item() == pytest.approx(0.223144, abs=1e-6)
    assert reverse_kl(student, logits([0.8, 0.1, 0.1]), ones(1)).item() == pytest.approx(0.233211, abs=1e-6)
    # q (ln q/p - KL) on both outcomes; the rest is shared 3:2
    gradient = torch.autograd.grad(loss.sum(), student)[0][0].tolist()
    inside, outside = (0.5 * (math.log(ratio) - loss.item()) for ratio in (0.5 / 0.8, 0.5 / 0.2))
    assert gradient == pytest.approx([inside, 0.6 * outside, 0.4 * outside], abs=1e-9)


def test_rescaling_leaves_probability_outside_unpunished():
    # The student agrees on the two tokens, 5:4, and says something else half of the time.
    student, teacher = logits([0.25, 0.2, 0.55]), top_k(logits([0.5, 0.4, 0.1]), 2)
    assert top_k_divergence(student, teacher, ones(1), rest="renormalize", beta=0.0).item() == pytest.approx(
        0.0, abs=1e-12
    )
    # .9 ln(.9/.45) + .1 ln(.1/.55)
    expected = 0.9 * math.log(2) + 0.1 * math.log(0.1 / 0.55)
    assert top_k_divergence(student, teacher, ones(1), rest="bucket", beta=0.0).item() == pytest.approx(expected)


def test_top_k_takes_the_likeliest_and_sums_the_rest():
    scores = top_k(logits([0.1, 0.5, 0.15, 0.25]), 2)
    assert scores.ids_TK.tolist() == [[1, 3]]
    assert scores.logprobs_TK[0].exp().tolist() == pytest.approx([0.5, 0.25])
    assert scores.rest_T.exp().item() == pytest.approx(0.25)
    received = top_k_from_logprobs(scores.ids_TK, scores.logprobs_TK)
    assert received.rest_T.item() == pytest.approx(math.log(0.25))


def test_scores_that_sum_to_one_after_rounding_keep_a_rest():
    received = top_k_from_logprobs(torch.tensor([[0, 1]]), torch.tensor([[0.0, -30.0]]))
    assert received.rest_T.item() == pytest.approx(math.log(2**-23))
    student = torch.zeros(1, 5)
    assert top_k_divergence(student, received, ones(1), rest="bucket", beta=1.0).isfinite().all()


def test_sampled_reverse_kl_on_exact_numbers():
    # -(-1.2 - -.7)
    mask = torch.tensor([True, True, False])
    logprobs = tensor([-1.2, -1.0, -1.0]).requires_grad_()
    advantages = sampled_reverse_kl(logprobs, tensor([-0.7, -3.0, math.nan]), mask)
    assert advantages.tolist() == pytest.approx([0.5, -2.0, 0.0])
    assert not advantages.requires_grad
    assert sampled_reverse_kl(logprobs, tensor([-0.7, -3.0, 0.0]), mask, coefficient=2.0).tolist() == [1.0, -4.0, 0.0]
    assert sampled_reverse_kl(logprobs, logprobs, mask).tolist() == [0.0, 0.0, 0.0]


def test_teacher_scores_one_place_late_are_not_what_is_expected():
    student, mask = tensor([-1.0, -2.0]), ones(2)
    assert (-sampled_reverse_kl(student, tensor([-0.5, -3.0]), mask)).tolist() == [-0.5, 1.0]
    assert (-sampled_reverse_kl(student, tensor([0.0, -0.5]), mask)).tolist() == [-1.0, -1.5]


def test_sampled_credit_has_the_exact_gradient_in_expectation():
    # All tokens of the vocabulary, each weighed by the student's probability of it.
    student, teacher = random_logits(1, 5).requires_grad_(), random_logits(1, 5, seed=1)
    log_q, log_p = student.log_softmax(-1), teacher.log_softmax(-1)
    advantages = sampled_reverse_kl(log_q[0], log_p[0], ones(5))
    losses = reinforce(log_q[0], log_q[0].detach(), advantages, ones(5)).loss_T
    expected = torch.autograd.grad((log_q[0].detach().exp() * losses).sum(), student)[0]
    exact = torch.autograd.grad(reverse_kl(student, teacher, ones(1)).sum(), student)[0]
    torch.testing.assert_close(expected, exact, rtol=1e-12, atol=1e-14)
    mean = (log_q[0].detach().exp() * -advantages).sum()
    assert mean.item() == pytest.approx(reverse_kl(student, teacher, ones(1)).item())


def test_the_mean_over_tokens_does_not_shrink_with_length():
    # Losses .3, .1, .2 have the mean .2, and so has the row twice as long.
    loss = tensor([0.3, 0.1, 0.2])
    assert token_mean(loss, torch.ones(3), 3).item() == pytest.approx(0.2)
    student, teacher = random_logits(3, 4), random_logits(3, 4, seed=1)
    short = forward_kl(student, teacher, ones(3))
    long = forward_kl(student.repeat(2, 1), teacher.repeat(2, 1), ones(6))
    assert token_mean(long, torch.ones(6), 6).item() == pytest.approx(token_mean(short, torch.ones(3), 3).item())


def test_no_trained_token_is_no_loss():
    loss, gradient = value_and_gradient(forward_kl, random_logits(3, 4), random_logits(3, 4), torch.zeros(3).bool())
    assert loss.tolist() == [0.0] * 3
    assert (gradient == 0).all()


@every_beta
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_teacher_is_refused_by_token(beta, broken):
    teacher = TEACHER.clone()
    teacher[3, 2] = broken
    with pytest.raises(TrainerError, match="teacher's scores at trained token 3 are not"):
        generalized_jsd(random_logits(6, 9), teacher, ones(6), beta=beta)
    generalized_jsd(random_logits(6, 9), teacher, torch.arange(6) != 3, beta=beta)


@pytest.mark.parametrize("broken", [math.nan, -math.inf, math.inf])
def test_a_broken_sampled_score_is_refused(broken):
    with pytest.raises(TrainerError, match="trained token 1 are not finite"):
        sampled_reverse_kl(tensor([-1.0, -1.0]), tensor([-1.0, broken]), ones(2))


SCORES = top_k(TEACHER, 4)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (SCORES._replace(logprobs_TK=SCORES.logprobs_TK * math.nan), "trained token 0 are not finite log-prob"),
        (SCORES._replace(logprobs_TK=TEACHER[:, :4]), "are not finite log-probabilities that sum to 1"),
        (
            SCORES._replace(rest_T=SCORES.rest_T[:5]),
            r"shapes of the teacher's top k are \[\(6, 4\), \(6, 4\), \(5,\)\]",
        ),
        (SCORES._replace(ids_TK=SCORES.ids_TK + 6), "distinct at each place, between 0 and 8"),
        (SCORES._replace(ids_TK=SCORES.ids_TK * 0), "distinct at each place"),
    ],
)
def test_scores_that_do_not_fit_are_refused(scores, message):
    with pytest.raises(TrainerError, match=message):
        top_k_divergence(random_logits(6, 9), scores, ones(6), rest="bucket", beta=0.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: generalized_jsd(TEACHER, TEACHER, ones(6), beta=1.5), "beta is 1.5"),
        (lambda: forward_kl(TEACHER, TEACHER, ones(6), temperature=0.0), "temperature is 0.0"),
        (lambda: forward_kl(TEACHER, TEACHER, ones(6), max_tokens_per_chunk=0), "max_tokens_per_chunk is 0"),
        (lambda: top_k(TEACHER, 10), "k is 10; give a number of tokens between 1 and the 9"),
        (lambda: top_k_divergence(TEACHER, SCORES, ones(6), rest="drop", beta=0.0), "rest is 'drop'; write 'bucket'"),
        (
            lambda: top_k_divergence(TEACHER, top_k(TEACHER, 1), ones(6), rest="renormalize", beta=0.0),
            "K of at least 2",
        ),
        (lambda: sampled_reverse_kl(TEACHER[:, 0], TEACHER[:, 0], ones(6), coefficient=0.0), "coefficient is 0.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: forward_kl(TEACHER, TEACHER[:, :8], ones(6)), r"shape \(6, 8\) and the student's \(6, 9\)"),
        (lambda: forward_kl(TEACHER[None], TEACHER[None], ones(6)), r"shape \(1, 6, 9\); give flat tokens"),
        (lambda: forward_kl(TEACHER, TEACHER, ones(5)), r"mask_T \(5,\)"),
        (lambda: forward_kl(TEACHER, TEACHER, torch.ones(6)), "mask_T has dtype torch.float32"),
        (lambda: sampled_reverse_kl(TEACHER[:, 0], TEACHER[:5, 0], ones(6)), r"teacher_logprobs_T has shape \(5,\)"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(call, message):
    with pytest.raises(TrainerError, match=message):
        call()
