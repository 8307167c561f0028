//! Calls made from within a call on the same thread.

use crate::{Communicator, ErrorKind, Result, Sum};
use std::time::Instant;
use unisono_transports::testing::HANG;

/// Makes `call` from within an operation of the same thread, and checks that it is refused at once.
fn assert_refused(comm: &Communicator, call: impl FnOnce() -> Result<()>) {
    let begun = Instant::now();
    let error = comm.with_engine(|_| Ok(call().expect_err("refused"))).unwrap();
    assert!(matches!(error.kind(), ErrorKind::InvalidUsage(_)), "{error}");
    assert!(begun.elapsed() < HANG, "{:?}", begun.elapsed());
    assert!(!comm.is_poisoned());
    comm.all_reduce(&mut [1.0f32], Sum).unwrap();
}

#[test]
fn call_within_a_call_is_refused_at_once() {
    let comm = Communicator::local(1).unwrap().remove(0);
    assert_refused(&comm, || comm.all_reduce(&mut [1.0f32], Sum));
    assert_refused(&comm, || comm.barrier());
    let clone = comm.clone();
    assert_refused(&comm, || clone.memory_stats().map(drop));
}

#[test]
fn wait_within_a_call_is_refused_at_once() {
    let comm = Communicator::local(1).unwrap().remove(0);
    assert_refused(&comm, || comm.all_reduce_async(vec![1.0f32], Sum).wait().map(drop));
}

#[test]
fn call_within_a_spawned_call_is_refused_at_once() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let (outer, inner) = (comm.clone(), comm.clone());
    let work = comm.spawn(move |given| {
        assert!(inner.barrier().unwrap_err().is_invalid_usage());
        given.with_engine(|_| Ok(outer.barrier().unwrap_err().is_invalid_usage()))
    });
    assert!(work.wait().unwrap());
}

#[test]
fn call_through_another_communicator_is_refused_at_once() {
    let [first, second] = [(); 2].map(|()| Communicator::local(1).unwrap().remove(0));
    assert_refused(&first, || second.with_engine(|_| first.barrier()));
    first.with_engine(|_| second.barrier()).unwrap();
}

#[test]
fn abort_within_a_call_ends_the_communicator() {
    let comm = Communicator::local(1).unwrap().remove(0);
    comm.with_engine(|_| {
        comm.abort("from within");
        Ok(())
    })
    .unwrap();
    assert!(matches!(comm.barrier().unwrap_err().kind(), ErrorKind::Aborted { .. }));
}
