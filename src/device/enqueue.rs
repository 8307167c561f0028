//! From a call to a launch.

use super::Shared;
use super::group::Groups;
use super::job::Job;
use super::lending::{Grasps, Loan};
use super::plan::{Plan, Plans, SLICE_UNIT_BYTES};
use crate::call::Call;
use crate::engine::{Layout, Shares};
use crate::error::{Error, ErrorKind, Result};
use crate::reduction::Reduction;
use crate::schedule::{Algorithm, Collective, Reach, Spec};
use crate::select::{self, Medium};
use std::sync::Arc;
use std::time::{Duration, Instant};
use unisono_cuda::device::{GpuError, OwnKernels, Repeat, Stream};
use unisono_cuda::{Finish, Op};
use unisono_transports::Tag;
use unisono_transports::p2p::{Grasp, Lending, Operand, Order, Protocol, Uploaded};

/// What a communicator keeps from call to call at this rank.
#[derive(Default)]
pub(super) struct State {
    plans: Plans,
    pub(super) groups: Groups,
    /// Numbers of the next operation of all ranks, and of the next group of sends and receives.
    sequence: u64,
    groups_called: u64,
    /// What all ranks have lent, in the order of the calls.
    pub(super) lendings: Vec<Arc<Lending>>,
    pub(super) grasps: Grasps,
    /// What graphs ask before they repeat launches.
    pub(super) replay: Option<Arc<dyn Repeat>>,
    /// The last call that a graph has recorded.
    pub(super) recorded: Option<Call>,
    pub(super) chosen: [Option<&'static Algorithm>; Collective::ALL.len()],
    pub(super) last_algorithm: Option<&'static Algorithm>,
}

/// What a launch carries out.
#[derive(Clone, Copy)]
pub(super) enum Work<'w> {
    Program(&'w Uploaded),
    /// One that reaches the buffers of peers.
    Reaching(&'w Uploaded, &'w Grasp),
    /// A small all_reduce of so many bytes, by the kernel that does nothing else.
    OneShot(usize),
}

impl State {
    /// The number of the next group of sends and receives: not every rank takes part in each.
    pub(super) fn groups_called(&self) -> u64 {
        self.groups_called
    }

    /// The number of the next operation of all ranks.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }
}

impl Shared {
    /// Enqueues this rank's part of a collective.
    pub(super) fn enqueue(&self, stream: &Stream, job: &Job<'_>) -> Result<()> {
        self.carry_out(|state| self.enqueue_in(state, stream, job))
    }

    /// Enqueues an operation, unless this communicator has ended; `enqueue` says which.
    pub(super) fn carry_out(&self, enqueue: impl FnOnce(&mut State) -> Result<Call>) -> Result<()> {
        self.base.with(|engine| engine.listen(None))?;
        let mut state = self.lock();
        self.start_work();
        let enqueued = enqueue(&mut state);
        self.progress.started(enqueued.as_ref().ok().copied());
        match enqueued {
            Ok(call) => {
                let number = if call.is_of_all() { &mut state.sequence } else { &mut state.groups_called };
                *number += 1;
                Ok(())
            }
            Err(error) => {
                drop(state);
                let (error, call) = (self.base.place(error), self.progress.call());
                // What was refused here, others may be waiting for.
                Err(if error.is_misuse() { error } else { self.end(error, call) })
            }
        }
    }

    /// Wakes the threads that look after what is enqueued next: before that, as it may wait for them.
    pub(super) fn start_work(&self) {
        self.progress.start();
        self.bells.iter().for_each(|bell| bell.ring());
    }

    /// Lets what is enqueued in `stream` come behind the last launch: those of one communicator use the same memory.
    pub(super) fn follow(&self, stream: &Stream) -> std::result::Result<(), GpuError> {
        match self.progress.last() {
            // What a graph records is done whenever it is launched: it can wait for nothing outside.
            Some((last, event)) if last != *stream && !stream.is_captured()? => stream.wait(&event),
            _ => Ok(()),
        }
    }

