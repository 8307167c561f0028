//! Ranks that end within a layer that is cut over GPUs: by a panic, by an error of their own, by kill -9. The others have come to a sum
//! by then, or to rows, and their kernels wait there. The software device stands in for a GPU, but with `UNISONO_TEST_GPU`.

use super::{Module, Pass, Registry, Result, Sequential, Split, Start, Tensor, plan};
use crate::device::Device;
use crate::error::Error;
use crate::flat::Ranks;
use crate::memory::Memory;
use crate::nn::check::numbers;
use crate::pass::Seeds;
use crate::strategy::{Local, Way};
use crate::testing::{gpu, on};
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};
use unisono::device::Gpu;
use unisono::{Communicator, Config, ErrorKind, GpuSizes, UniqueId};

/// On which way a rank ends, and how.
type End = (Way, fn() -> Result<()>);

/// Within the region that is cut: there a rank ends, if it does.
struct Trap(Option<End>);

impl Trap {
    fn spring(&self, here: Way) -> Result<()> {
        match self.0 {
            Some((way, end)) if way == here => end(),
            _ => Ok(()),
        }
    }
}

impl Module for Trap {
    fn forward(&self, _: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        self.spring(Way::Forward).map(|()| input)
    }

    fn backward(&self, _: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        self.spring(Way::Backward).map(|()| gradient)
    }
}

/// What one rank of a layer does.
#[derive(Clone, Copy)]
struct Part {
    /// Whether rows are cut between regions.
    sequence: bool,
    /// Whether this rank ends.
    end: Option<End>,
}

/// One way through a layer and back on `gpu`; what this rank hears of the others. Its stream is empty then, whatever has happened.
fn through(group: Communicator, gpu: &Gpu, part: Part) -> Result<()> {
    let (mut registry, memory) = (Registry::default(), Memory::default());
    let device = Device::new(gpu, &memory)?;
    let ranks = Ranks::new(group, Some(gpu))?;
    let split = Split::new(Some(ranks.clone()), part.sequence, plan());
    let (_, layer) = registry.unit("m", |registry| {
        let into = registry.scope("into", |r| split.linear(r, 4, 12, Start::fan_in(4)));
        let out = registry.scope("out", |r| split.linear(r, 12, 4, Start::fan_in(12)));
        Sequential(vec![into, Box::new(Trap(part.end)), out])
    });
    let mut strategy = Local::new(registry.finish(), &memory, 3);
    let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
    pass.set_device(Some(&device));
    let rows = pass.tensor_of(6, 4, &numbers(1, 24))?;
    let ended = layer.forward(&mut pass, rows).and_then(|output| layer.backward(&mut pass, output));
    if part.end.is_none() {
        device.compute().stream().synchronize()?;
    }
    ended.map(drop).and(ranks.check())
}

/// Two ranks that nothing happens to.
fn works(gpu: &Gpu, sequence: bool) {
    on(2, |group| through(group, gpu, Part { sequence, end: None }).expect("a GPU as good as new"));
}

/// That two of three ranks hear at once who has ended within the layer, as expected, and can go on with their GPU.
fn leaves(end: fn() -> Result<()>, expected: fn(&ErrorKind) -> bool) {
    let gpu = gpu();
    for (sequence, way) in
        [false, true].into_iter().flat_map(|rows| [(rows, Way::Forward), (rows, Way::Backward)])
    {
        let errors = on(3, |group| {
            let (begun, rank) = (Instant::now(), group.rank());
            let part = Part { sequence, end: (rank == 1).then_some((way, end)) };
            // Unwound, it has dropped all that it had.
            let ended = catch_unwind(AssertUnwindSafe(|| through(group, &gpu, part)));
            assert!(begun.elapsed() < AT_ONCE, "rank {rank} after {:?}, {way:?}", begun.elapsed());
            ended.ok().and_then(Result::err)
        });
        for rank in [0, 2] {
            let Some(Error::Collective(error)) = &errors[rank] else { panic!("{:?}", errors[rank]) };
            assert!(expected(error.kind()), "{way:?}: {error}");
        }
        works(&gpu, sequence);
    }
}

