//! 8-bit floats of the Open Compute Project (*OCP 8-bit Floating Point Specification*, 2023).

use crate::host::narrow_float::{E4M3, E5M2, narrow, widen};
use std::fmt;

/// OCP FP8 E4M3 (no infinities, NaN = 0x7f/0xff, largest 448), as its bits; `==` compares those.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// OCP FP8 E5M2 (IEEE-like, largest 57344), as its bits; `==` compares those.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);

impl F8E4M3 {
    /// The nearest to `value`, ties to even; NaN for what is too large.
    #[inline(always)]
    pub fn from_f32(value: f32) -> Self {
        Self(narrow::<E4M3>(value) as u8)
    }

    /// Converts to f32, exactly.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        widen::<E4M3>(self.0.into())
    }
}

impl F8E5M2 {
    /// The nearest to `value`, ties to even; infinity for what is too large.
    #[inline(always)]
    pub fn from_f32(value: f32) -> Self {
        Self(narrow::<E5M2>(value) as u8)
    }

    /// Converts to f32, exactly.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        widen::<E5M2>(self.0.into())
    }
}

impl fmt::Display for F8E4M3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_f32(), f)
    }
}

impl fmt::Debug for F8E4M3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_f32(), f)
    }
}

impl fmt::Display for F8E5M2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_f32(), f)
    }
}

impl fmt::Debug for F8E5M2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_f32(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Value of a code, from the definition: sign · 2^(exponent − bias) · 1.mantissa.
    fn defined(code: u8, mantissa_bits: i32, bias: i32) -> f64 {
        let mantissa = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
        let exponent = i32::from(code & 0x7f) >> mantissa_bits;
        let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
        let (lead, exponent) = if exponent == 0 { (0.0, 1) } else { (1.0, exponent) };
        sign * (lead + mantissa) * 2f64.powi(exponent - bias)
    }

    fn e4m3(code: u8) -> f64 {
        if code & 0x7f == 0x7f { f64::NAN } else { defined(code, 3, 7) }
    }

    fn e5m2(code: u8) -> f64 {
        match code & 0x7f {
            0x7d..=0x7f => f64::NAN,
            0x7c => f64::INFINITY.copysign(defined(code, 2, 15)),
            _ => defined(code, 2, 15),
        }
    }

    /// Nearest code by trying all of one sign. `overflow` counts as the number that would follow
    /// the largest, so that a tie with it goes by evenness.
    fn nearest(value: f32, overflow: u8, decode: fn(u8) -> f64) -> u8 {
        let wanted = f64::from(value).abs();
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let largest = overflow - 1;
        let beyond = decode(largest) + (decode(largest) - decode(largest - 1));
        let value_of = |code: u8| if code == overflow { beyond } else { decode(code) };
        if wanted >= beyond {
            return sign | overflow;
        }
        let distance = |&code: &u8| ((value_of(code) - wanted).abs() * 2f64.powi(40), code & 1);
        sign | (0..=overflow).min_by(|a, b| distance(a).partial_cmp(&distance(b)).unwrap()).unwrap()
    }

    fn same(left: f64, right: f64) -> bool {
        left.to_bits() == right.to_bits() || left.is_nan() && right.is_nan()
    }

    #[test]
    fn every_code_has_its_defined_value_and_comes_back() {
        for code in 0..=u8::MAX {
            let (four, five) = (F8E4M3(code).to_f32(), F8E5M2(code).to_f32());
            assert!(same(f64::from(four), e4m3(code)), "e4m3 {code:#x}: {four}");
            assert!(same(f64::from(five), e5m2(code)), "e5m2 {code:#x}: {five}");
            assert!(
                four.is_nan() && F8E4M3::from_f32(four).to_f32().is_nan() || F8E4M3::from_f32(four).0 == code
            );
            assert!(
                five.is_nan() && F8E5M2::from_f32(five).to_f32().is_nan() || F8E5M2::from_f32(five).0 == code
            );
        }
    }

    #[test]
    fn rounds_to_the_nearest_and_ties_to_even() {
        let neighbors = |value: f32| [value.next_down(), value, value.next_up()];
        let mut values: Vec<f32> =
            vec![0.0, f32::MIN_POSITIVE, 1e-30, 464.0, 480.0, 61440.0, 65536.0, f32::MAX];
        for code in 0..0x7b {
            let middle = |decode: fn(u8) -> f64| ((decode(code) + decode(code + 1)) / 2.0) as f32;
            values.extend([middle(e4m3), middle(e5m2), e4m3(code) as f32, e5m2(code) as f32]);
        }
        values.extend((0..=u32::from(u16::MAX)).map(|high| f32::from_bits(high << 16 | high & 0x9fff)));
        for value in values.into_iter().flat_map(neighbors).flat_map(|value| [value, -value]) {
            if value.is_nan() {
                assert!(
                    F8E4M3::from_f32(value).to_f32().is_nan() && F8E5M2::from_f32(value).to_f32().is_nan()
                );
                continue;
            }
            assert_eq!(F8E4M3::from_f32(value).0, nearest(value, 0x7f, e4m3), "e4m3 of {value:e}");
            assert_eq!(F8E5M2::from_f32(value).0, nearest(value, 0x7c, e5m2), "e5m2 of {value:e}");
        }
    }

    #[test]
    fn too_large_is_nan_without_infinities_and_infinity_with() {
        assert_eq!(F8E4M3::from_f32(464.0).to_f32(), 448.0);
        assert!(F8E4M3::from_f32(464.0f32.next_up()).to_f32().is_nan());
        assert!(F8E4M3::from_f32(f32::NEG_INFINITY).to_f32().is_nan());
        assert_eq!(F8E5M2::from_f32(61440.0).to_f32(), f32::INFINITY);
        assert_eq!(F8E5M2::from_f32(-61440f32.next_down()).to_f32(), -57344.0);
        assert_eq!(format!("{} {:?}", F8E4M3(0x3c), F8E5M2(0xfc)), "1.5 -inf");
    }
}
