"""Random numbers by name: the same for the same seed and position, unrelated for any other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from agentrl.engine.random import derive_seed, uniforms

seeds = st.integers(0, 2**63 - 1)


def draw(seed, position):
    return float(uniforms(np.array([seed], dtype=np.uint64), np.array([position]))[0])


def splitmix64(state):
    """The published generator's next output, with unbounded integers."""
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


@given(seeds, st.integers(0, 10_000))
def test_draws_are_those_of_splitmix64(seed, position):
    state = (seed + position * 0x9E3779B97F4A7C15) % 2**64
    assert draw(seed, position) == (splitmix64(state) >> 11) / 2**53


def test_the_first_number_of_splitmix64_from_state_0():
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    assert draw(0, 0) == (0xE220A8397B1DCDAF >> 11) / 2**53


@given(st.lists(st.tuples(seeds, st.integers(0, 500)), min_size=1, max_size=6))
def test_a_draw_does_not_depend_on_what_else_is_drawn(pairs):
    together = uniforms(np.array([s for s, _ in pairs], dtype=np.uint64), np.array([p for _, p in pairs]))
    assert together.tolist() == [draw(seed, position) for seed, position in pairs]
    assert ((together >= 0.0) & (together < 1.0)).all()


@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_draws_are_uniform_and_neighbours_are_unrelated(along):
    steps = np.arange(20_000)
    derived = np.array([derive_seed("run", int(step)) for step in steps], dtype=np.uint64)
    drawn = uniforms(np.full_like(derived, 7), steps) if along == "positions" else uniforms(derived, np.zeros(20_000))
    assert stats.kstest(drawn, "uniform").pvalue > 1e-3
    # A correlation of n independent pairs has standard deviation 1 / sqrt(n) = 0.007.
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 4 * 0.0071
    assert stats.kstest(drawn**1.05, "uniform").pvalue < 1e-3  # what is not uniform is noticed


def test_seeds_depend_on_every_part_and_its_place():
    parts = [("a", 1), ("a", 2), (1, "a"), ("a", "1"), ("a1",), ("a",), ()]
    assert len({derive_seed(*part) for part in parts}) == len(parts)
    assert derive_seed("a", 1) == derive_seed("a", 1)
    assert all(0 <= derive_seed(*part) < 2**63 for part in parts)
