//! Keys and values travel round a ring while attention is computed.

use super::*;
use std::thread::sleep;
use std::time::{Duration, Instant};
use unisono_nn::step_plan::Direction;
use unisono_nn::testing::{slow, yardstick};

const LENGTH: usize = 8;

fn attention() -> Attention {
    Attention::new(2, 4)
}

/// Calls `body` with a pass and an input, on a rank of a ring.
fn in_ring<R>(ranks: &Communicator, body: impl FnOnce(&mut Pass<'_>, &Tensor) -> R) -> R {
    let memory = Allocator::default();
    let mut strategy = LocalStrategy::new(Inventory::default(), &memory, 0);
    let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
    pass.set_sequence(LENGTH);
    ContextParallel::new(ranks).with_transfer(KvTransfer::Ring, 1).share(&mut pass);
    let input = Tensor::zeros(&memory, LENGTH, attention().input_width());
    body(&mut pass, &input)
}

/// Calls `use_block` for each block of the ring of a pass.
fn each_block(pass: &mut Pass<'_>, input: &Tensor, mut use_block: impl FnMut()) {
    let shared = ContextParallel::of(pass).expect("a ring").clone();
    let mut blocks = shared.blocks(pass, &attention(), LENGTH).expect("blocks");
    while blocks.next_block(pass, input, Direction::Forward).expect("a block").is_some() {
        use_block();
    }
}

#[test]
fn blocks_travel_while_one_is_used() {
    const LIMIT: Duration = Duration::from_secs(60);
    run_ranks(4, |ranks| {
        let sent = || ranks.traffic_stats().expect("a count").bytes;
        let (start, block) = (sent(), (LENGTH * attention().kv_width() * size_of::<f32>()) as u64);
        let mut used = 0;
        in_ring(&ranks, |pass, input| {
            each_block(pass, input, || {
                used += 1;
                // The use of a block ends when the block has gone on: it does not wait for that.
                let began = Instant::now();
                while sent() < start + used.min(3) * block {
                    assert!(began.elapsed() < LIMIT, "block {used} stays until its use ends");
                    sleep(Duration::from_millis(1));
                }
            });
        });
        assert_eq!((used, sent() - start), (4, 3 * block));
    });
}

/// In backward, a rank waits for the gradients of a block only after it has used the next one, so
/// that they travel meanwhile. Otherwise their wait would be before that for the next keys.
#[test]
fn gradients_travel_while_the_next_block_is_used() {
    const KEYS: &str = "keys and values";
    const GRADIENTS: &str = "gradients of keys and values";
    let waits = run_ranks(4, |ranks| {
        in_ring(&ranks, |pass, input| {
            attention().forward(pass, input.copy().expect("memory")).expect("forward");
            let forward = pass.waits().take();
            let gradient = Tensor::zeros(pass.memory(), LENGTH, attention().width());
            attention().backward(pass, gradient).expect("backward");
            [forward, pass.waits().take()].map(|waits| waits.iter().map(|wait| wait.name).collect::<Vec<_>>())
        })
    });
    for [forward, backward] in waits {
        assert_eq!(forward, [KEYS; 3]);
        assert_eq!(backward, [KEYS, GRADIENTS, KEYS, GRADIENTS, KEYS, GRADIENTS, GRADIENTS]);
    }
}

/// Seconds of a hop, and calls of attention.
const HOP: f64 = 15e-3;
const CALLS: usize = 6;

/// Returns the seconds that a rank waits for keys and values, if a block is used for `seconds`. It
/// is the greater of two ranks' and the least of three tries: other programs add time.
fn waited(seconds: f64) -> f64 {
    let of_rank = |ranks: Communicator| {
        in_ring(&ranks, |pass, input| {
            for _ in 0..CALLS {
                each_block(pass, input, || sleep(Duration::from_secs_f64(seconds)));
            }
            pass.waits().take().iter().map(|wait| wait.time.as_secs_f64()).sum::<f64>()
        })
    };
    let once = || {
        let config = unisono::Config::default().with_channels(1);
        let groups = slow::groups(HOP, 1e-9, &config).expect("two ranks");
        std::thread::scope(|scope| {
            let ranks: Vec<_> = groups.into_iter().map(|ranks| scope.spawn(move || of_rank(ranks))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("an end")).fold(0.0, f64::max)
        })
    };
    (0..3).map(|_| once()).fold(f64::INFINITY, f64::min)
}

#[test]
fn ring_hides_nine_tenths_of_its_hops() {
    let measure = || [waited(0.0), waited(3.5 * HOP)];
    let is_hidden = |[total, exposed]: &[f64; 2]| *total > 0.9 * CALLS as f64 * HOP && *exposed < 0.1 * total;
    yardstick::assert_measured("waits for hops of 15 ms, and those beside work", measure, is_hidden);
}
