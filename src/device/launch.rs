//! The path from a call to a kernel launch.

use crate::config::LaunchMode;
use crate::device::Shared;
use crate::device::message_room::{MessageCache, chunks_of_slot};
use crate::device::op::DeviceOp;
use crate::device::p2p::GroupCache;
use crate::device::plan::{Plan, PlanCache, SLICE_UNIT_BYTES};
use crate::device::registered::{AddressTables, Registration};
use crate::device::shape::ShapeCache;
use crate::device::share_tables::ShareTables;
use crate::engine::{Layout, Shares};
use crate::error::Result;
use crate::op_desc::OpDesc;
use crate::reduce_op::ReduceOp;
use crate::schedule::{Algorithm, Collective, GroupSpec};
use crate::select::{self, Topology};
use std::sync::Arc;
use std::time::{Duration, Instant};
use unisono_cuda::device::{Buffer, CaptureState, Gpu, GpuError, ReplayHook, Stream, UserOpKernels};
use unisono_reducers::{PostOp, ReduceKind};
use unisono_transports::Tag;
use unisono_transports::gpu::{AddressTable, DeviceProgram, LaunchParams, Operand, Protocol, WindowSet};

/// State that a communicator keeps from call to call on this rank.
#[derive(Default)]
pub(super) struct CommState {
    plans: PlanCache,
    pub(super) shapes: ShapeCache,
    messages: MessageCache,
    pub(super) groups: GroupCache,
    share_tables: ShareTables,
    /// Memory to which an operation in place copies its buffer first, if its algorithm needs that.
    /// One is enough, because operations run one after the other.
    aside: Option<Arc<Buffer<u8>>>,
    /// Sequence numbers of the next operation of all ranks, and of the next group of sends and
    /// receives.
    sequence: u64,
    group_sequence: u64,
    /// Symmetric memory of all ranks, in the order of the calls.
    pub(super) window_sets: Vec<Arc<WindowSet>>,
    pub(super) address_tables: AddressTables,
    /// The hook that graphs call before they repeat launches.
    pub(super) replay_hook: Option<Arc<dyn ReplayHook>>,
    /// The last call that a graph has recorded.
    pub(super) captured: Option<OpDesc>,
    pub(super) overrides: [Option<&'static Algorithm>; Collective::ALL.len()],
    pub(super) last_algorithm: Option<&'static Algorithm>,
}

/// The algorithm of an operation, and this rank's part of it.
pub(super) struct Choice {
    algorithm: &'static Algorithm,
    /// Set if the algorithm accesses symmetric buffers.
    registration: Option<Registration>,
    pub(super) plan: Arc<Plan>,
    /// Bytes of the longest share.
    bytes: usize,
}

/// The kind of kernel that a launch runs.
#[derive(Clone, Copy)]
pub(super) enum LaunchKind<'w> {
    Program(&'w DeviceProgram),
    /// A program that accesses the buffers of peers.
    ZeroCopy(&'w DeviceProgram, &'w AddressTable),
    /// A small all_reduce of this many bytes, which has a special kernel.
    OneShot(usize),
}

/// A collective with its plan, ready for its launch.
pub(super) struct PlannedOp<'p> {
    pub(super) job: &'p DeviceOp<'p>,
    pub(super) plan: &'p Plan,
    /// The program of the plan in memory of the GPU.
    pub(super) uploaded: &'p DeviceProgram,
    /// The symmetric buffers, if the program accesses those of peers.
    registration: Option<&'p Registration>,
    call: OpDesc,
    /// Bytes of the longer of the input share and the output share.
    bytes: usize,
}

impl CommState {
    /// Returns memory of at least `bytes` bytes for the copy of a buffer. It is kept from call to
    /// call.
    pub(super) fn aside(&mut self, gpu: &Gpu, bytes: usize) -> Result<Arc<Buffer<u8>>> {
        match &self.aside {
            Some(aside) if aside.len() >= bytes => Ok(Arc::clone(aside)),
            _ => {
                // The old memory is freed when the work that uses it is done.
                let larger = Arc::new(gpu.alloc(bytes.next_power_of_two())?);
                Ok(Arc::clone(self.aside.insert(larger)))
            }
        }
    }

