//! Messages with tags: `isend`, `irecv` and `probe` over every transport.

mod support;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::World;
use unisono::{Communicator, Config, ErrorKind, MessageInfo, Sum, Work};
use unisono_transports::rng::Rng;
use unisono_transports::sim::{self, FaultPlan};
use unisono_transports::testing::{HANG, NEVER};

/// One message of a random schedule. Tags below [`ANY_SOURCE_TAGS`] are received from a named rank,
/// the others from any rank.
#[derive(Clone, Copy, Debug)]
struct Message {
    from: usize,
    to: usize,
    tag: u64,
    /// Number among the messages of the same ranks and tag.
    number: u64,
    words: usize,
}

const ANY_SOURCE_TAGS: u64 = 4;
const TAGS: usize = 7;

/// Returns the messages of one round, in the order in which their senders post them.
fn round(
    random: &mut Rng,
    ranks: usize,
    count: usize,
    numbers: &mut HashMap<(usize, usize, u64), u64>,
) -> Vec<Message> {
    (0..count)
        .map(|_| {
            let (sender, receiver, tag) =
                (random.below(ranks), random.below(ranks), random.below(TAGS) as u64);
            let words = match random.below(40) {
                0 => 4_000 + random.below(20_000),
                1..4 => 0,
                _ => random.below(300),
            };
            let number = numbers.entry((sender, receiver, tag)).or_default();
            *number += 1;
            Message { from: sender, to: receiver, tag, number: *number, words }
        })
        .collect()
}

fn content(message: &Message) -> Vec<u64> {
    let Message { from, to, tag, number, words } = *message;
    let word =
        |index: usize| (from as u64) << 60 | (to as u64) << 56 | tag << 52 | number << 20 | index as u64;
    (0..words).map(word).collect()
}

enum Call {
    Send(Work<Vec<u64>>),
    /// A receive from a named rank, and the message that it must get.
    Exact(Message, Work<(Vec<u64>, MessageInfo)>),
    /// A receive from any rank under a tag.
    Any(u64, Work<(Vec<u64>, MessageInfo)>),
}

/// Posts one rank's part of a round in random order, waits in another, and compares all messages
/// with the model.
fn play(comm: &Communicator, random: &mut Rng, messages: &[Message]) {
    let rank = comm.rank();
    let longest = messages.iter().map(|message| message.words).max().unwrap_or(0);
    let mut sends = messages.iter().filter(|message| message.from == rank);
    let mut receives = messages.iter().filter(|message| message.to == rank);
    let mut calls = Vec::new();
    let (mut send, mut receive) = (sends.next(), receives.next());
    while send.is_some() || receive.is_some() {
        if let Some(message) = send.filter(|_| receive.is_none() || random.one_in(2)) {
            calls.push(Call::Send(comm.isend(content(message), message.to, message.tag)));
            send = sends.next();
        } else if let Some(message) = receive {
            let (buffer, tag) = (vec![u64::MAX; longest], message.tag);
            calls.push(match tag < ANY_SOURCE_TAGS {
                true => Call::Exact(*message, comm.irecv(buffer, message.from, tag)),
                false => Call::Any(tag, comm.irecv(buffer, None, tag)),
            });
            receive = receives.next();
        }
    }
    let mut any: Vec<(usize, MessageInfo, Vec<u64>)> = Vec::new();
    let mut order: Vec<usize> = (0..calls.len()).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last + 1));
    }
    let mut calls: Vec<Option<Call>> = calls.into_iter().map(Some).collect();
    for index in order {
        match calls[index].take().unwrap() {
            Call::Send(work) => drop(work.wait().unwrap()),
            Call::Exact(message, work) => {
                let (buffer, info) = work.wait().unwrap();
                assert_eq!(
                    (info.source, info.tag, info.bytes),
                    (message.from, message.tag, message.words * 8)
                );
                assert_eq!(buffer[..message.words], content(&message));
            }
            Call::Any(tag, work) => {
                let (buffer, info) = work.wait().unwrap();
                assert_eq!(info.tag, tag);
                any.push((index, info, buffer));
            }
        }
    }
    any.sort_by_key(|(index, ..)| *index);
    let mut expected: HashMap<(usize, u64), Vec<&Message>> = HashMap::new();
    for message in messages.iter().filter(|message| message.to == rank && message.tag >= ANY_SOURCE_TAGS) {
        expected.entry((message.from, message.tag)).or_default().push(message);
    }
    // The receives of a tag, in the order posted, get the messages of each source in the order
    // sent.
    for (_, info, buffer) in any {
        let message = expected.get_mut(&(info.source, info.tag)).unwrap().remove(0);
        assert_eq!(buffer[..info.bytes / 8], content(message));
    }
    assert!(expected.values().all(Vec::is_empty));
}

