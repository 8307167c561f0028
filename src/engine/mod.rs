//! Carries out schedules over a fabric.
//!
//! An operation is cut into *slices* (slice `i` covers the i-th part of every chunk); slice `i`
//! runs on channel `i mod channels`, and every channel is a little interpreter
//! of the same program with lanes, scratch and window bank of its own. One
//! thread advances all channels in turn and never waits inside a step: a step
//! that cannot go on names the rank it needs, and the next channel gets its
//! chance. Only when no channel can move does the thread give time away, look
//! at the clock, at the abort flag and at the notes of the other ranks.

mod bounce_ring;
mod buffers;
mod check_finite;
pub(crate) mod exec;
mod layout;
pub(crate) mod membership;
mod p2p;
mod payload_rotation;
mod plan;
pub(crate) mod registry;
mod select;
mod store_tuner;
pub(crate) mod telemetry;
mod tuner_table;
mod watchdog;

pub(crate) use crate::engine::buffers::Buffers;
pub(crate) use crate::engine::membership::agreement::Membership;
pub(crate) use crate::engine::membership::shrink::Regroup;
pub(crate) use crate::engine::p2p::{Direction, Transfer};
pub use crate::engine::telemetry::memory_stats::MemoryStats;
pub(crate) use crate::engine::telemetry::recorder::{Owner, Recorder};
pub use crate::engine::telemetry::traffic::TrafficStats;
pub(crate) use crate::engine::watchdog::AbortFlag;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use crate::engine::watchdog::control_msg::fuzz as fuzz_control_msg;
pub(crate) use crate::engine::watchdog::control_msg::{ENDPOINT_BYTES_MAX, pack_bits};
#[cfg(feature = "gpu")]
pub(crate) use layout::Layout;
pub(crate) use layout::Shares;
#[cfg(feature = "gpu")]
pub(crate) use plan::ScheduleBounds;

use crate::config::{Config, LANES_PER_CHANNEL};
use crate::engine::buffers::Scratch;
use crate::engine::exec::eager::EagerPath;
use crate::engine::telemetry::trace::Trace;
use crate::engine::watchdog::Watchdog;
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::{AlgorithmDigest, OpDesc, OpKind};
use crate::reduce_op::ReduceOp;
use crate::schedule::{Algorithm, Collective, GroupSpec, Rank};
use plan::{Plan, PlanCache};
use std::path::Path;
use std::sync::Arc;
use unisono_cuda::{DType, Store};
use unisono_transports::{Fabric, Window, sys::fork_guard};

/// One collective operation, as the communicator hands it over.
pub(crate) struct Job<'a> {
    pub(crate) kind: OpKind,
    /// The collective whose algorithms serve it.
    pub(crate) collective: Collective,
    pub(crate) dtype: DType,
    pub(crate) reduction: Option<ReduceOp>,
    pub(crate) root: Rank,
    /// Elements in one share, or a digest of many counts.
    pub(crate) count: u64,
    pub(crate) input: Shares<'a>,
    pub(crate) output: Shares<'a>,
    /// Bytes of the longest share, on any rank.
    pub(crate) share_bytes_max: usize,
    pub(crate) buffers: Buffers<'a>,
}

impl Job<'_> {
    /// Whether it combines floats of 8 or 16 bits in wider ones, and rounds what comes of it.
    fn is_narrow(&self) -> bool {
        ReduceOp::rounds_narrow_floats(self.reduction, self.dtype)
    }
}

/// The state of one communicator at one rank.
pub(crate) struct Engine {
    fabric: Fabric,
    config: Config,
    plans: PlanCache,
    channels: Vec<Channel>,
    eager: EagerPath,
    tuners: crate::engine::tuner_table::TunerTable,
    /// Whether memory that peers reach has been lent; and where their buffers are in the operation at hand.
    uses_symmetric: bool,
    peer_offsets: Vec<crate::engine::exec::zero_copy::PeerOffsets>,
    watchdog: Watchdog,
    recorder: Arc<Recorder>,
    trace: Option<Box<Trace>>,
    sequence: u64,
    pub(crate) traffic: TrafficStats,
    /// Sends to and receives from each peer so far.
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Algorithms that the caller insists on, by collective.
    overrides: [Option<&'static Algorithm>; Collective::ALL.len()],
    /// What the last collective was carried out with.
    pub(crate) last_algorithm: Option<&'static Algorithm>,
    /// The first error; what every later call returns.
    poisoned: Option<Error>,
    /// Whether this communicator has been shrunk, or was to be.
    shrunk: bool,
    /// Room for a buffer that is sent while it is overwritten.
    temp: Vec<u8>,
    /// The process that it was made in.
    process: u64,
}

/// What one channel keeps from operation to operation.
#[derive(Default)]
struct Channel {
    /// Instances of window programs run so far.
    sequence: u64,
    /// For each rank, how many of them it has surely finished.
    completed: Vec<u64>,
    /// How the instance at hand writes to windows, and whether it is timed; and what it takes then.
    store_choice: (Store, crate::engine::store_tuner::Timed),
    sample: crate::engine::store_tuner::Sample,
    scratch: Scratch,
    progress: crate::engine::exec::pipelined::ChannelProgress,
}

impl Job<'_> {
    /// Whether all shares are equally long.
    fn is_even(&self) -> bool {
        matches!((&self.input, &self.output), (Shares::Even { .. }, Shares::Even { .. }))
    }
}

