"""Changed weights are counted in both precisions, and a stable rank is what linear algebra says."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import StoreError
from agentrl.evals.report.weights import bfloat16, changes, noise_rank, read_weights, stable_rank, total


def one_change(before, after):
    return changes({"w": np.array(before, np.float32)}, {"w": np.array(after, np.float32)})[0]


def test_a_change_below_the_resolution_of_bfloat16_is_lost_in_it():
    # bfloat16 keeps 8 bits: around 1 its steps are 2^-7 = 0.0078 above 1 and 0.0039 below
    found = one_change([[1.0, 1.0], [1.0, 1.0]], [[1.0, 1.001], [1.005, 0.99]])
    assert (found.weights, found.changed, found.changed_bf16) == (4, 3, 2)
    assert (found.share, found.share_bf16) == (0.75, 0.5)


def test_size_and_stable_rank_of_a_change():
    # D = diag(3, 4): |D|_F = 5, |D|_2 = 4, 25 / 16 = 1.5625; W = 5 * I: |W|_F = 5 sqrt(2)
    found = one_change([[5, 0], [0, 5]], [[8, 0], [0, 9]])
    assert found.relative == pytest.approx(5 / (5 * 2**0.5))
    assert (found.stable_rank, found.stable_rank_before) == (pytest.approx(1.5625), pytest.approx(2.0))


def test_nothing_changed_has_no_direction():
    found = one_change([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]])
    assert (found.changed, found.changed_bf16, found.relative, found.stable_rank) == (0, 0, 0.0, None)
    vector = one_change([1.0, 2.0], [1.0, 3.0])
    assert (vector.stable_rank, vector.stable_rank_noise, vector.changed) == (None, None, 1)


def test_a_change_in_one_direction_has_rank_one_and_noise_has_that_of_noise():
    rng = np.random.default_rng(0)
    assert stable_rank(np.outer(rng.normal(size=40), rng.normal(size=60))) == pytest.approx(1.0)
    assert stable_rank(rng.normal(size=(200, 100))) == pytest.approx(noise_rank(200, 100), rel=0.1)


@given(st.lists(st.floats(width=32, min_value=-float(2**99), max_value=float(2**99)), min_size=1))
def test_bfloat16_is_the_nearest_one(values):
    numbers = np.array(values, np.float32)
    rounded = (bfloat16(numbers).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    bits = numbers.view(np.uint32)
    down = (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    up = ((bits & np.uint32(0xFFFF0000)) + np.uint32(0x10000)).view(np.float32).astype(np.float64)
    exact = numbers.astype(np.float64)
    assert np.all(np.abs(rounded - exact) <= np.minimum(np.abs(down - exact), np.abs(up - exact)))


def test_tensors_come_by_name_with_numbers_as_numbers_and_are_summed():
    before = {name: np.zeros(2, np.float32) for name in ("b.10.w", "b.9.w", "a")}
    after = before | {"b.9.w": np.array([0, 1], np.float32)}
    found = changes(before, after)
    assert [one.name for one in found] == ["a", "b.9.w", "b.10.w"]
    assert (total(found).weights, total(found).changed) == (6, 1)


def test_checkpoints_that_do_not_fit_each_other_are_refused():
    one = {"w": np.zeros(2, np.float32)}
    with pytest.raises(StoreError, match="v is in one of them alone"):
        changes(one, {"v": np.zeros(2, np.float32), "w": np.zeros(2, np.float32)})
    with pytest.raises(StoreError, match=r"shape \(2,\) before and \(3,\) after"):
        changes(one, {"w": np.zeros(3, np.float32)})
    with pytest.raises(StoreError, match="not finite"):
        changes(one, {"w": np.array([0, np.nan], np.float32)})


def stored(folder, tensors):
    """A checkpoint whose file is written by the format's own description: length, header, numbers."""
    header, body = {}, b""
    for name, (kind, values) in tensors.items():
        end = len(body) + values.nbytes
        header[name] = {"dtype": kind, "shape": [len(values)], "data_offsets": [len(body), end]}
        body += values.tobytes()
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + body
    (folder / "model.safetensors").write_bytes(data)
    digest = {"model.safetensors": hashlib.sha256(data).hexdigest()}
    (folder / "state.json").write_text(json.dumps({"sha256": digest}))
    return folder


def test_weights_are_read_in_every_precision_and_a_critics_are_left_out(tmp_path):
    tensors = {
        "half": ("BF16", np.array([0x3F80, 0xC000], np.uint16)),  # 1 and -2
        "single": ("F32", np.array([0.1, 3.0], np.float32)),
        "critic:single": ("F32", np.array([7.0], np.float32)),
    }
    found = read_weights(stored(tmp_path, tensors))
    assert set(found) == {"half", "single"}
    assert found["half"].tolist() == [1.0, -2.0]
    assert found["single"].dtype == np.float32


def test_a_damaged_checkpoint_is_refused(tmp_path):
    with pytest.raises(StoreError, match="not a readable checkpoint"):
        read_weights(tmp_path)
    stored(tmp_path, {"w": ("F32", np.zeros(2, np.float32))})
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(StoreError, match="its checksum differs"):
        read_weights(tmp_path)
    stored(tmp_path, {"w": ("I64", np.zeros(2, np.int64))})
    with pytest.raises(StoreError, match=r"tensor 'w' is of type I64"):
        read_weights(tmp_path)
