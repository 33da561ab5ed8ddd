from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from heterps_runtime.store.half import Precision, decode, encode

EVERY_PATTERN = np.arange(2**16, dtype=np.uint16)
TORCH = {"fp16": torch.float16, "bf16": torch.bfloat16}
LARGEST = {name: torch.finfo(dtype).max for name, dtype in TORCH.items()}


def reference_bits(values: NDArray[Any], precision: str) -> NDArray[Any]:
    return torch.from_numpy(values).to(TORCH[precision]).view(torch.int16).numpy().view(np.uint16)


def hard_values() -> NDArray[Any]:
    """Every 16-bit number, the midpoints between neighbours, what lies just beside those, and random bit patterns."""
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        halves = np.sort(EVERY_PATTERN.view(np.float16).astype(np.float32))
        halves = halves[np.isfinite(halves)]
        middles = (halves[:-1] + halves[1:]) / 2
        bf = (EVERY_PATTERN.astype(np.uint32) << 16)[:, None] + np.array([0, 0x7FFF, 0x8000, 0x8001], np.uint32)
        near = [np.nextafter(middles, np.float32(s * np.inf)) for s in (-1, 1)]
        random = rng.integers(0, 2**32, 300_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    edges = np.array([65504, 65519.996, 65520, 65536, 3.3895e38, 3.4e38, 2e-8, 2.9802322e-8, 2.9802326e-8], np.float32)
    return np.concatenate([halves, middles, *near, bf.ravel().view(np.float32), random, edges, -edges])


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_rounding_is_to_nearest_even_as_in_torch(precision: Precision) -> None:
    values = hard_values()
    encoded = encode(values, precision)
    expected = reference_bits(values, precision)
    is_nan = np.isnan(values)
    overflowed = np.isfinite(values) & ~np.isfinite(decode(expected, precision))
    ordinary = ~is_nan & ~overflowed
    np.testing.assert_array_equal(encoded.data[ordinary], expected[ordinary])
    assert np.isnan(decode(encoded.data, precision)[is_nan]).all()
    assert overflowed.sum() == encoded.num_saturated > 0
    np.testing.assert_array_equal(
        decode(encoded.data, precision)[overflowed], np.copysign(LARGEST[precision], values[overflowed])
    )


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_decoding_every_pattern_is_exact_as_in_torch(precision: Precision) -> None:
    expected = torch.from_numpy(EVERY_PATTERN.view(np.int16)).view(TORCH[precision]).float().numpy()
    decoded = decode(EVERY_PATTERN, precision)
    np.testing.assert_array_equal(decoded, expected)
    np.testing.assert_array_equal(np.signbit(decoded), np.signbit(expected))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_infinities_pass_so_that_a_poisoned_step_is_seen(precision: Precision) -> None:
    encoded = encode(np.array([np.inf, -np.inf, np.nan, 1.0], np.float32), precision)
    assert encoded.num_saturated == 0
    np.testing.assert_array_equal(decode(encoded.data, precision), np.array([np.inf, -np.inf, np.nan, 1], np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shapes_and_types_are_kept(dtype: Any) -> None:
    values = np.arange(12, dtype=dtype).reshape(3, 4) / 4
    for precision in ("full", "fp16", "bf16"):
        encoded = encode(values, precision)
        assert encoded.data.dtype == (dtype if precision == "full" else np.uint16)
        received = np.frombuffer(encoded.data.tobytes(), encoded.data.dtype).reshape(3, 4)  # read-only, as a frame is
        decoded = decode(received, precision, dtype)
        assert decoded.dtype == dtype
        np.testing.assert_array_equal(decoded, values)
    assert encode(values, "full").data is values
    assert decode(values, "full", np.float64).dtype == np.float64
