"""NumPy's version of moments in fewer bits: src/data/block_float.h and narrow_moments.cc."""

from __future__ import annotations

import ml_dtypes
import numpy as np

BLOCK, PART = 256, 1024
TOPS = {np.dtype(np.int8): 14, np.dtype(np.uint8): 30}  # the exponent of the greatest octave
LEAST_SCALE, GREATEST_SCALE = 40, 254
INFINITY = 0x7F800000
_M0, _M1, _W0, _W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85


def philox(seed: int, run: int, stream: int, groups: int) -> np.ndarray:
    """Philox4x32-10 in whole numbers: four words for each of the first groups."""
    group = np.arange(groups, dtype=np.uint64)
    c = [
        np.full_like(group, run & 0xFFFFFFFF),
        np.full_like(group, stream & 0xFFFFFFFF),
        group & np.uint64(0xFFFFFFFF),
        group >> np.uint64(32),
    ]
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(_M0), c[2] * np.uint64(_M1)
        c = [
            (p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(key[0]),
            p1 & low,
            (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(key[1]),
            p0 & low,
        ]
        key = [(key[0] + _W0) & 0xFFFFFFFF, (key[1] + _W1) & 0xFFFFFFFF]
    return np.stack(c, axis=1).astype(np.uint32)


def random_words(seed: int, run: int, stream: int, count: int) -> np.ndarray:
    """A word for each element: a counter in parts of 1,024, mixed under a key for each part."""
    key = philox(seed, run, stream, (count + PART - 1) // PART)
    x = np.arange(PART, dtype=np.uint32)[None] * np.uint32(_W0) + key[:, :1]
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D) ^ key[:, 1:2]
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
    return (x ^ x >> np.uint32(16)).reshape(-1)[:count]


def _blocks(x: np.ndarray) -> np.ndarray:
    """The elements in rows of a block each, the last one filled up with zeros."""
    flat = x.reshape(-1)
    return np.pad(flat, (0, -flat.size % BLOCK)).reshape(-1, BLOCK)


def _bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.float32).view(np.int32).astype(np.int64)


def _floats(bits: np.ndarray) -> np.ndarray:
    return np.asarray(bits).astype(np.int64).astype(np.int32).view(np.float32)


def widen(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The numbers of codes, in exact arithmetic."""
    top, signed = TOPS[codes.dtype], codes.dtype == np.int8
    code = _blocks(codes).view(np.uint8).astype(np.int64)
    magnitude = code & 0x7F if signed else code
    exponent, mantissa = magnitude >> 3, magnitude & 7
    x = np.where(
        exponent == 0,
        mantissa / 8 * 2.0 ** (1 - top),
        (1 + mantissa / 8) * 2.0 ** (exponent - top),
    )
    x = x * scales.reshape(-1, 1).astype(np.float64)
    x = np.where(exponent == top + 1, np.where(mantissa == 0, np.inf, np.nan), x)
    if signed:
        x = np.where(code & 0x80, -x, x)
    return x.astype(np.float32).reshape(-1)[: codes.size].reshape(codes.shape)


def narrow(
    x: np.ndarray, dtype: type, random16: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales; ``random16`` are 16 random bits an element, None rounds to nearest."""
    top, signed = TOPS[np.dtype(dtype)], dtype == np.int8
    bits = _bits(_blocks(x.astype(np.float32)))
    magnitude, negative = bits & 0x7FFFFFFF, bits < 0
    finite = np.where(magnitude < INFINITY, magnitude, 0)
    scale = np.clip((finite.max(1, initial=0) + 0xFFFFF) >> 23, LEAST_SCALE, GREATEST_SCALE)
    scale = scale[:, None]
    lowest = (scale - top + 1) << 23
    subnormal = magnitude < lowest
    with np.errstate(invalid="ignore"):
        lifted = _bits(_floats(magnitude) + np.where(subnormal, _floats(lowest), np.float32(0)))
    if random16 is None:
        noise = (1 << 19) - 1 + (lifted >> 20 & 1)
    else:
        noise = _blocks(random16.astype(np.int64)) << 4
    code = ((lifted + noise) >> 20) - (scale - top) * 8 - np.where(subnormal, 8, 0)
    least = np.where((magnitude == 0) | signed, 0, 1)
    code = np.clip(code, least, (top + 1) * 8 - 1)
    code = np.where(magnitude == INFINITY, (top + 1) * 8, code)
    nan = (magnitude > INFINITY) | ((not signed) & negative & (magnitude != 0))
    code = np.where(nan, (top + 1) * 8 + 7, code)
    if signed:
        code = np.where(negative, code | 0x80, code)
    codes = code.astype(np.uint8).view(dtype).reshape(-1)[: x.size].reshape(x.shape)
    return codes, _floats(scale[:, 0] << 23)[: (x.size + BLOCK - 1) // BLOCK]


def narrow_bf16(x: np.ndarray, random16: np.ndarray) -> np.ndarray:
    """bfloat16, rounded at random."""
    bits = _bits(x) & 0xFFFFFFFF
    bits = np.where(np.isnan(x), bits | 0x400000, bits + random16.reshape(x.shape))
    return (bits >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)


def halves(words: np.ndarray, second: bool) -> np.ndarray:
    """The 16 random bits of the first moment, or of the second one."""
    return words & 0xFFFF if second else words >> 16
