//! One job with a raw rank.

use crate::scenario::{Calls, Place, Step};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use unisono::bootstrap::{self, RankInfo};
use unisono::{Communicator, Config, Error, Transport, UniqueId, WaitMode};
use unisono_transports::rng::Rng;
use unisono_transports::testing::HANG;
use unisono_transports::testing::raw_peer::{Wrong, break_protocol};
use unisono_transports::{Error as TransportError, Fabric, Reconnect, RegroupRequest};

/// Descriptors of one conversation.
pub(crate) const FDS: usize = 48;
pub(crate) const RAW_THREAD: &str = "raw rank";
/// Time without any movement after which a call fails.
const TIMEOUT: Duration = Duration::from_millis(150);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum World {
    Shm,
    Tcp,
    Encrypted,
}

/// A job that a seed describes.
#[derive(Debug)]
pub(crate) struct Conversation {
    seed: u64,
    pub(crate) world: World,
    pub(crate) wrong: Wrong,
    ranks: usize,
    raw: usize,
    slot_bytes: usize,
    steps: Vec<Step>,
    /// The ranks that are left shrink after an error.
    shrinks: bool,
    /// The raw rank drops its communicator before this step.
    leaves_at: usize,
}

/// The course of a conversation.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) wrong: Vec<String>,
    pub(crate) has_acted: bool,
    pub(crate) calls: usize,
    pub(crate) errors: usize,
}

impl Conversation {
    pub(crate) fn of_seed(seed: u64) -> Self {
        let mut random = Rng::new(seed, 0);
        let world = random.choose(&[World::Shm, World::Shm, World::Tcp, World::Tcp, World::Encrypted]);
        let wrong = if world == World::Shm { Wrong::IN_MEMORY } else { Wrong::OVER_TCP };
        let wrong = random.choose(wrong);
        let ranks = 2 + random.below(2);
        let raw = random.below(ranks);
        let kinds = match wrong {
            Wrong::Message => Step::MESSAGES,
            Wrong::Length | Wrong::Memory if random.one_in(2) => Step::MESSAGES,
            Wrong::Contents if random.one_in(2) => Step::OBJECTS_AND_GROUPS,
            _ => Step::ALL,
        };
        let steps = (0..1 + random.below(4)).map(|_| Step::random(&mut random, kinds.clone(), ranks));
        let steps: Vec<_> = steps.collect();
        let leaves_at = if random.one_in(8) { random.below(steps.len()) } else { steps.len() };
        let slot_bytes = random.choose(&[4 << 10, 4 << 10, 32 << 10]);
        Self { seed, world, wrong, ranks, raw, slot_bytes, steps, shrinks: random.one_in(4), leaves_at }
    }

    fn config(&self) -> Config {
        let transport = if self.world == World::Shm { Transport::Shm } else { Transport::Tcp };
        Config::default()
            .with_transport(transport)
            .with_encryption(self.world == World::Encrypted)
            .with_timeout(TIMEOUT)
            .with_join_timeout(HANG / 2)
            .with_fifo_slot_bytes(self.slot_bytes)
            .with_shm_window_bytes(64 << 10)
            .with_symmetric_heap_bytes(4 << 20)
            .with_sockets_per_peer(1 + self.ranks % 2)
            .with_wait(WaitMode::Block)
    }

