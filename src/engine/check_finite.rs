//! Detection of NaN and infinity in the input of operations. The configuration can enable it.

use crate::engine::Shares;
use crate::engine::p2p::Transfer;
use crate::engine::{Engine, Job};
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::OpDesc;
use crate::reduce_op::ReduceOp;
use unisono_reducers::DType;

impl Engine {
    /// Fails on all ranks if the input of this rank contains a value that is not finite.
    pub(super) fn check_input(&mut self, job: &Job<'_>) -> Result<()> {
        let (shares, _) = job.collective.shares(self.fabric.ranks, job.root, self.fabric.rank);
        let Shares::Even { bytes } = job.input else { return Ok(()) };
        let Some((index, what)) = first_not_finite(job.dtype, job.buffers.input(0..shares * bytes)) else {
            return Ok(());
        };
        let op = job.reduction.map(ReduceOp::kind);
        let call = self.number(OpDesc::new(0, job.kind, job.dtype, op, job.root, job.count));
        self.fail_not_finite(index, what, call)
    }

    /// Fails on all ranks if a message of this rank contains a value that is not finite.
    pub(super) fn check_sends(&mut self, transfers: &[Transfer<'_>]) -> Result<()> {
        let found = transfers.iter().filter_map(|transfer| {
            let (dtype, bytes) = transfer.send_data()?;
            let (index, what) = first_not_finite(dtype, bytes)?;
            Some((transfer.offset() + index, what, transfer.desc()))
        });
        // If several messages have such elements, the first message is reported. For parts of one
        // buffer, the element with the lowest index is reported.
        let first = found.min_by_key(|(index, _, call)| if call.is_collective() { *index } else { 0 });
        first.map_or(Ok(()), |(index, what, call)| self.fail_not_finite(index, what, call))
    }

    fn fail_not_finite(&mut self, index: usize, what: &str, call: OpDesc) -> Result<()> {
        let kind =
            ErrorKind::NotFinite { rank: self.fabric.rank, index: index as u64, what: what.to_owned() };
        self.fail(Error::new(kind), Some(call))
    }
}

/// Returns the index of the first element that is not finite, and its kind.
fn first_not_finite(dtype: DType, bytes: &[u8]) -> Option<(usize, &'static str)> {
    match dtype {
        DType::F64 => find_exponent_all_ones::<8>(bytes, 0x7ff << 52, (1 << 52) - 1),
        // An element has two parts.
        DType::C128 => first_not_finite(DType::F64, bytes).map(|(part, what)| (part / 2, what)),
        DType::C64 => first_not_finite(DType::F32, bytes).map(|(part, what)| (part / 2, what)),
        DType::F32 => find_exponent_all_ones::<4>(bytes, 0xff << 23, (1 << 23) - 1),
        DType::F16 => find_exponent_all_ones::<2>(bytes, 0x1f << 10, (1 << 10) - 1),
        DType::BF16 => find_exponent_all_ones::<2>(bytes, 0xff << 7, (1 << 7) - 1),
        DType::F8E5M2 => find_exponent_all_ones::<1>(bytes, 0x1f << 2, (1 << 2) - 1),
        // This type has no infinities, and one NaN for each sign.
        DType::F8E4M3 => find_exponent_all_ones::<1>(bytes, 0x7f, 0x7f),
        _ => None,
    }
}

/// Finds the first element of `BYTES` bytes that has all bits of `exponent`.
///
/// The element is an infinity if it has no bit of `mantissa`, else NaN.
fn find_exponent_all_ones<const BYTES: usize>(
    bytes: &[u8],
    exponent: u64,
    mantissa: u64,
) -> Option<(usize, &'static str)> {
    let bits = |element: &[u8; BYTES]| {
        let mut word = [0; 8];
        word[..BYTES].copy_from_slice(element);
        u64::from_le_bytes(word)
    };
    let (elements, _) = bytes.as_chunks::<BYTES>();
    let index = elements.iter().position(|element| bits(element) & exponent == exponent)?;
    Some((index, if bits(&elements[index]) & mantissa == 0 { "an infinity" } else { "NaN" }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono_reducers::{Element, F8E4M3, F8E5M2, as_bytes, bf16, f16};

    fn found<T: Element>(values: &[f64]) -> Option<(usize, &'static str)> {
        let values: Vec<T> = values.iter().map(|&value| T::from_f64(value)).collect();
        first_not_finite(T::DTYPE, as_bytes(&values))
    }

    #[test]
    fn first_not_finite_finds_first_of_each_dtype() {
        fn of<T: Element>(has_infinity: bool) {
            assert_eq!(found::<T>(&[0.0, -0.0, 1.0, -448.0, 1e-3]), None, "{:?}", T::DTYPE);
            assert_eq!(found::<T>(&[1.0, 2.0, f64::NAN, f64::NAN]), Some((2, "NaN")), "{:?}", T::DTYPE);
            if has_infinity {
                let minus = found::<T>(&[1.0, f64::NEG_INFINITY, f64::NAN]);
                assert_eq!(minus, Some((1, "an infinity")), "{:?}", T::DTYPE);
            }
        }
        of::<f64>(true);
        of::<f32>(true);
        of::<f16>(true);
        of::<bf16>(true);
        of::<F8E5M2>(true);
        of::<F8E4M3>(false);
        assert_eq!(first_not_finite(DType::U64, &[0xff; 64]), None);
    }
}
