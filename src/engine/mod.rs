//! The engine, which runs the operations of one communicator over a fabric.
//!
//! [`Engine::collective`] picks one of three executors: eager for small operations over shared
//! memory, zero-copy for operations in symmetric memory, and pipelined for all others.
//!
//! The pipelined executor cuts an operation into *slices*: slice `i` covers the i-th part of every
//! chunk and runs on channel `i mod channels`. Every channel interprets the same program with its
//! own lanes, scratch and part of the window. One thread advances all channels in turn and never
//! waits inside an instruction. An instruction that cannot go on returns the rank for which it
//! waits, and the thread tries the next channel. Only when no channel makes progress does the
//! thread pause and let the [`watchdog`] read the clock, the abort flag and control messages.

mod algorithm_cache;
mod barrier;
mod bounce_ring;
mod buffers;
mod call_history;
mod call_settings;
mod check_finite;
pub(crate) mod exec;
mod failure;
mod layout;
pub(crate) mod membership;
pub(crate) mod messages;
mod mismatch;
mod p2p;
mod plan;
pub(crate) mod registry;
mod store_tuner;
pub(crate) mod telemetry;
mod wait;
mod watchdog;

pub(crate) use crate::engine::algorithm_cache::{Override, Overrides};
pub(crate) use crate::engine::buffers::Buffers;
pub(crate) use crate::engine::call_settings::CallSettings;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use crate::engine::exec::zero_copy::fuzz as fuzz_peer_offsets;
pub(crate) use crate::engine::failure::DROPPED;
pub(crate) use crate::engine::membership::agreement::Membership;
pub(crate) use crate::engine::membership::shrink::{Regroup, Survivors};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use crate::engine::messages::fuzz as fuzz_messages;
pub(crate) use crate::engine::p2p::{Direction, Transfer};
pub(crate) use crate::engine::telemetry::flight::{Owner, Recorder};
pub use crate::engine::telemetry::memory::MemoryStats;
pub use crate::engine::telemetry::traffic::TrafficStats;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use crate::engine::watchdog::control_msg::fuzz as fuzz_control_msg;
pub(crate) use crate::engine::watchdog::control_msg::{ENDPOINT_BYTES_MAX, pack_bits};
pub(crate) use crate::engine::watchdog::{AbortFlag, ROUNDS_WITHOUT_CLOCK};
#[cfg(feature = "gpu")]
pub(crate) use layout::Layout;
pub(crate) use layout::Shares;
#[cfg(feature = "gpu")]
pub(crate) use plan::ScheduleBounds;

use crate::config::{Config, channels_of, message_lane};
use crate::engine::algorithm_cache::SelectionCache;
use crate::engine::call_history::CallHistory;
use crate::engine::exec::pipelined::Channel;
use crate::engine::exec::slot_sync::EagerPath;
use crate::engine::exec::zero_copy::PeerOffsets;
use crate::engine::messages::Messages;
use crate::engine::store_tuner::TunerTable;
use crate::engine::telemetry::trace::Trace;
use crate::engine::watchdog::{Watchdog, WatchdogHandles};
use crate::error::{Error, Result};
use crate::op_desc::{OpDesc, OpKind};
use crate::reduce_op::ReduceOp;
use crate::schedule::{Algorithm, Collective, GroupSpec, Rank};
use plan::{Plan, PlanCache};
use std::path::Path;
use std::sync::Arc;
use unisono_reducers::{DType, Element};
use unisono_transports::{Fabric, HeapExposure, WaitMode, Window, sys::fork_guard};

/// One collective operation, as the communicator passes it to the engine.
pub(crate) struct Job<'a> {
    pub(crate) kind: OpKind,
    /// The collective whose algorithms run the operation.
    pub(crate) collective: Collective,
    pub(crate) dtype: DType,
    pub(crate) reduction: Option<ReduceOp>,
    pub(crate) root: Rank,
    /// Elements in one share, or a digest of the counts of uneven shares.
    pub(crate) count: u64,
    pub(crate) input: Shares<'a>,
    pub(crate) output: Shares<'a>,
    /// Bytes of the longest share on any rank.
    pub(crate) share_bytes_max: usize,
    pub(crate) buffers: Buffers<'a>,
}