impl Engine {
    pub(crate) fn new(
        fabric: Fabric,
        config: Config,
        handles: crate::engine::watchdog::WatchdogHandles,
    ) -> Self {
        let (ranks, recorder) = (fabric.ranks, Arc::clone(&handles.1));
        let channels = channels_for(fabric.geometry.lanes);
        let channel = || Channel { completed: vec![0; ranks], ..Channel::default() };
        Self {
            watchdog: Watchdog::new(fabric.rank, ranks, config.timeout, handles),
            trace: config.trace_dir.as_deref().and_then(|folder| open_trace(folder, recorder.owner())),
            recorder,
            process: fork_guard::current_pid(),
            channels: (0..channels).map(|_| channel()).collect(),
            eager: EagerPath::new(ranks),
            tuners: crate::engine::tuner_table::TunerTable::default(),
            uses_symmetric: false,
            peer_offsets: Vec::new(),
            fabric,
            config,
            plans: PlanCache::default(),
            sequence: 0,
            traffic: TrafficStats::default(),
            sent: vec![0; ranks],
            received: vec![0; ranks],
            overrides: [None; Collective::ALL.len()],
            last_algorithm: None,
            poisoned: None,
            shrunk: false,
            temp: Vec::new(),
        }
    }

    /// Carries out one collective; every rank calls it with a matching job.
    pub(crate) fn collective(&mut self, job: &mut Job<'_>) -> Result<()> {
        self.check_healthy()?;
        if self.config.check_finite {
            self.check_input(job)?;
        }
        self.traffic.begin_op();
        let reaching = self.zero_copy_algorithm(job);
        let plan = if reaching.is_none() { self.eager_plan(job)? } else { None };
        match plan {
            Some(plan) => self.execute_eager(plan, job),
            None => self.execute(reaching, job),
        }
    }

    #[inline]
    fn execute_eager(&mut self, plan: usize, job: &mut Job<'_>) -> Result<()> {
        let call = self.describe_eager(plan);
        let (number, timed) = (self.traffic.operations, job.share_bytes_max >= TIMED_MIN_BYTES);
        self.begin_op(&call);
        if timed {
            self.recorder.start_clock(number);
        }
        let ended = self.run_eager(plan, job, call);
        if timed && ended.is_ok() {
            self.recorder.stop_clock(number);
        }
        self.end_op(ended, call)
    }

    /// By `reaching`, which reaches the buffers of peers, where that is possible.
    fn execute(&mut self, reaching: Option<&'static Algorithm>, job: &mut Job<'_>) -> Result<()> {
        let algorithm =
            self.select_algorithm(job.collective, job.root, job.share_bytes_max, job.is_narrow())?;
        let spec = self.group_spec(job.collective, job.root, job.share_bytes_max);
        let half_window_bytes = self.half_window_bytes();
        let plan =
            self.plans.get(algorithm, spec, self.fabric.rank, &self.fabric.geometry, half_window_bytes)?;
        let call = self.describe(job, plan.digest);
        let (number, timed) = (self.traffic.operations, job.share_bytes_max >= TIMED_MIN_BYTES);
        self.begin_op(&call);
        if timed {
            self.recorder.start_clock(number);
        }
        self.last_algorithm = Some(algorithm);
        let ended = match reaching {
            Some(row) => self.try_zero_copy(row, spec, &plan, job, call),
            None => self.run_pipelined(&plan, job, call),
        };
        if timed && ended.is_ok() {
            self.recorder.stop_clock(number);
        }
        self.end_op(ended, call)
    }