fn has_left(kind: &ErrorKind) -> bool {
    *kind == ErrorKind::PeerLeft { peer: 1 }
}

/// Far from the timeout of a communicator, which would free kernels too, in the end.
const AT_ONCE: Duration = Duration::from_secs(15);

#[test]
fn a_rank_that_panics_within_a_layer_is_named() {
    // By the word of its communicator of the host or of that of the GPU, whichever is gone first.
    let said = |kind: &ErrorKind| {
        matches!(kind, ErrorKind::Aborted { by: 1, reason } if reason == "its thread panicked")
            || has_left(kind)
    };
    leaves(|| panic!("a panic within a layer"), said);
}

#[test]
fn a_rank_that_returns_early_from_a_layer_is_named() {
    leaves(|| Err(Error::illegal("an error within a layer")), has_left);
}

/// Tells the second process where the ranks meet, and what it does.
const MEETING: &str = "UNISONO_TEST_SPLIT_MEETING";
const TEST: &str = "split::tests::gone::a_rank_that_is_killed_within_a_layer_is_named";
/// What it says when it is there.
const HERE: &str = "within the layer";

#[test]
fn a_rank_that_is_killed_within_a_layer_is_named() {
    if let Ok(told) = std::env::var(MEETING) {
        return wait_to_be_killed(&told);
    }
    let gpu = gpu();
    for (name, sequence, _) in CASES {
        let id = UniqueId::new(std::net::Ipv4Addr::LOCALHOST.into()).expect("a place to meet");
        let killer = kill_within(&format!("{name} {id}"));
        let group = meet(&id, 0);
        let error = through(group, &gpu, Part { sequence, end: None }).expect_err("the other is dead");
        let heard = Instant::now();
        let killed = killer.join().expect("a second process");
        assert!(heard - killed < AT_ONCE, "{:?} after the kill, {name}", heard - killed);
        let Error::Collective(error) = error else { panic!("{name}: {error}") };
        assert!(matches!(error.kind(), ErrorKind::PeerLost { peer: 1, .. }), "{name}: {error}");
        assert!(error.to_string().starts_with("rank 0 on "), "{name}: {error}");
        works(&gpu, sequence);
    }
}

const CASES: [(&str, bool, Way); 3] =
    [("sum", false, Way::Forward), ("gradients", false, Way::Backward), ("rows", true, Way::Forward)];

fn meet(id: &UniqueId, rank: usize) -> Communicator {
    let config = Config::default();
    let gpu = GpuSizes { channels: 1, ..config.gpu };
    Communicator::join(id, rank, 2, &Config { gpu, ..config }).expect("a group")
}

/// The second process: comes into the layer, says so, and stays there.
fn wait_to_be_killed(told: &str) {
    let (name, id) = told.split_once(' ').expect("a name and a place");
    let &(_, sequence, way) = CASES.iter().find(|case| case.0 == name).expect("a case");
    let stay: fn() -> Result<()> = || {
        println!("{HERE}");
        sleep(Duration::from_secs(60));
        Ok(())
    };
    let group = meet(&id.parse().expect("a place"), 1);
    let _ = through(group, &gpu(), Part { sequence, end: Some((way, stay)) });
}

/// Starts the second process, and kills it when it is within the layer and the other rank has had time to wait for it; when that was.
fn kill_within(told: &str) -> JoinHandle<Instant> {
    let mut second = Command::new(std::env::current_exe().expect("this program"));
    second.args([TEST, "--exact", "--nocapture"]).env(MEETING, told).stdout(Stdio::piped());
    let mut second: Child = second.spawn().expect("a process");
    std::thread::spawn(move || {
        let lines = BufReader::new(second.stdout.take().expect("its output")).lines();
        let there = lines.map_while(std::io::Result::ok).any(|line| line.contains(HERE));
        sleep(Duration::from_millis(300));
        let killed = Instant::now();
        // SIGKILL.
        second.kill().and_then(|()| second.wait()).expect("a process to kill");
        assert!(there, "it never came there");
        killed
    })
}
