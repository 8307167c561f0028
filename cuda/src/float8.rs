//! 8-bit floats.

/// OCP FP8 E4M3 (no infinities, NaN = 0x7f/0xff, largest 448), as its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// OCP FP8 E5M2 (IEEE-like, largest 57344), as its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);
