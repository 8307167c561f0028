//! The order of calls: ranks that wait for each other, and orders that only look wrong.

use crate::table::{Evidence, Report, Row, every_world, long_timeout, poisoned, refused, works};
use std::time::{Duration, Instant};
use unisono::{Communicator, Config, ErrorKind, Sum};

pub(crate) const ROWS: &[Row] = &[
    Row { number: 8, input: "two communicators used in different orders", evidence: Evidence::Here(orders) },
    Row { number: 9, input: "in place on one rank only", evidence: Evidence::Here(in_place) },
    Row { number: 10, input: "no elements", evidence: Evidence::Here(nothing) },
    Row { number: 13, input: "a send without its receive", evidence: Evidence::Here(unreceived) },
    Row { number: 14, input: "a send to oneself", evidence: Evidence::Here(to_itself) },
    Row { number: 21, input: "one communicator in two threads", evidence: Evidence::Here(threads) },
];

fn short_timeout() -> Config {
    long_timeout().with_timeout(Duration::from_millis(800))
}

fn orders() -> Report {
    every_world(2, &short_timeout(), |comm, together| {
        let other = comm.duplicate().expect("a second one");
        let (first, second): (&Communicator, &Communicator) =
            if comm.rank() == 0 { (comm, &other) } else { (&other, comm) };
        let begun = Instant::now();
        let count = 8 + comm.rank();
        let error = first.all_reduce(&mut vec![1.0f32; count], Sum).expect_err("they wait for each other");
        let time = begun.elapsed();
        together.wait();
        assert!(
            matches!(error.kind(), ErrorKind::Timeout { elsewhere, .. } if elsewhere.len() == 1),
            "{error}"
        );
        for part in ["8 x float, sum", "9 x float, sum", "of another communicator"] {
            assert!(error.to_string().contains(part), "`{part}` is not in: {error}");
        }
        assert!(first.barrier().is_err() && second.barrier().is_err(), "both are over");
        (error.to_string(), time)
    })
}

fn in_place() -> Report {
    works(3, |comm| {
        let mut values = [comm.rank() as f32; 100];
        match comm.rank() {
            1 => comm.all_reduce(&mut values, Sum).expect("it is legal"),
            _ => comm.all_reduce_into(&values.clone(), &mut values, Sum).expect("it is legal"),
        }
        assert_eq!(values, [3.0; 100]);
    })
}

fn nothing() -> Report {
    works(3, |comm| {
        let (none, mut out): (&[f32], [f32; 0]) = (&[], []);
        let ended = [
            comm.all_reduce(&mut out, Sum),
            comm.all_gather(none, &mut out),
            comm.reduce_scatter(none, &mut out, Sum),
            comm.broadcast(&mut out, 1),
            comm.reduce(&mut out, Sum, 2),
            comm.all_to_all(none, &mut out),
            comm.all_gather_v(none, &mut out, &[0, 0, 0]),
            comm.all_to_all_v(none, &[0, 0, 0], &mut out, &[0, 0, 0]),
            comm.send_recv(none, (comm.rank() + 1) % 3, &mut out, (comm.rank() + 2) % 3),
        ];
        ended.into_iter().for_each(|ended| ended.expect("nothing is legal"));
    })
}

fn unreceived() -> Report {
    // More than links and sockets take in on the way.
    poisoned(2, &short_timeout(), &["send/recv #0 (", "67108864 x uint8", "barrier #1"], |comm| {
        match comm.rank() {
            0 => comm.send(&vec![1u8; 64 << 20], 1),
            _ => comm.barrier(),
        }
    })
}

fn to_itself() -> Report {
    refused(2, &["send/recv: peer is rank", "itself"], |comm| comm.send(&[1u8], comm.rank()))
}

fn threads() -> Report {
    works(2, |comm| {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let mut sum = [1u32; 100];
                        comm.all_reduce(&mut sum, Sum).expect("one after the other");
                        assert_eq!(sum, [2; 100]);
                    }
                });
            }
        });
    })
}
