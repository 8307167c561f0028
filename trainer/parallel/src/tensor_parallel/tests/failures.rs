//! Ranks that end within a sharded layer on GPUs: by a panic, an error, or kill -9. The kernels of
//! the other ranks then wait in a sum or gather. The software device stands in for a GPU unless
//! `TEST_ON_GPU` is set.

use crate::tensor_parallel::tests::{
    LinearInit, Module, Pass, Registry, Result, Sequential, Tensor, TensorParallel, plan,
};
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};
use unisono::device::Gpu;
use unisono::{Communicator, Config, ErrorKind, UniqueId};
use unisono_nn::allocator::Allocator;
use unisono_nn::device::Device;
use unisono_nn::error::Error;
use unisono_nn::modules::random_values;
use unisono_nn::pass::Seeds;
use unisono_nn::process_group::ProcessGroup;
use unisono_nn::step_plan::Direction;
use unisono_nn::strategy::LocalStrategy;
use unisono_nn::testing::{gpu, run_ranks};

/// Direction in which a rank ends, and the way it ends.
type Failure = (Direction, fn() -> Result<()>);

/// Module within the sharded region, where a rank ends.
struct FailingModule(Option<Failure>);

impl FailingModule {
    fn fail(&self, here: Direction) -> Result<()> {
        match self.0 {
            Some((way, end)) if way == here => end(),
            _ => Ok(()),
        }
    }
}

impl Module for FailingModule {
    fn forward(&self, _: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        self.fail(Direction::Forward).map(|()| input)
    }

    fn backward(&self, _: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        self.fail(Direction::Backward).map(|()| gradient)
    }
}

/// Behavior of one rank of the layer.
#[derive(Clone, Copy)]
struct RankBehavior {
    /// Shards rows between regions.
    sequence: bool,
    /// Failure of this rank, if any.
    failure: Option<Failure>,
}

/// Runs one forward and backward of a layer on `gpu`, and returns the error that this rank
/// receives. The stream is empty afterwards in any case.
fn run_layer(group: Communicator, gpu: &Gpu, part: RankBehavior) -> Result<()> {
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let device = Device::new(gpu, &memory)?;
    let ranks = ProcessGroup::new(group, Some(gpu))?;
    let split = TensorParallel::new(Some(ranks.clone()), part.sequence, plan());
    let (_, layer) = registry.unit("m", |registry| {
        let first = registry.scope("into", |r| split.linear(r, 4, 12, LinearInit::fan_in(4)));
        let last = registry.scope("out", |r| split.linear(r, 12, 4, LinearInit::fan_in(12)));
        Sequential(vec![first, Box::new(FailingModule(part.failure)), last])
    });
    let mut strategy = LocalStrategy::new(registry.finish(), &memory, 3);
    let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
    pass.set_device(Some(&device));
    let rows = pass.tensor_from(6, 4, &random_values(1, 24))?;
    let ended = layer.forward(&mut pass, rows).and_then(|output| layer.backward(&mut pass, output));
    if part.failure.is_none() {
        device.compute().stream().synchronize()?;
    }
    ended.map(drop).and(ranks.check())
}

/// Asserts that two ranks without failures succeed.
fn assert_layer_runs(gpu: &Gpu, sequence: bool) {
    run_ranks(2, |group| {
        run_layer(group, gpu, RankBehavior { sequence, failure: None }).expect("a GPU as good as new")
    });
}

/// Asserts that two of three ranks learn at once which rank ended within the layer, and can
/// continue to use their GPU.
fn assert_failure_detected(end: fn() -> Result<()>, expected: fn(&ErrorKind) -> bool) {
    let gpu = gpu();
    for (sequence, way) in
        [false, true].into_iter().flat_map(|rows| [(rows, Direction::Forward), (rows, Direction::Backward)])
    {
        let errors = run_ranks(3, |group| {
            let (begun, rank) = (Instant::now(), group.rank());
            let part = RankBehavior { sequence, failure: (rank == 1).then_some((way, end)) };
            // The unwound rank has dropped all of its state.
            let ended = catch_unwind(AssertUnwindSafe(|| run_layer(group, &gpu, part)));
            assert!(begun.elapsed() < DEADLINE, "rank {rank} after {:?}, {way:?}", begun.elapsed());
            ended.ok().and_then(Result::err)
        });
        for rank in [0, 2] {
            let Some(Error::Collective(error)) = &errors[rank] else { panic!("{:?}", errors[rank]) };
            assert!(expected(error.kind()), "{way:?}: {error}");
        }
        assert_layer_runs(&gpu, sequence);
    }
}