    /// Returns the number of the next group of sends and receives. Not every rank takes part in
    /// each group.
    pub(super) fn next_group_sequence(&self) -> u64 {
        self.group_sequence
    }

    /// Returns the sequence number of the next operation of all ranks.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }
}

impl Shared {
    /// Enqueues this rank's part of a collective.
    pub(super) fn enqueue(&self, stream: &Stream, job: &DeviceOp<'_>) -> Result<()> {
        self.require_kernels(job)?;
        self.enqueue_with(|state| self.enqueue_locked(state, stream, job))
    }

    /// Refuses an operation that runs on CPU ranks only.
    pub(super) fn require_kernels(&self, job: &DeviceOp<'_>) -> Result<()> {
        if job.has_kernels() { Ok(()) } else { Err(self.host_comm.attach_rank(job.cpu_only_error())) }
    }

    /// Enqueues an operation, unless this communicator has failed. `enqueue` returns its
    /// description.
    pub(super) fn enqueue_with(&self, enqueue: impl FnOnce(&mut CommState) -> Result<OpDesc>) -> Result<()> {
        self.host_comm.with_engine(|engine| engine.poll_events(None))?;
        self.wait_for_room()?;
        let mut state = self.lock();
        self.wake_workers();
        let enqueued = enqueue(&mut state);
        self.launch_state.end_enqueue(enqueued.as_ref().ok().copied());
        match enqueued {
            Ok(call) => {
                let number =
                    if call.is_collective() { &mut state.sequence } else { &mut state.group_sequence };
                *number += 1;
                Ok(())
            }
            Err(error) => {
                drop(state);
                let (error, call) = (self.host_comm.attach_rank(error), self.launch_state.op());
                // Other ranks may be waiting for a call that failed here.
                Err(if error.is_invalid_usage() { error } else { self.fail(error, call) })
            }
        }
    }

    /// Wakes the threads that the next launch needs. This must happen before the launch is
    /// enqueued, because enqueueing may wait for them.
    pub(super) fn wake_workers(&self) {
        self.launch_state.begin_enqueue();
        self.notifiers.iter().for_each(|notifier| notifier.notify());
    }

    /// Orders later work of `stream` after the last launch. Launches of one communicator use the
    /// same memory.
    pub(super) fn wait_for_last(
        &self,
        stream: &Stream,
        capture: CaptureState,
    ) -> std::result::Result<(), GpuError> {
        // A graph can be launched at any time, so a captured stream cannot wait for work outside of
        // the graph. Within one stream, work runs in the order of the calls.
        let last = self.launch_state.last_other_than(stream);
        let Some(last) = last.filter(|_| capture == CaptureState::None && !self.endpoint.is_idle()) else {
            return Ok(());
        };
        match self.follower.follow(stream, &last) {
            // No stream can wait for the work of another one before its capture.
            Err(GpuError::Capturing { .. }) => self.wait_until_idle(),
            followed => followed,
        }
    }

    /// Records the work just enqueued in `stream` as the last launch, or as part of a graph.
    pub(super) fn record_last(
        &self,
        state: &CommState,
        stream: &Stream,
        capture: CaptureState,
        launches: usize,
    ) {
        let add_hook = |hook| (0..launches).all(|_| stream.add_replay_hook(hook));
        match capture {
            CaptureState::None => self.launch_state.record_last(stream),
            CaptureState::Own if state.replay_hook.as_ref().is_some_and(add_hook) => {}
            CaptureState::Own | CaptureState::Foreign => self.launch_state.mark_external_graph(),
        }
    }