/// A collective whose shares have different lengths.
pub(crate) struct UnevenCall<'a> {
    pub(crate) kind: OpKind,
    pub(crate) collective: Collective,
    pub(crate) dtype: DType,
    pub(crate) reduction: Option<ReduceOp>,
    /// The (offset, bytes) of the shares in the longer buffer.
    pub(crate) places: &'a [(usize, usize)],
    /// The rank that calls.
    pub(crate) rank: Rank,
    /// Stands for the counts where ranks compare their calls.
    pub(crate) digest: u64,
}

impl<'a> Job<'a> {
    /// Creates the job of an operation whose shares all have `count` elements.
    #[inline]
    pub(crate) fn even<T: Element>(
        collective: Collective,
        reduction: Option<ReduceOp>,
        root: Rank,
        count: usize,
        buffers: Buffers<'a>,
    ) -> Self {
        Self::even_of(collective, T::DTYPE, reduction, root, count, buffers)
    }

    /// Creates the same job for an element type that is a value.
    #[inline]
    pub(crate) fn even_of(
        collective: Collective,
        dtype: DType,
        reduction: Option<ReduceOp>,
        root: Rank,
        count: usize,
        buffers: Buffers<'a>,
    ) -> Self {
        let bytes = count * dtype.size();
        Self {
            kind: OpKind::Collective(collective),
            collective,
            dtype,
            reduction,
            root,
            count: count as u64,
            input: Shares::Even { bytes },
            output: Shares::Even { bytes },
            share_bytes_max: bytes,
            buffers,
        }
    }

    /// Creates the job of an operation whose shares have different lengths.
    pub(crate) fn uneven(call: UnevenCall<'a>, buffers: Buffers<'a>) -> Self {
        let UnevenCall { kind, collective, dtype, reduction, places, rank, digest } = call;
        let (table, share) = (Shares::Table(places), Shares::Even { bytes: places[rank].1 });
        let gathers = collective == Collective::AllGather;
        let (input, output) = if gathers { (share, table) } else { (table, share) };
        Self {
            kind,
            collective,
            dtype,
            reduction,
            root: 0,
            count: digest,
            input,
            output,
            share_bytes_max: places.iter().map(|place| place.1).max().unwrap_or(0),
            buffers,
        }
    }

    /// Returns whether the operation combines floats of 8 or 16 bits in wider ones and rounds the
    /// result.
    fn is_narrow(&self) -> bool {
        ReduceOp::rounds_narrow_floats(self.reduction, self.dtype)
    }

    /// Returns whether all shares are equally long.
    fn is_even(&self) -> bool {
        matches!((&self.input, &self.output), (Shares::Even { .. }, Shares::Even { .. }))
    }

    /// Returns true if the clock is read for the operation, because it has so many bytes that this
    /// takes no notable time.
    #[inline]
    fn is_timed(&self) -> bool {
        self.share_bytes_max >= TIMED_MIN_BYTES
    }
}

/// The state of one communicator at one rank.
pub(crate) struct Engine {
    fabric: Fabric,
    config: Config,
    plans: PlanCache,
    channels: Vec<Channel>,
    eager: EagerPath,
    tuners: TunerTable,
    /// True if symmetric memory has been allocated, so that operations may be zero-copy.
    uses_symmetric: bool,
    /// Offsets of the peers' buffers in the current zero-copy operation.
    peer_offsets: Vec<PeerOffsets>,
    messages: Messages,
    watchdog: Watchdog,
    recorder: Arc<Recorder>,
    trace: Option<Box<Trace>>,
    /// The operations of all ranks so far.
    history: CallHistory,
    pub(crate) traffic: TrafficStats,
    /// Number of messages sent to each peer.
    sent: Vec<u64>,
    /// Number of messages received from each peer.
    received: Vec<u64>,
    /// Algorithms that the caller has set, by collective.
    overrides: Overrides,
    selections: SelectionCache,
    /// Algorithm of the last collective.
    pub(crate) last_algorithm: Option<&'static Algorithm>,
    /// The first error, which every later call returns.
    poisoned: Option<Error>,
    /// True if this communicator was shrunk, or a shrink was tried.
    shrunk: bool,
    /// True if this rank has left the communicator.
    left: bool,
    /// The way in which operations wait now.
    wait_mode: WaitMode,
    /// Buffer for input that is overwritten while it is sent. Keeps its memory from call to call.
    temp: Vec<u8>,
    /// Process that created the engine.
    process: u64,
}