fn is_departure(kind: &ErrorKind) -> bool {
    *kind == ErrorKind::PeerFinalized { peer: 1 }
}

/// Ends a test that hangs. The kinds of the errors show that no timeout ended a wait.
const DEADLINE: Duration = Duration::from_secs(100);

#[test]
fn panicked_rank_is_named() {
    // Either the host communicator or the GPU communicator reports the loss first. The goodbye of
    // the other one may tell the same panic.
    let said = |kind: &ErrorKind| {
        matches!(kind, ErrorKind::Aborted { by: 1, reason, .. } if reason.ends_with("its thread panicked"))
            || is_departure(kind)
    };
    assert_failure_detected(|| panic!("a panic within a layer"), said);
}

#[test]
fn returned_rank_is_named() {
    assert_failure_detected(|| Err(Error::invalid("an error within a layer")), is_departure);
}

/// Tells the second process where the ranks rendezvous, and its behavior.
const BOOTSTRAP_VAR: &str = "UNISONO_TEST_SPLIT_MEETING";
const TEST_NAME: &str = "tensor_parallel::tests::failures::killed_rank_is_named";
/// Line that the second process prints when it is in the layer.
const READY_LINE: &str = "within the layer";

#[test]
fn killed_rank_is_named() {
    if let Ok(told) = std::env::var(BOOTSTRAP_VAR) {
        return wait_to_be_killed(&told);
    }
    let gpu = gpu();
    for (name, sequence, _) in CASES {
        let id = UniqueId::new(std::net::Ipv4Addr::LOCALHOST.into()).expect("a place to meet");
        let killer = kill_within(&format!("{name} {id}"));
        let group = join(&id, 0);
        let error =
            run_layer(group, &gpu, RankBehavior { sequence, failure: None }).expect_err("the other is dead");
        let heard = Instant::now();
        let killed = killer.join().expect("a second process");
        assert!(heard - killed < DEADLINE, "{:?} after the kill, {name}", heard - killed);
        let Error::Collective(error) = error else { panic!("{name}: {error}") };
        assert!(matches!(error.kind(), ErrorKind::PeerFailed { peer: 1, .. }), "{name}: {error}");
        assert!(error.to_string().starts_with("rank 0 on "), "{name}: {error}");
        assert_layer_runs(&gpu, sequence);
    }
}

const CASES: [(&str, bool, Direction); 3] = [
    ("sum", false, Direction::Forward),
    ("gradients", false, Direction::Backward),
    ("rows", true, Direction::Forward),
];

fn join(id: &UniqueId, rank: usize) -> Communicator {
    let config = Config::default();
    let gpu = config.gpu.with_channels(1);
    Communicator::join(id, rank, 2, &config.with_gpu(gpu)).expect("a group")
}

/// Second process: enters the layer, reports it, and stays there.
fn wait_to_be_killed(told: &str) {
    let (name, id) = told.split_once(' ').expect("a name and a place");
    let &(_, sequence, way) = CASES.iter().find(|case| case.0 == name).expect("a case");
    let stay: fn() -> Result<()> = || {
        println!("{READY_LINE}");
        sleep(Duration::from_secs(60));
        Ok(())
    };
    let group = join(&id.parse().expect("a place"), 1);
    let _ = run_layer(group, &gpu(), RankBehavior { sequence, failure: Some((way, stay)) });
}

/// Starts the second process, and kills it when it is in the layer and the other rank has had time
/// to wait for it. Returns the time of the kill.
fn kill_within(told: &str) -> JoinHandle<Instant> {
    let mut second = Command::new(std::env::current_exe().expect("this program"));
    second.args([TEST_NAME, "--exact", "--nocapture"]).env(BOOTSTRAP_VAR, told).stdout(Stdio::piped());
    let mut second: Child = second.spawn().expect("a process");
    std::thread::spawn(move || {
        let lines = BufReader::new(second.stdout.take().expect("its output")).lines();
        let there = lines.map_while(std::io::Result::ok).any(|line| line.contains(READY_LINE));
        sleep(Duration::from_millis(300));
        let killed = Instant::now();
        // Sends SIGKILL.
        second.kill().and_then(|()| second.wait()).expect("a process to kill");
        assert!(there, "it never came there");
        killed
    })
}
