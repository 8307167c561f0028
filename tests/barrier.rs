//! The barrier that tells which ranks did not come.

mod support;

use std::sync::Barrier;
use std::time::{Duration, Instant};
use support::World;
use unisono::{Communicator, Config, ErrorKind, Sum};
use unisono_transports::testing::{HANG, NEVER};

fn missing(error: &unisono::Error) -> &[usize] {
    match error.kind() {
        ErrorKind::BarrierTimeout { missing, .. } => missing,
        _ => panic!("another kind: {error}"),
    }
}

#[test]
fn ranks_that_do_not_come_are_all_named() {
    for world in World::ALL {
        let reported = Barrier::new(5);
        world.run(5, &Config::default().with_timeout(NEVER), |comm| {
            let comes = [0, 2].contains(&comm.rank());
            let begun = Instant::now();
            if comes {
                let error = comm.barrier_timeout(Duration::from_millis(400)).unwrap_err();
                assert_eq!(missing(&error), [1, 3, 4], "{world:?} {error}");
                assert!(error.to_string().contains("barrier_timeout #0"), "{error}");
                let took = begun.elapsed();
                assert!(took > Duration::from_millis(300) && took < HANG, "{took:?}");
                assert!(comm.is_poisoned());
            }
            reported.wait();
            if !comes {
                let late = comm.barrier_timeout(NEVER).unwrap_err();
                assert_eq!(missing(&late), [1, 3, 4], "{world:?} {late}");
            }
            reported.wait();
        });
    }
}

#[test]
fn barrier_with_timeout_passes_when_all_come() {
    for (world, ranks) in World::ALL.into_iter().flat_map(|world| [1, 2, 4].map(|ranks| (world, ranks))) {
        world.run(ranks, &Config::default(), |comm: Communicator| {
            for turn in 0..20 {
                std::thread::sleep(Duration::from_millis((comm.rank() * turn % 3) as u64));
                comm.barrier_timeout(HANG).unwrap();
                let mut sum = [1];
                comm.all_reduce(&mut sum, Sum).unwrap();
                assert_eq!(sum, [ranks].map(|ranks| ranks as i32));
            }
        });
    }
}