    /// What was enqueued in `stream` is the last launch now, or a part of a graph; whether it is such a part.
    pub(super) fn lead(&self, state: &State, stream: &Stream) -> std::result::Result<bool, GpuError> {
        let is_part = stream.is_captured()?;
        if !is_part {
            self.progress.lead(stream, stream.record()?);
        } else if !state.replay.as_ref().is_some_and(|replay| stream.repeats(replay)) {
            self.progress.is_repeated_unasked();
        }
        Ok(is_part)
    }

    /// The same with the state at hand.
    pub(super) fn enqueue_in(&self, state: &mut State, stream: &Stream, job: &Job<'_>) -> Result<Call> {
        let bytes = job.input.share_bytes.max(job.output.share_bytes);
        let spec = self.spec(job, bytes);
        let loan = state.loan(job, &spec, bytes, self.base.config());
        let algorithm = match &loan {
            Some(loan) => loan.row,
            None => self.algorithm(state, job, &spec, bytes)?,
        };
        let plan = state.plans.get(algorithm, spec, &self.endpoint, &self.order)?;
        let op = job.reduction.map(Reduction::op);
        let place = loan.as_ref().map(|loan| loan.place);
        let call = Call::new(state.sequence(), job.kind, job.dtype, op, job.root, job.count);
        let call = call.by(plan.digest).on_gpus(place).with_own(job.own.map(OwnKernels::digest));
        if let Some(uploaded) = &plan.uploaded {
            self.start(state, stream, (job, loan.as_ref()), (&plan, uploaded), (call, bytes))?;
        }
        state.last_algorithm = Some(algorithm);
        Ok(call)
    }

    /// Launches the program of a plan.
    fn start(
        &self,
        state: &mut State,
        stream: &Stream,
        (job, loan): (&Job<'_>, Option<&Loan>),
        (plan, uploaded): (&Plan, &Uploaded),
        (call, bytes): (Call, usize),
    ) -> Result<()> {
        let (element, gpu) = (job.dtype.size(), self.endpoint.arena().gpu());
        let (inputs, outputs) = job.collective.shares(self.base.ranks(), job.root, self.base.rank());
        // Where peers' inputs are, ranks without one must know too.
        let inputs = inputs.max(uploaded.program().bounds().lent[0] / plan.parts);
        let from = job.input.shares(gpu, plan.parts, element)?;
        let into = job.output.shares(gpu, plan.parts, element)?;
        let input = job.input.operand(inputs, plan.parts, element, from.as_ref());
        let output = job.output.operand(outputs, plan.parts, element, into.as_ref());
        let order = self.order(job, plan, call, bytes);
        let operands = [&input, &output];
        if let Some(loan) = loan {
            let grasp = state.grasps.get(&self.endpoint, (plan, uploaded), (job, loan), operands)?;
            return self.launch(state, stream, Work::Reaching(uploaded, &grasp), &order, operands);
        }
        let is_one_shot = plan.is_one_shot && bytes <= self.endpoint.shot_bytes_max();
        let work = if is_one_shot { Work::OneShot(bytes) } else { Work::Program(uploaded) };
        self.launch(state, stream, work, &order, operands)
    }

    /// Launches this rank's part, behind the last launch.
    pub(super) fn launch(
        &self,
        state: &mut State,
        stream: &Stream,
        work: Work<'_>,
        order: &Order<'_>,
        [input, output]: [&Operand<'_>; 2],
    ) -> Result<()> {
        self.follow(stream)?;
        match work {
            Work::Program(uploaded) => {
                self.endpoint.launch(stream, uploaded, order, [input, output], None)?;
            }
            Work::Reaching(uploaded, grasp) => {
                self.endpoint.launch(stream, uploaded, order, [input, output], Some(grasp))?;
            }
            Work::OneShot(bytes) => {
                self.endpoint.launch_one_shot(stream, order, bytes, input, output)?;
            }
        }
        if self.lead(state, stream)? {
            state.recorded = Some(Call::from_tag(&Tag([order.sequence, order.what, order.count, 0])));
        }
        Ok(())
    }

    fn spec(&self, job: &Job<'_>, bytes: usize) -> Spec {
        let (ranks, slot) = (self.base.ranks(), self.endpoint.arena().layout().sizes().slot_bytes);
        Spec { ranks, root: job.root, aggregation: select::aggregation(job.collective, ranks, bytes, slot) }
    }

    fn algorithm(
        &self,
        state: &State,
        job: &Job<'_>,
        spec: &Spec,
        bytes: usize,
    ) -> Result<&'static Algorithm> {
        let has_window = self.endpoint.reaches_all();
        let Some(algorithm) = state.chosen[job.collective as usize] else {
            let medium = if has_window { Medium::Device } else { Medium::Messages };
            let narrow = Reduction::is_narrow(job.reduction, job.dtype);
            return select::algorithm(job.collective, spec, bytes, medium, narrow, self.base.config());
        };
        let reachable = match algorithm.reach {
            Reach::Messages => true,
            Reach::Windows => has_window,
            Reach::Buffers => {
                let text = format!("{algorithm:?} is for buffers from `DeviceCommunicator::alloc`");
                return Err(Error::new(ErrorKind::Unavailable(text)));
            }
        };
        if reachable && (algorithm.fits)(spec) {
            return Ok(algorithm);
        }
        let text = format!("{algorithm:?} on GPUs with {} ranks that reach each other so", spec.ranks);
        Err(Error::new(ErrorKind::Unavailable(text)))
    }

    fn order<'j>(&self, job: &Job<'j>, plan: &Plan, call: Call, bytes: usize) -> Order<'j> {
        let longest = Layout::new(Shares::Even { bytes }, plan.parts, job.dtype.size()).longest_block(1);
        let channels = self.endpoint.arena().layout().sizes().channels;
        let lines = self.endpoint.reaches_all().then(|| self.endpoint.lines(job.own));
        let (protocol, slice_bytes) = cut(plan, longest, channels, lines);
        let pieces = longest.div_ceil(slice_bytes).max(1);
        let ranks = self.base.ranks();
        let [sequence, what, count, _] = call.tag(0).0;
        Order {
            sequence,
            what,
            count,
            dtype: job.dtype,
            op: job.reduction.map_or(Op::Sum, Reduction::op),
            own: job.own,
            factor: job.reduction.and_then(Reduction::factor),
            divisor: match job.reduction.map(|reduction| reduction.finish(ranks)) {
                Some(Finish::Divide(ranks)) => ranks,
                _ => 1,
            },
            slice_bytes,
            pieces,
            channels: pieces.min(channels),
            protocol,
            limit: self.base.config().timeout,
        }
    }