    /// Holds the conversation.
    pub(crate) fn hold(&self) -> Findings {
        let id = UniqueId::new(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("an address");
        // No rank leaves before all have ended, so that its end is not what the others see.
        let end = Barrier::new(self.ranks);
        std::thread::scope(|scope| {
            let (id, end) = (&id, &end);
            let start = |rank| {
                let name = if rank == self.raw { RAW_THREAD } else { "honest rank" };
                let run =
                    move || if rank == self.raw { self.raw(id, end) } else { self.honest(id, rank, end) };
                let named = std::thread::Builder::new().name(name.to_owned());
                named.spawn_scoped(scope, run).expect("a thread")
            };
            let threads: Vec<_> = (0..self.ranks).map(start).collect();
            let mut findings = Findings::default();
            for (rank, thread) in threads.into_iter().enumerate() {
                match thread.join() {
                    Ok(found) => {
                        findings.wrong.extend(found.wrong);
                        findings.has_acted |= found.has_acted;
                        findings.calls += found.calls;
                        findings.errors += found.errors;
                    }
                    Err(_) if rank == self.raw => findings.has_acted = true,
                    Err(_) => findings.wrong.push(format!("rank {rank} panicked")),
                }
            }
            findings
        })
    }

    fn honest(&self, id: &UniqueId, rank: usize, end: &Barrier) -> Findings {
        let end = AtEnd(end);
        let mut calls = Calls::new(self.place(rank));
        let Some(comm) = calls.met(Communicator::join(id, rank, self.ranks, &self.config())) else {
            return Findings { wrong: calls.wrong, ..Findings::default() };
        };
        for (number, step) in self.steps.iter().enumerate() {
            calls.play(&comm, number, step);
            if calls.has_ended {
                break;
            }
        }
        if self.shrinks && calls.has_ended {
            calls.shrink(&comm);
        }
        drop(end);
        Findings { wrong: calls.wrong, has_acted: false, calls: calls.calls, errors: calls.errors }
    }

    fn place(&self, rank: usize) -> Place {
        let changes = self.wrong.may_change_results() || self.leaves_at < self.steps.len();
        // In shared memory, a rank can also change what two others send to each other.
        let changes_all = self.world == World::Shm && self.wrong == Wrong::Memory;
        Place { rank, ranks: self.ranks, raw: self.raw, seed: self.seed, changes, changes_all }
    }

    fn raw(&self, id: &UniqueId, end: &Barrier) -> Findings {
        let end = AtEnd(end);
        let info = RankInfo { rank: self.raw, ranks: self.ranks, id: id.clone() };
        let config = self.config();
        let mut calls = Calls::new(self.place(self.raw));
        let Some(fabric) = calls.met(bootstrap::join(&info, &config)) else { return Findings::default() };
        let (fabric, mut peer) = break_protocol(fabric, self.wrong, self.seed);
        let reconnect = Arc::new(Nowhere(self.seed));
        let builder = Communicator::builder().config(&config).reconnect(reconnect);
        let comm = builder.from_fabric(fabric).expect("valid settings");
        // Its own results mean nothing, but its calls are those of the others.
        for (number, step) in self.steps.iter().enumerate() {
            if number == self.leaves_at {
                drop(comm);
                return Findings { has_acted: true, ..Findings::default() };
            }
            peer.between_calls();
            calls.play(&comm, number, step);
            if calls.has_ended {
                break;
            }
        }
        let has_acted = peer.has_acted();
        drop(end);
        Findings { has_acted, ..Findings::default() }
    }
}

/// Lets a rank wait for the others, also after a panic.
struct AtEnd<'b>(&'b Barrier);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// The groups that the raw rank offers: nobody can meet there.
struct Nowhere(u64);

impl Reconnect for Nowhere {
    fn endpoint(&self) -> Result<String, TransportError> {
        let mut random = Rng::new(self.0, 3);
        let text =
            ["127.0.0.1:1", "", "127.0.0.1:1 0011223344556677", "[::1]:99999", "é\u{1b}[2J", "localhost"];
        let text = random.choose(&text);
        Ok(text.repeat(1 + random.below(3)))
    }

    fn connect(&self, _request: RegroupRequest<'_>, _timeout: Duration) -> Result<Fabric, TransportError> {
        Err(TransportError::Timeout { what: "the raw rank does not come".to_owned() })
    }
}

/// Returns what is wrong about an error, if anything is.
pub(crate) fn fault_of(error: &Error) -> Option<String> {
    let text = format!("{error}; {}", error.help());
    let is_bug = matches!(error.kind(), unisono::ErrorKind::Bug(_));
    let steers = text.chars().any(|letter| letter.is_control() && !['\n', '\t'].contains(&letter));
    (is_bug || steers).then_some(text)
}
