"""The picture of a run: it is drawn whatever was measured, and shows what was."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from agentrl.config import TrainConfig
from agentrl.store import RunFolder
from agentrl.ui.plots import learning_curve, smoothed


def picture(folder: RunFolder) -> np.ndarray:
    """Height x width x 4, values in [0, 1]."""
    return imread(learning_curve(folder))


def has_colour(image: np.ndarray, hexadecimal: str) -> bool:
    wanted = np.array([int(hexadecimal[index : index + 2], 16) / 255 for index in (1, 3, 5)])
    return bool((np.abs(image[..., :3] - wanted).max(axis=-1) < 0.02).any())


def test_a_picture_shows_the_reward_and_the_held_out_rate(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, TrainConfig(recipe="book-example"))
    empty = picture(folder)
    assert empty.shape[0] > 500
    assert not has_colour(empty, "#3b6fb6")
    for step in range(1, 11):
        folder.append_metrics("warm_start", step, {"loss": 1.0 / step})
        folder.append_metrics("rl", step, {"reward": step / 10, "entropy": 1.0, "grad_norm": float("nan")})
    assert has_colour(picture(folder), "#3b6fb6")
    assert not has_colour(picture(folder), "#d1495b")
    folder.append_metrics("eval", 0, {"pass_rate": 0.3})
    folder.append_metrics("eval", 10, {"pass_rate": 0.9, "pass_rate_low": 0.8, "pass_rate_high": 0.95})
    assert has_colour(picture(folder), "#d1495b")
    assert (folder.path / "curves.png").is_file()


@given(values=st.lists(st.floats(-100, 100), max_size=30), window=st.integers(1, 9))
def test_smoothing_keeps_the_ends_and_the_length(values: list[float], window: int) -> None:
    found = smoothed(values, window)
    assert len(found) == len(values)
    if values:
        assert (found[0], found[-1]) == (values[0], values[-1])


def test_smoothing_is_a_centred_mean() -> None:
    assert smoothed([0.0, 3.0, 6.0, 0.0], 3) == [0.0, 3.0, 3.0, 0.0]
