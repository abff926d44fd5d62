"""A payload is read back byte for byte, or refused."""

import msgspec
import numpy as np
import pytest

from agentrl.errors import WeightError
from agentrl.weights.codec import RawTensor, read_payload, write_payload


def tensors():
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    b = np.array([1, 2, 3], np.uint16)
    return [
        RawTensor("a", "F32", (2, 3), a.reshape(-1).view(np.uint8)),
        RawTensor("b", "BF16", (3,), b.view(np.uint8)),
        RawTensor("empty", "F32", (0, 4), np.empty(0, np.uint8)),
    ]


def test_bytes_come_back_and_tensors_are_aligned(tmp_path):
    entries = write_payload(tmp_path / "w.bin", tensors())
    assert [(e.name, e.offset, e.nbytes) for e in entries] == [("a", 0, 24), ("b", 64, 6), ("empty", 128, 0)]
    back = read_payload(tmp_path / "w.bin", entries)
    assert back["a"].view(np.float32).tolist() == [0, 1, 2, 3, 4, 5]
    assert back["b"].view(np.uint16).tolist() == [1, 2, 3]
    assert list(tmp_path.iterdir()) == [tmp_path / "w.bin"]


def test_one_flipped_bit_is_refused(tmp_path):
    path = tmp_path / "w.bin"
    entries = write_payload(path, tensors())
    data = bytearray(path.read_bytes())
    data[65] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightError, match=r"tensor b .* checksum"):
        read_payload(path, entries)


def test_a_torn_file_is_refused(tmp_path):
    path = tmp_path / "w.bin"
    entries = write_payload(path, tensors())
    path.write_bytes(path.read_bytes()[:66])
    with pytest.raises(WeightError, match="torn"):
        read_payload(path, entries)


def test_a_missing_file_is_refused(tmp_path):
    entries = write_payload(tmp_path / "w.bin", tensors())
    with pytest.raises(WeightError, match="cannot read"):
        read_payload(tmp_path / "gone.bin", entries)


@pytest.mark.parametrize("change", [{"nbytes": 20}, {"dtype": "I64"}, {"offset": -8}, {"offset": 1 << 40}])
def test_a_manifest_that_lies_is_refused(tmp_path, change):
    first, *rest = write_payload(tmp_path / "w.bin", tensors())
    with pytest.raises(WeightError):
        read_payload(tmp_path / "w.bin", [msgspec.structs.replace(first, **change), *rest])


def test_a_disk_that_refuses_leaves_no_file(tmp_path):
    with pytest.raises(WeightError, match="cannot write"):
        write_payload(tmp_path / "no such folder" / "w.bin", tensors())
    assert list(tmp_path.iterdir()) == []
