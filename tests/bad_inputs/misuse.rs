//! Calls that cannot be carried out as they are made: refused at once, and nothing is sent.

use crate::table::{Evidence, Report, Row, long_timeout, poisoned, refused};

pub(crate) const ROWS: &[Row] = &[
    Row { number: 11, input: "more elements than memory can hold", evidence: Evidence::Here(overflow) },
    Row { number: 12, input: "uneven counts that do not add up", evidence: Evidence::Here(uneven) },
    Row { number: 15, input: "a root or peer that is none", evidence: Evidence::Here(out_of_range) },
    Row { number: 16, input: "null, unaligned, overlapping buffers", evidence: Evidence::There(OVERLAP) },
    Row {
        number: 17,
        input: "memory of the host for a GPU's, and the reverse",
        evidence: Evidence::There(WRONG_MEMORY),
    },
    Row { number: 18, input: "a device buffer that was freed", evidence: Evidence::There(FREED) },
];

/// Slices are neither null nor unaligned, and what is written is borrowed alone.
const OVERLAP: &[(&str, &str)] = &[("src/communicator/api/collectives.rs", "compile_fail,E0502")];
const WRONG_MEMORY: &[(&str, &str)] =
    &[("src/device/mod.rs", "compile_fail,E0277"), ("src/device/mod.rs", "compile_fail,E0308")];
const FREED: &[(&str, &str)] = &[("src/device/mod.rs", "compile_fail,E0382")];

fn overflow() -> Report {
    refused(2, &["9223372036854775807 elements are more than can be addressed"], |comm| {
        comm.alloc_symmetric::<f64>(usize::MAX / 2).map(drop)
    });
    refused(2, &["all_to_all_v #1", "add up to 18446744073709551617"], |comm| {
        comm.all_to_all_v(&[1u8], &[usize::MAX, 2], &mut [0u8], &[0, 1])
    })
}

fn uneven() -> Report {
    poisoned(2, &long_timeout(), &["all_to_all_v #1", "3 x uint32", "4 x uint32"], |comm| {
        let (sends, receives) = if comm.rank() == 0 { ([0, 3], [0, 2]) } else { ([2, 0], [4, 0]) };
        let input = vec![1u32; sends.iter().sum()];
        comm.all_to_all_v(&input, &sends, &mut vec![0; receives.iter().sum()], &receives)
    });
    refused(2, &["all_to_all_v #1", "input has length 1, but 3 is needed"], |comm| {
        comm.all_to_all_v(&[1u8], &[1, 2], &mut [0u8; 2], &[1, 1])
    })
}

fn out_of_range() -> Report {
    refused(2, &["send/recv", "peer is rank 7", "only 2 ranks"], |comm| comm.recv(&mut [0u8], 7));
    refused(2, &["broadcast #1", "root is rank 2", "only 2 ranks"], |comm| comm.broadcast(&mut [0u8], 2))
}
