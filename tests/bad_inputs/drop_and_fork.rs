//! Values that no computer should give, and communicators that are over, or another process's.

use crate::support::World;
use crate::table::{Evidence, Report, Row, long_timeout, poisoned, sums, works};
use std::time::{Duration, Instant};
use unisono::{Communicator, ErrorKind, Max, Sum};
use unisono_transports::testing::conformance::run_in_forked_child;

pub(crate) const ROWS: &[Row] = &[
    Row { number: 19, input: "NaN and infinities", evidence: Evidence::Here(not_finite) },
    Row { number: 20, input: "use after an abort", evidence: Evidence::Here(aborted) },
    Row { number: 22, input: "use in a forked child", evidence: Evidence::Here(forked) },
];

/// They are values like others; unless one asks.
fn not_finite() -> Report {
    works(3, |comm| {
        let mut values = [f32::INFINITY, if comm.rank() == 1 { f32::NAN } else { 0.0 }, 1.0];
        comm.all_reduce(&mut values, Sum).expect("values like others");
        assert!(values[0].is_infinite() && values[1].is_nan() && values[2] == 3.0);
    });
    let config = long_timeout().with_check_finite(true);
    poisoned(3, &config, &["element 1 of what rank 2 gave is NaN"], |comm| {
        comm.all_reduce(&mut [f32::MAX, -0.0, 1.0], Max)?;
        match comm.rank() {
            2 => comm.send(&[0.0, f64::NAN, f64::INFINITY], 0),
            0 => comm.recv(&mut [0.0f64; 3], 2),
            _ => Ok(()),
        }
    });
    // With counts per peer, the index counts from the start of the buffer, and the first bad
    // element is named.
    poisoned(3, &config, &["all_to_all_v #1", "element 2 of what rank 2 gave is NaN"], |comm| {
        let mut values = [1.0f32; 6];
        if comm.rank() == 2 {
            (values[2], values[4]) = (f32::NAN, f32::INFINITY);
        }
        comm.all_to_all_v(&values, &[1, 2, 3], &mut vec![0.0; 3 * (1 + comm.rank())], &[1 + comm.rank(); 3])
    });
    poisoned(
        3,
        &config,
        &["all_reduce #1 (8 x float", "element 5 of what rank 1 gave is an infinity"],
        |comm| {
            let mut values = [1.0f32; 8];
            if comm.rank() == 1 {
                values[5] = f32::NEG_INFINITY;
            }
            comm.all_reduce(&mut values, Sum)
        },
    )
}

fn aborted() -> Report {
    poisoned(3, &long_timeout(), &["rank 1 aborted: enough"], |comm| {
        if comm.rank() == 1 {
            comm.abort("enough");
        }
        comm.all_reduce(&mut [1.0f32; 8], Sum)
    })
}

/// Nothing that the child does, or drops, is felt by the parent or its peers.
fn forked() -> Report {
    let mut told = Report { messages: Vec::new(), time: Duration::ZERO };
    for world in World::ALL {
        let results = world.run(2, &long_timeout(), |comm| {
            sums(&comm);
            if comm.rank() > 0 {
                return sums_again(&comm);
            }
            let (begun, mut held) = (Instant::now(), Some(comm));
            // The child gets a copy.
            let story = run_in_forked_child(|| in_the_child(held.take().expect("its copy")));
            let (story, time) = (story.expect("the child does not wait for ever"), begun.elapsed());
            assert!(story.contains("was forked from process"), "{story}");
            sums_again(&held.expect("the parent has its own"));
            (story, time)
        });
        told.time = results.iter().fold(told.time, |time, result| time.max(result.1));
        told.messages = results.into_iter().map(|result| result.0).collect();
    }
    told
}

fn sums_again(comm: &Communicator) -> (String, Duration) {
    sums(comm);
    ("works".to_owned(), Duration::ZERO)
}

fn in_the_child(comm: Communicator) -> String {
    comm.abort("a child has no right to");
    let started = comm.all_reduce_async(vec![1.0f32; 8], Sum).wait().expect_err("it has no thread");
    let error = comm.barrier().expect_err("it is the parent's");
    assert!(matches!(error.kind(), ErrorKind::InvalidUsage(_)) && started.kind() == error.kind());
    // Its own it may have.
    let local = Communicator::builder().config(&long_timeout()).local(1).expect("one").remove(0);
    local.barrier().expect("it is the child's");
    drop(comm);
    error.to_string()
}
