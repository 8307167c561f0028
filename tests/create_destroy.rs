//! Worlds that are created and destroyed leak nothing.
//!
//! The test is alone in its process, whose descriptors, threads and memory it counts.

mod support;

use std::fs;
use support::World;
use unisono::{Config, Sum};

/// Returns (descriptors, threads, shared memory segments, resident KiB) of this process after the
/// last worker has exited.
fn held_resources() -> [usize; 4] {
    std::thread::sleep(std::time::Duration::from_millis(200));
    let status = fs::read_to_string("/proc/self/status").expect("proc");
    let field = |name: &str| -> usize {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.trim_end_matches("kB").trim().parse().expect("a number")
    };
    let maps = fs::read_to_string("/proc/self/maps").expect("proc");
    let segments = maps.lines().filter(|line| line.contains("memfd:") || line.contains("/dev/shm")).count();
    let descriptors = fs::read_dir("/proc/self/fd").expect("proc").count();
    [descriptors, field("Threads:"), segments, field("VmRSS:")]
}

/// Makes and drops so many worlds in which ranks have talked and started an operation.
fn cycle(world: World, times: usize) {
    for _ in 0..times {
        world.run(2, &Config::default(), |comm| {
            let mut values = [comm.rank() as f32 + 1.0; 1000];
            comm.all_reduce(&mut values, Sum).unwrap();
            assert_eq!(comm.all_reduce_async(values.to_vec(), Sum).wait().unwrap()[999], 6.0);
        });
    }
}

/// Growth per iteration that is not a leak. The allocator sometimes keeps freed buffers of TCP
/// links, 8 MiB each, but a leak would be in every iteration.
const SLACK_KIB: usize = 1 << 10;
const ROUNDS: usize = 4;
/// Threads that the pool for started operations may add, because two operations overlapped for a
/// moment. It keeps idle threads for a while. A leak would be in every iteration.
const POOL_THREADS: usize = 2;

#[test]
fn create_destroy_1000_times_leaks_nothing() {
    for (world, times) in [(World::Shm, 1000), (World::Threads, 100), (World::Tcp, 100)] {
        cycle(world, times / (ROUNDS + 1));
        let mut held = vec![held_resources()];
        for _ in 0..ROUNDS {
            cycle(world, times / (ROUNDS + 1));
            held.push(self::held_resources());
            let ([descriptors, threads, segments, _], first) = (held[held.len() - 1], held[0]);
            assert_eq!([descriptors, segments], [first[0], first[2]], "{world:?}: descriptors, segments");
            assert!(threads <= first[1] + POOL_THREADS, "{world:?}: {threads} threads, {} before", first[1]);
        }
        let grown = held.windows(2).map(|turn| turn[1][3].saturating_sub(turn[0][3])).min();
        assert!(grown <= Some(SLACK_KIB), "{world:?}: held after each turn {held:?}");
    }
}