    /// Enqueues an operation with the state already locked.
    pub(super) fn enqueue_locked(
        &self,
        state: &mut CommState,
        stream: &Stream,
        job: &DeviceOp<'_>,
    ) -> Result<OpDesc> {
        let choice = self.choose(state, job)?;
        self.enqueue_choice(state, stream, job, &choice)
    }

    /// Chooses the algorithm of an operation, and prepares this rank's part of it.
    pub(super) fn choose(&self, state: &mut CommState, job: &DeviceOp<'_>) -> Result<Choice> {
        let bytes = job.input.share_bytes.max(job.output.share_bytes);
        let spec = self.group_spec(job, bytes);
        let registration = state.registration(job, &spec, bytes, self.host_comm.config());
        let algorithm = match &registration {
            Some(registration) => registration.algorithm,
            None => self.select_algorithm(state, job, &spec, bytes)?,
        };
        let plan = state.plans.get(algorithm, spec, &self.endpoint, &self.ring_order)?;
        Ok(Choice { algorithm, registration, plan, bytes })
    }

    /// Enqueues an operation by the algorithm that was chosen for it.
    pub(super) fn enqueue_choice(
        &self,
        state: &mut CommState,
        stream: &Stream,
        job: &DeviceOp<'_>,
        choice: &Choice,
    ) -> Result<OpDesc> {
        let Choice { algorithm, registration, plan, bytes } = choice;
        let op = job.op.map(ReduceOp::kind);
        let place = registration.as_ref().map(|registration| registration.offset_digest);
        let call = OpDesc::new(state.sequence(), job.kind, job.dtype, op, job.root, job.count);
        let call = call
            .with_algorithm(plan.digest)
            .on_gpu(place)
            .with_user_op(job.user_op.map(UserOpKernels::digest));
        if let Some(uploaded) = &plan.uploaded {
            let registration = registration.as_ref();
            let planned = PlannedOp { job, plan, uploaded, registration, call, bytes: *bytes };
            self.launch_plan(state, stream, &planned)?;
        }
        state.last_algorithm = Some(*algorithm);
        Ok(call)
    }

    /// Launches the program of a plan.
    fn launch_plan(&self, state: &mut CommState, stream: &Stream, planned: &PlannedOp<'_>) -> Result<()> {
        let &PlannedOp { job, plan, uploaded, registration, bytes, .. } = planned;
        let element = job.dtype.size();
        let (inputs, outputs) = job.collective.shares(self.host_comm.size(), job.root, self.host_comm.rank());
        // Even a rank without an input must know the addresses of peers' inputs.
        let inputs = inputs.max(uploaded.program().bounds().peer_chunks[0] / plan.chunks_per_share);
        let mut shares = |side| state.share_tables.get(&self.endpoint, side, plan.chunks_per_share, element);
        let (input_table, output_table) = (shares(&job.input)?, shares(&job.output)?);
        let input = job.input.operand(inputs, plan.chunks_per_share, element, input_table.as_deref());
        let output = job.output.operand(outputs, plan.chunks_per_share, element, output_table.as_deref());
        let is_one_shot =
            registration.is_none() && plan.is_one_shot && bytes <= self.endpoint.one_shot_bytes_max();
        let order = self.launch_args(planned, is_one_shot || plan.rounds_once);
        let operands = [&input, &output];
        if let Some(registration) = registration {
            let table = state.address_tables.get(&self.endpoint, planned, registration, operands)?;
            return self.launch(state, stream, LaunchKind::ZeroCopy(uploaded, &table), &order, operands);
        }
        let work = if is_one_shot { LaunchKind::OneShot(bytes) } else { LaunchKind::Program(uploaded) };
        self.launch(state, stream, work, &order, operands)
    }