    /// Waits for the last launch.
    pub(super) fn finish(&self) {
        if let Some((_, event)) = self.progress.last() {
            // What a GPU that has failed still does is nothing.
            let _ = event.synchronize();
        }
    }

    /// Waits until peers are through with this rank's memory, if all is well and not for long; whether they are.
    pub(super) fn rest(&self) -> bool {
        let begun = Instant::now();
        let limit = self.base.config().timeout.min(REST_LIMIT);
        while self.look().is_ok() && begun.elapsed() < limit {
            match self.endpoint.is_at_rest() {
                Ok(false) => std::thread::sleep(Duration::from_millis(1)),
                answer => return answer.is_ok(),
            }
        }
        false
    }
}

/// How messages go, and bytes of a slice: all channels get work, and no slice is too small to be worth its hand-over.
/// `lines`: how messages with flags go, if ranks reach each other directly.
fn cut(plan: &Plan, longest_block: usize, channels: usize, lines: Option<Protocol>) -> (Protocol, usize) {
    let whole = longest_block.max(1).next_multiple_of(SLICE_UNIT_BYTES);
    if let Some(lines) = lines.filter(|_| whole <= plan.line_bytes_max) {
        return (lines, whole);
    }
    let spread = longest_block.div_ceil(channels).next_multiple_of(SLICE_UNIT_BYTES);
    let least = SLICE_BYTES_MIN.min(plan.slice_bytes_max);
    (Protocol::Slots, spread.clamp(least, plan.slice_bytes_max))
}

/// A peer that takes longer with its part of the last operation than this has to expect that this rank is gone.
const REST_LIMIT: Duration = Duration::from_secs(5);
/// Below this a slice costs more in hand-overs than it gains in overlap.
const SLICE_BYTES_MIN: usize = 16 << 10;