    /// Runs `row`, which reaches the buffers of peers, if all ranks' can be reached; else `plan`.
    fn try_zero_copy(
        &mut self,
        row: &'static Algorithm,
        spec: GroupSpec,
        plan: &Plan,
        job: &mut Job<'_>,
        call: OpDesc,
    ) -> Result<()> {
        if !self.exchange_offsets(job, call)? {
            return self.run_pipelined(plan, job, call);
        }
        let half_window_bytes = self.half_window_bytes();
        self.last_algorithm = Some(row);
        let plan = self.plans.get(row, spec, self.fabric.rank, &self.fabric.geometry, half_window_bytes)?;
        self.run_zero_copy(&plan, job, call)
    }

    /// Describes the next operation of all ranks.
    fn describe(&mut self, job: &Job<'_>, algorithm: AlgorithmDigest) -> OpDesc {
        let op = job.reduction.map(ReduceOp::kind);
        let sequence = self.take_sequence();
        OpDesc::new(sequence, job.kind, job.dtype, op, job.root, job.count).with_algorithm(algorithm)
    }

    /// Carries out sends and receives together; those of one peer and direction keep their order.
    pub(crate) fn transfer(&mut self, transfers: &mut [Transfer<'_>]) -> Result<()> {
        self.check_healthy()?;
        let Some(first) = transfers.first() else {
            return Ok(());
        };
        let call = first.desc();
        if self.config.check_finite {
            self.check_sends(transfers)?;
        }
        for transfer in &*transfers {
            self.traffic.begin_op();
            self.begin_op(&transfer.desc());
            self.recorder.set_peer(self.traffic.operations, transfer.peer());
        }
        let ended = self.run_transfers(transfers);
        self.end_op(ended, call)
    }

    /// The next number for a message to (or from) `peer`.
    pub(crate) fn take_pair_sequence(&mut self, direction: Direction, peer: Rank) -> u64 {
        let counter = match direction {
            Direction::Send => &mut self.sent[peer],
            Direction::Recv => &mut self.received[peer],
        };
        *counter += 1;
        *counter - 1
    }

    /// The next number for an operation of all ranks.
    pub(crate) fn take_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence - 1
    }

    /// The number that the next operation of all ranks will have.
    pub(crate) fn peek_sequence(&self) -> u64 {
        self.sequence
    }