impl Engine {
    pub(crate) fn new(mut fabric: Fabric, config: Config, handles: WatchdogHandles) -> Self {
        let wait_mode = config.wait;
        fabric.wait.set_mode(wait_mode);
        let (ranks, recorder) = (fabric.ranks, Arc::clone(&handles.1));
        let channels = channels_of(fabric.geometry.lanes);
        let lane = message_lane(channels);
        let messages = Messages::new(fabric.rank, ranks, lane, fabric.geometry.slot_bytes);
        Self {
            messages,
            watchdog: Watchdog::new(fabric.rank, ranks, config.timeout, handles),
            trace: config.trace_dir.as_deref().and_then(|folder| open_trace(folder, recorder.owner())),
            recorder,
            process: fork_guard::current_pid(),
            channels: (0..channels).map(|_| Channel::new(ranks)).collect(),
            eager: EagerPath::new(ranks),
            tuners: TunerTable::default(),
            uses_symmetric: false,
            peer_offsets: Vec::new(),
            fabric,
            config,
            plans: PlanCache::default(),
            wait_mode,
            history: CallHistory::default(),
            traffic: TrafficStats::default(),
            sent: vec![0; ranks],
            received: vec![0; ranks],
            overrides: [None; Collective::ALL.len()],
            selections: SelectionCache::default(),
            last_algorithm: None,
            poisoned: None,
            shrunk: false,
            left: false,
            temp: Vec::new(),
        }
    }

    /// Runs one collective. Every rank calls it with a matching job.
    ///
    /// # Errors
    /// Any error poisons the communicator.
    pub(crate) fn collective(&mut self, job: &mut Job<'_>) -> Result<()> {
        self.check_healthy()?;
        if self.config.check_finite {
            self.check_input(job)?;
        }
        self.traffic.operations += 1;
        let index = match self.eager_plan(job) {
            Ok(Some(index)) => index,
            Ok(None) => return self.run_planned(job),
            // An error of the system may concern this rank alone, so its peers have to hear of it.
            // All ranks refuse an unsuitable algorithm alike, before they have sent anything, so
            // the communicator stays usable.
            Err(error) if error.is_poisoning() => return self.fail(error, None),
            Err(error) => return Err(error),
        };
        let op = self.number(self.eager.plans.plan(index).op);
        self.last_algorithm = Some(self.eager.plans.algorithm(index));
        self.begin_op(&op, job.is_timed());
        let result = self.run_eager(index, job, op);
        self.end_op(result, op, job.is_timed())
    }

    /// Runs an operation that is not eager: zero-copy if all ranks gave symmetric memory, else
    /// pipelined.
    fn run_planned(&mut self, job: &mut Job<'_>) -> Result<()> {
        let (algorithm, spec) = self.select_for(job)?;
        let plan = self.plan(algorithm, spec)?;
        let reduce = job.reduction.map(ReduceOp::kind);
        let mut op =
            OpDesc::new(0, job.kind, job.dtype, reduce, job.root, job.count).with_algorithm(plan.digest);
        if let Some(ReduceOp::Custom(custom)) = job.reduction {
            op = op.with_user_op(Some(custom.digest()));
        }
        let op = self.number(op);
        self.begin_op(&op, job.is_timed());
        self.last_algorithm = Some(algorithm);
        if let Some(zero_copy) = self.zero_copy_algorithm(job) {
            return self.run_exposed(zero_copy, spec, &plan, job, op);
        }
        let result = self.run_pipelined(&plan, job, op);
        self.end_op(result, op, job.is_timed())
    }

    /// Runs and ends an operation that may be zero-copy. Its buffers are exposed during this time.
    #[inline(never)]
    fn run_exposed(
        &mut self,
        algorithm: &'static Algorithm,
        spec: GroupSpec,
        plan: &Plan,
        job: &mut Job<'_>,
        op: OpDesc,
    ) -> Result<()> {
        // A peer that knows the offsets may access the buffers at any moment. So they are exposed
        // before the offsets are exchanged.
        let exposure = self.expose_buffers(job);
        let result = self.try_zero_copy(algorithm, spec, plan, job, op);
        let result = self.end_op(result, op, job.is_timed());
        // After an error or a panic, the drop of the exposure waits for the peers, which know of
        // the error.
        if result.is_ok() {
            exposure.into_iter().for_each(HeapExposure::end);
        }
        result
    }