/// Sends `total` random messages among `comm`'s ranks, a collective between rounds.
fn play_rounds(comm: &Communicator, seed: u64, total: usize) {
    const ROUND: usize = 1000;
    let mut shared = Rng::new(seed, 0);
    let mut rng = Rng::new(seed, 1 + comm.rank() as u64);
    let mut numbers = HashMap::new();
    for _ in 0..total.div_ceil(ROUND) {
        let messages = round(&mut shared, comm.size(), ROUND, &mut numbers);
        play(comm, &mut rng, &messages);
        let mut sum = [1u32];
        comm.all_reduce(&mut sum, Sum).unwrap();
        assert_eq!(sum, [comm.size() as u32]);
    }
}

#[test]
fn random_messages_match_model() {
    for world in World::ALL {
        world.run(4, &Config::default(), |comm| play_rounds(&comm, 7, 100_000));
    }
}

fn simulated<R: Send>(ranks: usize, plan: FaultPlan, body: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    simulated_with(&Config::default().with_timeout(Duration::from_secs(5)), ranks, plan, body)
}

fn simulated_with<R: Send>(
    config: &Config,
    ranks: usize,
    plan: FaultPlan,
    body: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let config = config.clone().with_fifo_slot_bytes(4096);
    let fabrics = sim::fabrics(ranks, config.geometry(), plan);
    std::thread::scope(|scope| {
        let (body, config) = (&body, &config);
        let rank = |fabric| {
            scope.spawn(move || body(Communicator::builder().config(config).from_fabric(fabric).unwrap()))
        };
        let threads: Vec<_> = fabrics.into_iter().map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

#[test]
fn random_messages_match_model_in_simulation() {
    for seed in 0..5 {
        simulated(3, FaultPlan::none(seed), |comm| play_rounds(&comm, seed, 2000));
    }
}

/// Under random faults, every message arrives as the model says or its call fails; nothing hangs.
#[test]
fn messages_survive_or_fail_under_random_faults() {
    for seed in 0..40 {
        let plan = FaultPlan::random(seed, 3, Duration::from_secs(5));
        simulated(3, plan, |comm| {
            let (mut shared, rank) = (Rng::new(seed, 0), comm.rank());
            let messages = round(&mut shared, 3, 200, &mut HashMap::new());
            let works: Vec<_> = (messages.iter())
                .filter(|message| message.to == rank)
                .map(|message| (message, comm.irecv(vec![0; message.words], message.from, message.tag)))
                .collect();
            let sends: Vec<_> = (messages.iter())
                .filter(|message| message.from == rank)
                .map(|message| comm.isend(content(message), message.to, message.tag))
                .collect();
            for (message, work) in works {
                match work.wait() {
                    Ok((buffer, _)) => assert_eq!(buffer, content(message)),
                    Err(error) => assert!(error.is_poisoning(), "{error}"),
                }
            }
            sends.into_iter().for_each(|work| drop(work.wait()));
        });
    }
}

#[test]
fn opposite_irecv_and_isend_do_not_block() {
    for world in World::ALL {
        world.run(2, &Config::default(), |comm| {
            let peer = 1 - comm.rank();
            for length in [1, 100_000, 4 << 20] {
                let received = comm.irecv(vec![0u8; length], peer, 1);
                let sent = comm.isend(vec![comm.rank() as u8 + 1; length], peer, 1);
                sent.wait().unwrap();
                let (buffer, info) = received.wait().unwrap();
                assert_eq!((buffer[length - 1], info.bytes), (peer as u8 + 1, length));
            }
        });
    }
}

#[test]
fn messages_progress_while_sender_computes() {
    for world in World::ALL {
        let received = AtomicBool::new(false);
        world.run(2, &Config::default(), |comm| {
            if comm.rank() == 0 {
                let work = comm.isend(vec![7u8; 64 << 20], 1, 0);
                // It makes no call until the message is there.
                let begun = Instant::now();
                while !(received.load(Ordering::Acquire) && work.is_finished()) {
                    assert!(begun.elapsed() < HANG, "{world:?}: the message waits for a call of its sender");
                    std::thread::sleep(Duration::from_millis(1));
                }
                work.wait().unwrap();
            } else {
                comm.irecv(vec![0u8; 64 << 20], 0, 0).wait().unwrap();
                received.store(true, Ordering::Release);
            }
        });
    }
}

#[test]
fn waiting_collectives_move_messages() {
    for world in World::ALL {
        world.run(2, &Config::default(), |comm| {
            let peer = 1 - comm.rank();
            let sent = comm.isend(vec![1u8; 8 << 20], peer, 3);
            if comm.rank() == 1 {
                // Rank 0 is in the barrier already and has to move its message from there.
                comm.irecv(vec![0u8; 8 << 20], peer, 3).wait().unwrap();
            }
            comm.barrier().unwrap();
            if comm.rank() == 0 {
                comm.irecv(vec![0u8; 8 << 20], peer, 3).wait().unwrap();
            }
            sent.wait().unwrap();
        });
    }
}

#[test]
fn probe_finds_message_and_leaves_it() {
    for world in World::ALL {
        world.run(2, &Config::default(), |comm| {
            if comm.rank() == 0 {
                for words in [3, 50_000] {
                    comm.isend(vec![9u32; words], 1, words as u64).wait().unwrap();
                }
                return;
            }
            for words in [50_000, 3] {
                let info = loop {
                    assert_eq!(comm.probe(0, 1).unwrap(), None);
                    if let Some(info) = comm.probe(None, words as u64).unwrap() {
                        break info;
                    }
                };
                assert_eq!((info.source, info.tag, info.bytes), (0, words as u64, words * 4));
                let (buffer, again) = comm.irecv(vec![0u32; words], info.source, info.tag).wait().unwrap();
                assert_eq!((buffer, again), (vec![9; words], info));
            }
        });
    }
}

#[test]
fn message_longer_than_buffer_fails_on_receiver() {
    for world in World::ALL {
        world.run(2, &Config::default(), |comm| {
            for bytes in [100, 1 << 20] {
                let error = match comm.rank() {
                    0 => comm.isend(vec![0u8; bytes], 1, 0).wait().err(),
                    _ => comm.irecv(vec![0u8; 99], 0, 0).wait().err(),
                };
                // The sender of a short message is done before it is received.
                let error = match error {
                    None => {
                        assert!(comm.rank() == 0 && bytes == 100);
                        continue;
                    }
                    Some(error) => error,
                };
                let expected =
                    ErrorKind::CountMismatch { sender: 0, sent: bytes as u64, receiver: 1, expected: 99 };
                assert_eq!(*error.kind(), expected);
            }
            // Other messages go on.
            assert!(!comm.is_poisoned());
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn message_timeout_names_peer_and_tag() {
    let config = Config::default().with_timeout(Duration::from_millis(300));
    World::Shm.run(2, &config, |comm| {
        if comm.rank() == 1 {
            let error = comm.irecv(vec![0u64; 2], 0, 42).wait().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::MessageTimeout { peer: Some(0), .. }), "{error}");
            assert!(error.to_string().contains("irecv from rank 0 with tag 42 (16 bytes)"), "{error}");
        } else {
            std::thread::sleep(Duration::from_millis(600));
            assert!(comm.barrier().unwrap_err().to_string().contains("tag 42"));
        }
    });
}

#[test]
fn waits_with_a_limit_add_up_to_the_timeout() {
    let config = Config::default().with_timeout(Duration::from_millis(300));
    World::Shm.run(2, &config, |comm| {
        if comm.rank() == 1 {
            let mut work = Some(comm.irecv(vec![0u64; 2], 0, 42));
            let wait = || match work.take()?.wait_timeout(Duration::from_millis(20)) {
                Ok(result) => result.err(),
                Err(again) => {
                    work = Some(again);
                    None
                }
            };
            let error =
                std::iter::repeat_with(wait).take(60).flatten().next().expect("the message times out");
            assert!(matches!(error.kind(), ErrorKind::MessageTimeout { peer: Some(0), .. }), "{error}");
        } else {
            std::thread::sleep(Duration::from_millis(600));
        }
    });
}

/// The clock of a wait runs by the moves of its own message, however fast others come.
#[test]
fn message_times_out_while_others_arrive() {
    const OTHERS: usize = 20_000;
    let config = Config::default().with_timeout(Duration::from_millis(20));
    let arrived = simulated_with(&config, 2, FaultPlan::none(3), |comm| {
        if comm.rank() == 0 {
            let send = |_| comm.isend(vec![0u8; 1000], 1, 1).wait();
            return (0..OTHERS).map(send).take_while(Result::is_ok).count();
        }
        let others: Vec<_> = (0..OTHERS).map(|_| comm.irecv(vec![0u8; 1000], 0, 1)).collect();
        let error = comm.irecv(vec![0u64; 2], 0, 42).wait().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::MessageTimeout { peer: Some(0), .. }), "{error}");
        others.into_iter().map(Work::wait).filter(Result::is_ok).count()
    });
    assert!(arrived[1] > 0 && arrived[1] < OTHERS, "{arrived:?}");
}

#[test]
fn message_times_out_beside_a_turn_that_does_not_end() {
    let config = Config::default().with_timeout(Duration::from_millis(300));
    World::Threads.run(2, &config, |comm| {
        let begun = Instant::now();
        let turn = comm.spawn(move |comm| {
            while begun.elapsed() < HANG {
                comm.barrier()?;
            }
            Ok(())
        });
        if comm.rank() == 1 {
            let error = comm.irecv(vec![0u64; 2], 0, 42).wait().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::MessageTimeout { peer: Some(0), .. }), "{error}");
        }
        let error = turn.wait().expect_err("the message ends it");
        assert!(error.to_string().contains("tag 42"), "{error}");
    });
}

#[test]
fn wait_timeout_returns_handle_and_message_goes_on() {
    World::Threads.run(2, &Config::default(), |comm| {
        if comm.rank() == 0 {
            let work = comm.irecv(vec![0u8; 5], 1, 0);
            let work = work.wait_timeout(Duration::from_millis(20)).unwrap_err();
            comm.barrier().unwrap();
            assert_eq!(work.wait().unwrap().0, [4; 5]);
        } else {
            comm.barrier().unwrap();
            comm.isend(vec![4u8; 5], 0, 0).wait().unwrap();
        }
    });
}

#[test]
fn abort_ends_pending_messages() {
    for world in World::ALL {
        world.run(2, &Config::default().with_timeout(NEVER), |comm| {
            let work = comm.irecv(vec![0u8; 5], None, None);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(50));
                    if comm.rank() == 0 {
                        comm.abort("enough");
                    }
                });
                let begun = Instant::now();
                let error = work.wait().unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Aborted { by: 0, .. }), "{error}");
                assert!(begun.elapsed() < HANG);
            });
            assert!(comm.isend(vec![0u8], 0, 0).wait().is_err());
        });
    }
}