    /// Launches this rank's part after the last launch.
    pub(super) fn launch(
        &self,
        state: &mut CommState,
        stream: &Stream,
        work: LaunchKind<'_>,
        order: &LaunchParams<'_>,
        [input, output]: [&Operand<'_>; 2],
    ) -> Result<()> {
        let capture = stream.capture_state();
        let order = &LaunchParams { capture, ..*order };
        self.wait_for_last(stream, capture)?;
        match work {
            LaunchKind::Program(uploaded) => {
                self.endpoint.launch(stream, uploaded, order, [input, output], None)?;
            }
            LaunchKind::ZeroCopy(uploaded, table) => {
                self.endpoint.launch(stream, uploaded, order, [input, output], Some(table))?;
            }
            LaunchKind::OneShot(bytes) => {
                self.endpoint.launch_one_shot(stream, order, bytes, input, output)?;
            }
        }
        self.record_last(state, stream, capture, 1);
        if capture != CaptureState::None {
            state.captured =
                Some(OpDesc::from_tag(&Tag([order.sequence, order.fingerprint, order.count, 0])));
        }
        Ok(())
    }

    fn group_spec(&self, job: &DeviceOp<'_>, bytes: usize) -> GroupSpec {
        let (ranks, slot) = (self.host_comm.size(), self.endpoint.memory().layout().geometry().slot_bytes);
        GroupSpec {
            ranks,
            root: job.root,
            aggregation: select::aggregation(job.collective, ranks, bytes, slot).min(chunks_of_slot(slot)),
        }
    }

    /// Returns the topology, which says how the ranks reach each other.
    pub(super) fn topology(&self) -> Topology {
        if self.endpoint.all_peers_direct() { Topology::Gpu } else { Topology::Network }
    }

    fn select_algorithm(
        &self,
        state: &mut CommState,
        job: &DeviceOp<'_>,
        spec: &GroupSpec,
        bytes: usize,
    ) -> Result<&'static Algorithm> {
        let slot = self.endpoint.memory().layout().geometry().slot_bytes;
        let topology = self.topology();
        match state.overrides[job.collective as usize] {
            Some(algorithm) => select::set_by_caller(algorithm, spec, topology),
            None => {
                let narrow = ReduceOp::rounds_narrow_floats(job.op, job.dtype);
                let (config, messages) = (self.host_comm.config(), &mut state.messages);
                select::algorithm_that_fits(job.collective, spec, bytes, topology, (narrow, config), |row| {
                    messages.fit(row, spec, slot)
                })
            }
        }
    }

