//! Conversion between f32 and floats of 8 and 16 bits, by integer arithmetic that vectorises.
//!
//! No step meets a subnormal f32, so the results stay right on threads that flush those to zero.

/// Layout of a small float: a sign, an exponent and a mantissa.
pub(crate) trait Format {
    /// Bits of one number, sign included.
    const BITS: u32;
    /// Bits of the mantissa.
    const MANTISSA: u32;
    /// Bias of the exponent.
    const BIAS: u32;
    /// Code, without its sign, of everything too large: infinity, or NaN where there is none.
    const OVERFLOW: u32;
    /// Code, without its sign, of a NaN.
    const NAN: u32;

    /// The bit of the sign.
    const SIGN: u32 = 1 << (Self::BITS - 1);
    /// Distance of the mantissa from its position in f32.
    const SHIFT: u32 = 23 - Self::MANTISSA;
    /// The smallest normal number, as bits of an f32.
    const SMALLEST_NORMAL: u32 = (128 - Self::BIAS) << 23;
}

/// IEEE 754 binary16.
pub(crate) struct Half;
/// OCP E4M3.
pub(crate) struct E4M3;
/// OCP E5M2.
pub(crate) struct E5M2;

impl Format for Half {
    const BITS: u32 = 16;
    const MANTISSA: u32 = 10;
    const BIAS: u32 = 15;
    const OVERFLOW: u32 = 0x7c00;
    const NAN: u32 = 0x7e00;
}

impl Format for E4M3 {
    const BITS: u32 = 8;
    const MANTISSA: u32 = 3;
    const BIAS: u32 = 7;
    const OVERFLOW: u32 = 0x7f;
    const NAN: u32 = 0x7f;
}

impl Format for E5M2 {
    const BITS: u32 = 8;
    const MANTISSA: u32 = 2;
    const BIAS: u32 = 15;
    const OVERFLOW: u32 = 0x7c;
    const NAN: u32 = 0x7e;
}

/// The value of `code`, exactly.
#[inline(always)]
pub(crate) fn widen<F: Format>(code: u32) -> f32 {
    let magnitude = code & (F::SIGN - 1);
    let sign = (code & F::SIGN) << (32 - F::BITS);
    let aligned = magnitude << F::SHIFT;
    let normal = aligned + ((127 - F::BIAS) << 23);
    // A subnormal is a mantissa without its leading one: add one, then subtract it.
    let smallest = F::SMALLEST_NORMAL;
    let subnormal = (f32::from_bits(aligned | smallest) - f32::from_bits(smallest)).to_bits();
    let bits = if magnitude < 1 << F::MANTISSA { subnormal } else { normal };
    let bits = if magnitude >= F::OVERFLOW { aligned | 0x7f80_0000 } else { bits };
    f32::from_bits(bits | sign)
}

/// The code nearest to `value`, ties to even.
#[inline(always)]
pub(crate) fn narrow<F: Format>(value: f32) -> u32 {
    let magnitude = value.to_bits() & 0x7fff_ffff;
    let sign = (value.to_bits() >> (32 - F::BITS)) & F::SIGN;
    let normal = round_off(magnitude, F::SHIFT).wrapping_sub((127 - F::BIAS) << F::MANTISSA);
    let normal = normal.min(F::OVERFLOW);
    // Adding a number whose last bit weighs as much as the smallest subnormal rounds the value to a
    // multiple of that.
    let anchor = F::SMALLEST_NORMAL + (F::SHIFT << 23);
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(anchor)).to_bits().wrapping_sub(anchor);
    let code = if magnitude < F::SMALLEST_NORMAL { subnormal } else { normal };
    let code = if magnitude > 0x7f80_0000 { F::NAN } else { code };
    code | sign
}

/// The value of a bfloat16, exactly.
#[inline(always)]
pub(crate) fn widen_bf16(code: u32) -> f32 {
    f32::from_bits(code << 16)
}

/// The upper half of an f32, rounded to the nearest bfloat16, of two equally near to the even one.
#[inline(always)]
pub(crate) fn narrow_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    // A carry into the exponent is right, and one into the sign comes from NaNs only.
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    if value.is_nan() { 0x7fc0 } else { rounded }
}

/// `bits` without the last `shift`, rounded to nearest, ties to even.
#[inline(always)]
const fn round_off(bits: u32, shift: u32) -> u32 {
    let just_below_half = (1 << (shift - 1)) - 1;
    (bits + just_below_half + ((bits >> shift) & 1)) >> shift
}