    /// Runs `algorithm` in symmetric memory if the buffers of all ranks are there, else the
    /// pipelined `plan`.
    ///
    /// No rank alone knows where all buffers are, so the ranks exchange the offsets first.
    fn try_zero_copy(
        &mut self,
        algorithm: &'static Algorithm,
        spec: GroupSpec,
        plan: &Plan,
        job: &mut Job<'_>,
        op: OpDesc,
    ) -> Result<()> {
        if !self.exchange_offsets(op)? {
            return self.run_pipelined(plan, job, op);
        }
        // The ranks have agreed by the exchange, so all of them change the algorithm together.
        self.last_algorithm = Some(algorithm);
        let plan = self.plan(algorithm, spec)?;
        self.run_zero_copy(&plan, job, op)
    }

    /// Returns the plan of `algorithm` for this rank.
    fn plan(&mut self, algorithm: &'static Algorithm, spec: GroupSpec) -> Result<Arc<Plan>> {
        let half_window_bytes = self.half_window_bytes();
        self.plans.get(algorithm, spec, self.fabric.rank, &self.fabric.geometry, half_window_bytes)
    }

    /// Runs sends and receives together. Those of one peer and direction keep their order.
    pub(crate) fn transfer(&mut self, transfers: &mut [Transfer<'_>]) -> Result<()> {
        self.check_healthy()?;
        let Some(first) = transfers.first() else {
            return Ok(());
        };
        let op = first.desc();
        if self.config.check_finite {
            self.check_sends(transfers)?;
        }
        for transfer in &*transfers {
            self.traffic.operations += 1;
            self.begin_op(&transfer.desc(), false);
            self.recorder.set_peer(self.traffic.operations, transfer.peer());
        }
        let result = self.run_transfers(transfers);
        self.end_op(result, op, false)
    }

    /// Records the beginning of the operation that was counted last; `timed` reads the clock.
    #[inline]
    fn begin_op(&mut self, op: &OpDesc, timed: bool) {
        let number = self.traffic.operations;
        self.recorder.begin(number, op);
        if let Some(trace) = &mut self.trace {
            trace.begin(number, op);
        }
        if timed {
            self.recorder.start_clock(number);
        }
    }

    /// Records the end of the operation that was counted last. An error poisons the communicator.
    #[inline]
    fn end_op(&mut self, result: Result<()>, op: OpDesc, timed: bool) -> Result<()> {
        if let Err(error) = result {
            return self.fail(error, Some(op));
        }
        let number = self.traffic.operations;
        if timed {
            self.recorder.stop_clock(number);
        }
        self.recorder.complete(number);
        if let Some(trace) = &mut self.trace {
            trace.end(&self.recorder, None);
        }
        Ok(())
    }

    /// Returns the next sequence number for a message to or from `peer`.
    pub(crate) fn take_pair_sequence(&mut self, direction: Direction, peer: Rank) -> u64 {
        let counter = match direction {
            Direction::Send => &mut self.sent[peer],
            Direction::Recv => &mut self.received[peer],
        };
        *counter += 1;
        *counter - 1
    }

    /// Returns a new operation of all ranks with its sequence number.
    #[inline]
    pub(crate) fn number(&mut self, op: OpDesc) -> OpDesc {
        self.history.add(op)
    }

    /// Returns the sequence number that the next operation of all ranks will have.
    pub(crate) fn peek_sequence(&self) -> u64 {
        self.history.length()
    }

    /// Takes the temporary buffer. [`Engine::return_temp`] gives it back.
    pub(crate) fn take_temp(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.temp)
    }

    /// Returns the temporary buffer, so that its memory is used again.
    pub(crate) fn return_temp(&mut self, temp: Vec<u8>) {
        self.temp = temp;
    }

    /// Returns the size of one channel's half of the window in bytes.
    fn half_window_bytes(&self) -> usize {
        let window = self.fabric.window.as_ref().map_or(0, Window::bytes);
        window / (2 * self.channels.len()) / plan::SLICE_ALIGN_BYTES * plan::SLICE_ALIGN_BYTES
    }
}

/// Smallest share, in bytes, of operations for which the clock is read at the beginning and the
/// end.
const TIMED_MIN_BYTES: usize = 128 << 10;

fn open_trace(folder: &Path, owner: &Owner) -> Option<Box<Trace>> {
    let trace = Trace::open(folder, owner).map(Box::new);
    trace
        .inspect_err(|error| {
            crate::log::warn_user(&format!("no trace is written to {}: {error}", folder.display()))
        })
        .ok()
}