    /// Lends a buffer that keeps its memory from call to call.
    pub(crate) fn take_temp(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.temp)
    }

    /// Takes the buffer back.
    pub(crate) fn return_temp(&mut self, aside: Vec<u8>) {
        self.temp = aside;
    }

    /// Tells all ranks that this communicator is over, because of `reason`.
    pub(crate) fn abort(&mut self, reason: &str) {
        if self.poisoned.is_none() {
            self.poison(self.abort_error(reason));
            self.dump_flight_record();
        }
    }

    /// That this rank ends the communicator because of `reason`.
    fn abort_error(&self, reason: &str) -> Error {
        let kind = ErrorKind::Aborted { by: self.fabric.rank, reason: reason.to_owned() };
        Error::new(kind).with_rank(self.fabric.rank, &self.config.host, None)
    }

    /// Hears what the others have to say while the operation `call`, if there is one, is carried out elsewhere.
    #[cfg(feature = "gpu")]
    pub(crate) fn poll_events(&mut self, call: Option<OpDesc>) -> Result<()> {
        self.check_healthy()?;
        let now = self.fabric.wait.now();
        self.watchdog
            .poll_events(&mut *self.fabric.control, now, call)
            .or_else(|error| self.fail(error, call))
    }

    /// The links, for messages that no schedule knows of.
    #[cfg(feature = "gpu")]
    pub(crate) fn links(&mut self) -> &mut [Option<Box<dyn unisono_transports::Link>>] {
        &mut self.fabric.links
    }

    /// Tells the others that this rank has been waiting in `call` for a while.
    #[cfg(feature = "gpu")]
    pub(crate) fn announce_wait(&mut self, call: OpDesc) {
        self.watchdog.announce_wait(&mut *self.fabric.control, call);
    }

    /// By rank: who ended, or left.
    #[cfg(feature = "gpu")]
    pub(crate) fn failed_ranks(&self) -> Vec<bool> {
        self.watchdog.failed_ranks()
    }

    /// What `peer` last said it was waiting in.
    #[cfg(feature = "gpu")]
    pub(crate) fn last_report(&self, peer: Rank) -> Option<OpDesc> {
        self.watchdog.last_report(peer)
    }

    /// Ends this communicator because of an error seen elsewhere; the first one stays.
    #[cfg(feature = "gpu")]
    pub(crate) fn fail_with(&mut self, error: Error, call: Option<OpDesc>) -> Result<()> {
        self.check_healthy()?;
        self.fail(error, call)
    }

    /// Tells the others that this rank waits in `call` of another communicator.
    pub(crate) fn announce_wait_elsewhere(&mut self, call: OpDesc) {
        self.watchdog.announce_wait_elsewhere(&mut *self.fabric.control, call);
        // An abort that came meanwhile found the engine in use, and told nobody.
        let _ = self.check_healthy();
    }

    /// Tells the others of an abort that came while nothing waited, and which nobody heard.
    #[inline]
    pub(crate) fn poll_abort(&mut self) {
        if self.watchdog.is_abort_raised() {
            let _ = self.check_poisoned();
        }
    }

    /// The error that ended this communicator, if one did.
    #[inline]
    fn check_healthy(&mut self) -> Result<()> {
        if self.watchdog.is_abort_raised() || self.poisoned.is_some() {
            self.check_poisoned()
        } else {
            Ok(())
        }
    }

    #[cold]
    fn check_poisoned(&mut self) -> Result<()> {
        if let Some(reason) = self.watchdog.abort_reason() {
            self.abort(&reason);
        }
        self.poisoned.clone().map_or(Ok(()), Err)
    }

    /// The operation that was counted last begins.
    #[inline]
    fn begin_op(&mut self, call: &OpDesc) {
        let number = self.traffic.operations;
        self.recorder.begin(number, call);
        if let Some(trace) = &mut self.trace {
            trace.begin(number, call);
        }
    }

    /// Names the place of an error, spreads it and keeps it.
    #[inline]
    fn end_op(&mut self, ended: Result<()>, call: OpDesc) -> Result<()> {
        match ended {
            Ok(()) => {
                self.recorder.complete(self.traffic.operations);
                if let Some(trace) = &mut self.trace {
                    trace.end(&self.recorder, None);
                }
                Ok(())
            }
            Err(error) => self.fail(error, Some(call)),
        }
    }

    #[cold]
    fn fail(&mut self, error: Error, call: Option<OpDesc>) -> Result<()> {
        let error = self.watchdog.root_cause(&mut *self.fabric.control, error);
        let error = error.with_rank(self.fabric.rank, &self.config.host, call);
        if let Some(trace) = &mut self.trace {
            trace.end(&self.recorder, Some(&error));
        }
        self.poison(error.clone());
        self.dump_flight_record();
        Err(error)
    }

    /// From now on, every call returns `error`, which the others hear of and the record has.
    fn poison(&mut self, error: Error) {
        self.watchdog.broadcast_error(&mut *self.fabric.control, &error);
        self.recorder.set_error(error.to_string());
        self.poisoned = Some(error);
    }

    /// Leaves the flight record where the configuration says: once for each failure, as operations may follow elsewhere that
    /// are none of its story.
    fn dump_flight_record(&self) {
        let Some(folder) = &self.config.flight_recorder_dir else { return };
        match self.recorder.snapshot(0).dump(folder) {
            Ok(file) => tracing::info!(file = %file.display(), "wrote the flight record"),
            Err(error) => crate::log::warn_user(&format!(
                "no flight record is written to {}: {error}",
                folder.display()
            )),
        }
    }

    /// Bytes of one channel's half of the window.
    fn half_window_bytes(&self) -> usize {
        let window = self.fabric.window.as_ref().map_or(0, Window::bytes);
        window / (2 * self.channels.len()) / plan::SLICE_ALIGN_BYTES * plan::SLICE_ALIGN_BYTES
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A child that was forked has no farewell to say: its parent is still there.
        if self.process != fork_guard::current_pid() {
            return;
        }
        if std::thread::panicking() {
            self.abort("its thread panicked");
        }
        // A shrunk one is over for all of them.
        let error = self.poisoned.as_ref().filter(|_| !self.shrunk);
        self.watchdog.goodbye(&mut *self.fabric.control, error);
    }
}

/// Reading the clock is nothing beside so many bytes.
const TIMED_MIN_BYTES: usize = 128 << 10;

fn channels_for(lanes: usize) -> usize {
    (lanes - 1) / LANES_PER_CHANNEL
}

fn open_trace(folder: &Path, owner: &Owner) -> Option<Box<Trace>> {
    let trace = Trace::open(folder, owner).map(Box::new);
    trace
        .inspect_err(|error| {
            crate::log::warn_user(&format!("no trace is written to {}: {error}", folder.display()))
        })
        .ok()
}
