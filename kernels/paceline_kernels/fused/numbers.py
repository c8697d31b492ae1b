"""Number formats inside kernels: rounding, FP8 e4m3 by hand, and products of two tiles.

The interpreter truncates where devices round to bfloat16, and multiplies the bits of bfloat16
tiles; `narrow` and `product` give it the device's arithmetic.

Source: the e4m3 format is that of "FP8 Formats for Deep Learning", arXiv:2209.05433: no infinity,
largest 448, smallest 2^-9.
"""

import triton
import triton.language as tl

INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def narrow(x, DTYPE: tl.constexpr):
    """Round float32 to DTYPE, ties to even."""
    if INTERPRETED and tl.bfloat16 == DTYPE:
        bits = x.to(tl.uint32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        return (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(DTYPE)


@triton.jit
def product(a, b, acc, PRECISION: tl.constexpr):
    """Acc + a @ b in float32; products of 16-bit values are exact, those of float32 PRECISION."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc=acc, input_precision=PRECISION)


@triton.jit
def e4m3_over_256(byte):
    """The value of an e4m3 byte, divided by 256, in float16: exact, and no arithmetic is done.

    Its four exponent bits and three mantissa bits are float16's lowest exponent and highest
    mantissa bits; the biases differ by 8, also for subnormal values.
    """
    bits = byte.to(tl.uint16)
    bits = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    return bits.to(tl.float16, bitcast=True)


@triton.jit
def to_e4m3(x):
    """The e4m3 byte nearest to float32 x, ties to even, saturated at +-448; NaN stays NaN."""
    bits = x.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # 448 = 0x43E00000. Rounding happens at bit 20, the bias differs by 120.
    capped = tl.where(size > 0x43E00000, 0x43E00000, size).to(tl.uint32)
    normal = ((capped + 0x7FFFF + ((capped >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 the step is 2^-9: adding 2^14 rounds there, and leaves the count of steps.
    shifted = capped.to(tl.float32, bitcast=True) + 16384.0
    subnormal = shifted.to(tl.uint32, bitcast=True) - 0x46800000
    byte = tl.where(capped < 0x3C800000, subnormal, normal)
    byte = tl.where(size > 0x7F800000, 0x7F, byte)
    return (byte | ((bits >> 24) & 0x80)).to(tl.uint8)
