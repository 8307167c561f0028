//! Ranks that call different things.

use crate::table::{Evidence, Report, Row, long_timeout, poisoned};
use unisono::{Max, Sum};

pub(crate) const ROWS: &[Row] = &[
    Row { number: 1, input: "count differs", evidence: Evidence::Here(count) },
    Row { number: 2, input: "type differs", evidence: Evidence::Here(dtype) },
    Row { number: 3, input: "reduction differs", evidence: Evidence::Here(op) },
    Row { number: 4, input: "root differs", evidence: Evidence::Here(root) },
    Row {
        number: 5,
        input: "another collective under the same number",
        evidence: Evidence::Here(collective),
    },
    Row { number: 6, input: "one rank skips a call", evidence: Evidence::Here(skipped) },
    Row { number: 7, input: "one rank calls twice", evidence: Evidence::Here(twice) },
];

fn count() -> Report {
    poisoned(3, &long_timeout(), &["all_reduce #1 (", "8 x float", "9 x float"], |comm| {
        comm.all_reduce(&mut vec![1.0f32; 8 + comm.rank() % 2], Sum)
    })
}

fn dtype() -> Report {
    poisoned(3, &long_timeout(), &["all_reduce #1 (", "8 x float", "8 x double"], |comm| match comm.rank() {
        1 => comm.all_reduce(&mut [1.0f64; 8], Sum),
        _ => comm.all_reduce(&mut [1.0f32; 8], Sum),
    })
}

fn op() -> Report {
    poisoned(3, &long_timeout(), &["all_reduce #1 (", "8 x float, sum", "8 x float, max"], |comm| {
        comm.all_reduce(&mut [1.0f32; 8], if comm.rank() == 2 { Max } else { Sum })
    })
}

fn root() -> Report {
    poisoned(3, &long_timeout(), &["broadcast #1 (", "root 1", "root 2"], |comm| {
        comm.broadcast(&mut [1.0f32; 8], 1 + comm.rank() % 2)
    })
}

fn collective() -> Report {
    poisoned(3, &long_timeout(), &["all_gather #1 (", "broadcast #1 ("], |comm| match comm.rank() {
        0 => comm.all_gather(&[1.0f32; 4], &mut [0.0; 12]),
        _ => comm.broadcast(&mut [1.0f32; 4], 0),
    })
}

fn skipped() -> Report {
    poisoned(3, &long_timeout(), &["all_reduce #1 (", "broadcast #1 ("], |comm| {
        if comm.rank() != 1 {
            comm.all_reduce(&mut [1.0f32; 8], Sum)?;
        }
        comm.broadcast(&mut [1.0f32; 8], 0)
    })
}

fn twice() -> Report {
    poisoned(3, &long_timeout(), &["all_reduce #2 (", "rank 1 called "], |comm| {
        if comm.rank() == 1 {
            comm.all_reduce(&mut [1.0f32; 8], Sum)?;
        }
        comm.all_reduce(&mut [1.0f32; 8], Sum)?;
        comm.broadcast(&mut [1.0f32; 8], 0)
    })
}