#[test]
fn dropped_communicator_delivers_its_messages() {
    for world in World::ALL {
        world.run(2, &Config::default(), |comm| {
            if comm.rank() == 0 {
                for bytes in [10, 4 << 20] {
                    drop(comm.isend(vec![5u8; bytes], 1, bytes as u64));
                }
                drop(comm);
            } else {
                std::thread::sleep(Duration::from_millis(200));
                for bytes in [4 << 20, 10] {
                    let (buffer, _) = comm.irecv(vec![0u8; bytes], 0, bytes as u64).wait().unwrap();
                    assert_eq!(buffer, vec![5; bytes]);
                }
                let error = comm.irecv(vec![0u8], 0, 0).wait().unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::PeerFinalized { peer: 0 }), "{error}");
                let error = comm.irecv(vec![0u8], None, 0).wait().unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::PeerFinalized { peer: 0 }), "{error}");
            }
        });
    }
}

#[test]
fn many_unexpected_messages_wait_at_their_sender() {
    for world in World::ALL {
        world.run(2, &Config::default(), |comm| {
            const COUNT: u64 = 2000;
            if comm.rank() == 0 {
                let works: Vec<_> = (0..COUNT).map(|tag| comm.isend(vec![tag; 1000], 1, tag)).collect();
                works.into_iter().for_each(|work| drop(work.wait().unwrap()));
            } else {
                for tag in (0..COUNT).rev() {
                    assert_eq!(comm.irecv(vec![0; 1000], 0, tag).wait().unwrap().0, vec![tag; 1000]);
                }
            }
        });
    }
}

#[test]
fn messages_await_in_callbacks_and_to_self() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let doubled = comm.irecv(vec![0u32; 1], 0, 1).map(|(values, _)| values[0] * 2);
    comm.isend(vec![21u32], 0, 1).wait().unwrap();
    assert_eq!(doubled.wait().unwrap(), 42);
    let error = comm.isend(vec![0u8], 3, 0).wait().unwrap_err();
    assert!(error.is_invalid_usage() && !comm.is_poisoned(), "{error}");
}