    fn launch_args<'p>(&self, planned: &PlannedOp<'p>, rounds_once: bool) -> LaunchParams<'p> {
        let &PlannedOp { job, plan, call, bytes, .. } = planned;
        let longest =
            Layout::new(Shares::Even { bytes }, plan.chunks_per_share, job.dtype.size()).longest_chunk(1);
        let channels = self.endpoint.memory().layout().geometry().channels;
        let lines = self.endpoint.ll_protocol(job.user_op);
        let (protocol, slice_bytes) = protocol_and_slice_bytes(plan, longest, channels, lines);
        let slices = longest.div_ceil(slice_bytes).max(1);
        let ranks = self.host_comm.size();
        let [sequence, what, count, _] = call.tag(0).0;
        let factor = job.op.and_then(|reduction| reduction.factor(job.dtype, ranks, rounds_once));
        let post_ops = job.op.map(|reduction| reduction.post_ops(job.dtype, ranks, rounds_once));
        let finish = post_ops.map(|[_, finish]| finish);
        LaunchParams {
            sequence,
            fingerprint: what,
            count,
            dtype: job.dtype,
            // A scaled average is a pre-multiplied sum that is divided at the end.
            op: match finish {
                Some(PostOp::DivideScaled(_)) => ReduceKind::PreMulSum,
                _ => job.op.map_or(ReduceKind::Sum, ReduceOp::kind),
            },
            user_op: job.user_op,
            factor,
            divisor: match finish {
                Some(PostOp::Divide(ranks) | PostOp::DivideScaled(ranks)) => ranks,
                _ => 1,
            },
            slice_bytes,
            slices,
            channels: slices.min(channels),
            protocol,
            timeout: self.host_comm.config().gpu.timeout,
            capture: CaptureState::None,
            cooperative: self.is_cooperative(),
        }
    }

    /// Returns true if the settings ask for cooperative launches.
    pub(super) fn is_cooperative(&self) -> bool {
        self.host_comm.config().gpu.launch == LaunchMode::Cooperative
    }

    /// Waits on the host while very many launches are in flight.
    ///
    /// A launch into a full stream waits inside the driver, which may let no other thread launch
    /// meanwhile. The full stream would then wait for a rank of this process that cannot launch. So
    /// a thread that drives several ranks must not let one of them run so far ahead.
    pub(super) fn wait_for_room(&self) -> std::result::Result<(), GpuError> {
        self.wait_while_more_than(LAUNCHES_IN_FLIGHT_MAX).inspect_err(|error| {
            // Peers must not wait for a rank whose GPU has failed. The caller gets the error
            // itself.
            let error = self.host_comm.attach_rank(error.clone().into());
            self.fail(error, self.launch_state.op());
        })
    }

    /// Waits on the host until all launches have ended, each by its own time limit.
    ///
    /// # Errors
    /// Fails if the GPU has failed. Then no launch ends any more.
    pub(super) fn wait_until_idle(&self) -> std::result::Result<(), GpuError> {
        self.wait_while_more_than(0)
    }

    fn wait_while_more_than(&self, launches: u64) -> std::result::Result<(), GpuError> {
        let mut rounds = 0u32;
        while self.endpoint.launches_in_flight() > launches {
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(ROUNDS_PER_GPU_CHECK) {
                self.endpoint.check_gpu()?;
            }
            std::thread::sleep(IDLE_POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits for a limited time until peers have finished with this rank's memory, unless an error
    /// occurred. Returns true if they have.
    pub(super) fn quiesce(&self) -> bool {
        let begun = Instant::now();
        let limit = self.host_comm.config().timeout.min(QUIESCE_TIMEOUT_MAX);
        while self.poll().is_ok() && begun.elapsed() < limit {
            match self.endpoint.is_quiescent() {
                Ok(false) => std::thread::sleep(Duration::from_millis(1)),
                answer => return answer.is_ok(),
            }
        }
        false
    }
}

/// Returns the message protocol and the bytes of a slice.
///
/// All channels get work, and no slice is so small that passing it on takes most of the time.
/// `lines` is the protocol of messages with flags.
fn protocol_and_slice_bytes(
    plan: &Plan,
    longest_block: usize,
    channels: usize,
    lines: Protocol,
) -> (Protocol, usize) {
    let whole_slice = longest_block.max(1).next_multiple_of(SLICE_UNIT_BYTES);
    if whole_slice <= plan.ll_bytes_max {
        return (lines, whole_slice);
    }
    let spread = longest_block.div_ceil(channels).next_multiple_of(SLICE_UNIT_BYTES);
    let least = SLICE_BYTES_MIN.min(plan.slice_bytes_max);
    (Protocol::Simple, spread.clamp(least, plan.slice_bytes_max))
}

/// Longest wait for peers that still use this rank's memory. A peer that takes longer with its part
/// of the last operation may find that this rank has left.
const QUIESCE_TIMEOUT_MAX: Duration = Duration::from_secs(5);
/// Launches of a communicator that may be in flight before the host waits. Drivers hold 1,024 in a
/// stream, and work of the user needs room too.
const LAUNCHES_IN_FLIGHT_MAX: u64 = 512;
/// Interval at which a waiting host looks whether launches have ended.
const IDLE_POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Number of such checks between two queries of the driver, which reports if the GPU has failed.
const ROUNDS_PER_GPU_CHECK: u32 = 256;
/// Smallest slice. Below this size, hand-overs cost more than the overlap gains.
const SLICE_BYTES_MIN: usize = 16 << 10;
