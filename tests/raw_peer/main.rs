//! A rank that has the job's secret and breaks the protocol, among honest ranks.
//!
//! Each conversation is a job of two or three ranks that meet as any ranks do, one of them raw: it
//! does one wrong thing, which the seed chooses. The honest ranks must not panic, and each of their
//! calls ends, with a result that the raw rank could have given them or with an error. No byte
//! outside of their buffers changes, and resident memory stays within half a gibibyte.
//!
//! `cargo xtask faults` runs the long form. A conversation that fails is repeated by `TEST_SEED=n
//! cargo test --release --test raw_peer`, or a range of them by `TEST_SEED=n..m`.

mod conversation;
mod scenario;

use conversation::{Conversation, FDS, Findings};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use unisono_transports::sys::rlimit;
use unisono_transports::testing::{HANG, memory};

/// Conversations at once: their ranks wait most of the time.
const CONCURRENT: usize = 40;
/// Descriptors of the rest of the process.
const FDS_OF_OTHERS: usize = 128;
/// Bound of the resident memory of the process, with all ranks of all conversations at once.
const RESIDENT_MAX_MIB: usize = 512;
/// Bound of the memory that is allocated after the last conversation.
const KEPT_MAX_MIB: usize = 8;

/// Counts of conversations, by wrong thing.
#[derive(Clone, Copy, Default)]
struct Count {
    begun: usize,
    acted: usize,
    errors: usize,
    calls: usize,
}

#[test]
fn raw_peer_harms_nobody() {
    let long = std::env::var_os("TEST_LONG").is_some();
    let mut seeds = 0..if long { 100_000 } else { 2_000 };
    if let Ok(given) = std::env::var("TEST_SEED") {
        let (first, end) = given.split_once("..").unwrap_or((&given, ""));
        let first = first.parse().expect("TEST_SEED is a number, or a range of numbers");
        seeds = first..end.parse().unwrap_or(first + 1);
    }
    let count = seeds.end - seeds.start;
    note_panics();
    memory::share_arenas();
    let run = Run { next: AtomicU64::new(seeds.start), end: seeds.end, ..Run::default() };
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..concurrent()).map(|_| scope.spawn(|| run.work())).collect();
        run.watch(&workers);
    });
    let kept = memory::allocated_bytes() >> 20;
    assert!(kept < KEPT_MAX_MIB, "{kept} MiB are allocated when all ranks have ended");
    let peak_mib = resident_mib("VmHWM");
    run.print(begun.elapsed(), peak_mib);
    let findings = run.findings.lock().expect("no panic");
    let repeat = "repeat one with TEST_SEED=n cargo test --release --test raw_peer";
    assert!(findings.is_empty(), "{} findings; {repeat}\n{}", findings.len(), findings.join("\n"));
    let panics = PANICS.lock().expect("no panic");
    assert!(panics.is_empty(), "panics, of which a conversation does not know: {panics:#?}");
    assert!(peak_mib < RESIDENT_MAX_MIB, "resident memory reached {peak_mib} MiB");
    assert!(count < 100 || run.acted() * 2 > count as usize, "most peers do their wrong thing");
}

/// The conversations that are left, and what was found.
#[derive(Default)]
struct Run {
    next: AtomicU64,
    end: u64,
    /// Conversations under way, with their begin.
    running: Mutex<BTreeMap<u64, Instant>>,
    /// The longest conversation.
    slowest: Mutex<(Duration, u64)>,
    findings: Mutex<Vec<String>>,
    counts: Mutex<BTreeMap<String, Count>>,
    stopped: AtomicBool,
}

impl Run {
    /// Holds one conversation after the other.
    fn work(&self) {
        loop {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end || self.stopped.load(Ordering::Relaxed) {
                return;
            }
            let conversation = Conversation::of_seed(seed);
            self.running.lock().expect("no panic").insert(seed, Instant::now());
            let Findings { wrong, has_acted, calls, errors } = conversation.hold();
            let begun = self.running.lock().expect("no panic").remove(&seed).expect("it was begun");
            let mut slowest = self.slowest.lock().expect("no panic");
            *slowest = (*slowest).max((begun.elapsed(), seed));
            drop(slowest);
            let mut counts = self.counts.lock().expect("no panic");
            let count =
                counts.entry(format!("{:?} {:?}", conversation.world, conversation.wrong)).or_default();
            count.begun += 1;
            count.acted += usize::from(has_acted);
            count.calls += calls;
            count.errors += errors;
            if !wrong.is_empty() {
                let mut findings = self.findings.lock().expect("no panic");
                findings.push(format!("seed {seed}, {conversation:?}: {wrong:#?}"));
                self.stopped.store(findings.len() >= FINDINGS_MAX, Ordering::Relaxed);
            }
        }
    }

    /// Waits for the workers, and ends the process if a conversation does not end.
    fn watch<T>(&self, workers: &[std::thread::ScopedJoinHandle<'_, T>]) {
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            let running = self.running.lock().expect("no panic");
            let hung = running.iter().find(|(_, begun)| begun.elapsed() > HANG);
            if let Some((seed, _)) = hung {
                let conversation = Conversation::of_seed(*seed);
                eprintln!("seed {seed} does not end within {HANG:?}: {conversation:?}");
                std::process::exit(101);
            }
        }
    }

    fn acted(&self) -> usize {
        self.counts.lock().expect("no panic").values().map(|count| count.acted).sum()
    }

    fn print(&self, took: Duration, most: usize) {
        for (name, Count { begun, acted, errors, calls }) in self.counts.lock().expect("no panic").iter() {
            println!(
                "{name}: {begun} conversations, {acted} with the wrong thing, {errors} errors of {calls} calls"
            );
        }
        let (longest, seed) = *self.slowest.lock().expect("no panic");
        println!("{took:?}, the longest {longest:?} with seed {seed}, {most} MiB");
    }
}

/// Panics of threads that no conversation joins.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Notes every panic, those of background threads too, but for those of raw ranks.
fn note_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("");
        if name != conversation::RAW_THREAD {
            eprintln!("{name}: {panic}");
            PANICS.lock().expect("no panic").push(format!("{name}: {panic}"));
        }
    }));
}

fn concurrent() -> usize {
    let room = rlimit::raise_fd_limit(CONCURRENT * FDS + FDS_OF_OTHERS);
    (room.saturating_sub(FDS_OF_OTHERS) / FDS).clamp(1, CONCURRENT)
}

/// Returns a line of `/proc/self/status` in MiB.
fn resident_mib(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with(name)).expect("a line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number") / 1024
}

/// Findings after which no new conversation begins.
const FINDINGS_MAX: usize = 10;
