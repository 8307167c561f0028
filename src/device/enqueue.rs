//! From a call to a launch.

use super::Shared;
use super::group::Groups;
use super::job::Job;
use super::plan::{Plan, Plans, SLICE_UNIT_BYTES};
use crate::call::Call;
use crate::engine::{Layout, Shares};
use crate::error::{Error, ErrorKind, Result};
use crate::reduction::Reduction;
use crate::schedule::algorithms::direct_reduce::ONE_SHOT;
use crate::schedule::{Algorithm, Collective, Reach, Spec};
use crate::select;
use std::sync::Arc;
use std::time::{Duration, Instant};
use unisono_cuda::device::{Event, Stream};
use unisono_cuda::{Finish, Op};
use unisono_transports::p2p::{Operand, Order, Protocol, Uploaded};

/// What a communicator keeps from call to call at this rank.
#[derive(Default)]
pub(super) struct State {
    plans: Plans,
    pub(super) groups: Groups,
    sequence: u64,
    /// The stream of the last launch that no graph records, and when it is done.
    last: Option<(Stream, Arc<Event>)>,
    /// Whether a graph has recorded a launch: it may be repeated at any time.
    recorded: bool,
    /// The last call, until it is known to be over.
    pub(super) call: Option<Call>,
    pub(super) chosen: [Option<&'static Algorithm>; Collective::ALL.len()],
    pub(super) last_algorithm: Option<&'static Algorithm>,
}

/// What a launch carries out.
#[derive(Clone, Copy)]
pub(super) enum Work<'w> {
    Program(&'w Uploaded),
    /// A small all_reduce of so many bytes, by the kernel that does nothing else.
    OneShot(usize),
}

impl State {
    /// The number of the next operation.
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
        match enqueue(&mut state) {
            Ok(call) => {
                state.sequence += 1;
                state.call = Some(call);
                drop(state);
                self.bells.iter().for_each(|bell| bell.ring());
                Ok(())
            }
            Err(error) => {
                let (error, call) = (self.base.place(error), state.call);
                drop(state);
                // What was refused here, others may be waiting for.
                Err(if error.is_misuse() { error } else { self.end(error, call) })
            }
        }
    }

    fn enqueue_in(&self, state: &mut State, stream: &Stream, job: &Job<'_>) -> Result<Call> {
        let bytes = job.input.share_bytes.max(job.output.share_bytes);
        let spec = self.spec(job, bytes);
        let algorithm = self.algorithm(state, job.collective, &spec, bytes)?;
        let plan = state.plans.get(algorithm, spec, &self.endpoint)?;
        let op = job.reduction.map(Reduction::op);
        let call = Call::new(state.sequence, job.kind, job.dtype, op, job.root, job.count).by(plan.digest);
        if let Some(uploaded) = &plan.uploaded {
            let (element, gpu) = (job.dtype.size(), self.endpoint.arena().gpu());
            let (inputs, outputs) = job.collective.shares(self.base.ranks(), job.root, self.base.rank());
            let from = job.input.shares(gpu, plan.parts, element)?;
            let into = job.output.shares(gpu, plan.parts, element)?;
            let input = job.input.operand(inputs, plan.parts, element, from.as_ref());
            let output = job.output.operand(outputs, plan.parts, element, into.as_ref());
            let order = self.order(job, &plan, call, bytes);
            let work = match is_one_shot(algorithm) && bytes <= self.endpoint.shot_bytes_max() {
                true => Work::OneShot(bytes),
                false => Work::Program(uploaded),
            };
            self.launch(state, stream, work, &order, &input, &output)?;
        }
        state.last_algorithm = Some(algorithm);
        Ok(call)
    }

    /// Launches this rank's part, behind the last launch: those of one communicator use the same memory.
    pub(super) fn launch(
        &self,
        state: &mut State,
        stream: &Stream,
        work: Work<'_>,
        order: &Order,
        input: &Operand<'_>,
        output: &Operand<'_>,
    ) -> Result<()> {
        // What a graph records is done whenever it is launched: it can wait for nothing outside.
        let captured = stream.is_captured()?;
        if let Some((last, event)) = &state.last
            && last != stream
            && !captured
        {
            stream.wait(event)?;
        }
        match work {
            Work::Program(uploaded) => self.endpoint.launch(stream, uploaded, order, input, output)?,
            Work::OneShot(bytes) => {
                self.endpoint.launch_one_shot(stream, order, bytes, input, output)?;
            }
        }
        match captured {
            true => state.recorded = true,
            false => state.last = Some((stream.clone(), Arc::new(stream.record()?))),
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
        collective: Collective,
        spec: &Spec,
        bytes: usize,
    ) -> Result<&'static Algorithm> {
        let has_window = self.endpoint.reaches_all();
        let Some(algorithm) = state.chosen[collective as usize] else {
            return select::algorithm(collective, spec, bytes, has_window, self.base.config());
        };
        let reachable = match algorithm.reach {
            Reach::Messages => true,
            Reach::Windows => has_window,
            Reach::Buffers => false,
        };
        if reachable && (algorithm.fits)(spec) {
            return Ok(algorithm);
        }
        let text = format!("{algorithm:?} on GPUs with {} ranks that reach each other so", spec.ranks);
        Err(Error::new(ErrorKind::Unavailable(text)))
    }

    fn order(&self, job: &Job<'_>, plan: &Plan, call: Call, bytes: usize) -> Order {
        let longest = Layout::new(Shares::Even { bytes }, plan.parts, job.dtype.size()).longest_block(1);
        let channels = self.endpoint.arena().layout().sizes().channels;
        let (protocol, slice_bytes) = cut(plan, longest, channels, self.endpoint.reaches_all());
        let pieces = longest.div_ceil(slice_bytes).max(1);
        let ranks = self.base.ranks();
        let [sequence, what, count, _] = call.tag(0).0;
        Order {
            sequence,
            what,
            count,
            dtype: job.dtype,
            op: job.reduction.map_or(Op::Sum, Reduction::op),
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
        let last = self.lock().last.as_ref().map(|(_, event)| Arc::clone(event));
        if let Some(event) = last {
            // What a GPU that has failed still does is nothing.
            let _ = event.synchronize();
        }
    }

    /// Waits until peers are through with this rank's memory, if all is well and not for long.
    pub(super) fn rest(&self) {
        let begun = Instant::now();
        let limit = self.base.config().timeout.min(REST_LIMIT);
        while self.look().is_ok()
            && begun.elapsed() < limit
            && matches!(self.endpoint.is_at_rest(), Ok(false))
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether the last launch is known to be over; it is forgotten then.
    pub(super) fn is_idle(&self, state: &mut State) -> bool {
        let done = |(_, event): &(Stream, Arc<Event>)| event.is_done().unwrap_or(true);
        let over = !state.recorded && state.last.as_ref().is_none_or(done);
        if over {
            state.call = None;
        }
        over
    }
}

/// Whether a kernel of its own does the same to the bit, in one trip.
fn is_one_shot(algorithm: &Algorithm) -> bool {
    algorithm.collective == Collective::AllReduce && algorithm.name == ONE_SHOT.name
}

/// How messages go, and bytes of a slice: all channels get work, and no slice is too small to be worth its hand-over.
fn cut(plan: &Plan, longest_block: usize, channels: usize, direct: bool) -> (Protocol, usize) {
    let whole = longest_block.max(1).next_multiple_of(SLICE_UNIT_BYTES);
    if direct && whole <= plan.line_bytes_max {
        return (Protocol::Lines, whole);
    }
    let spread = longest_block.div_ceil(channels).next_multiple_of(SLICE_UNIT_BYTES);
    let least = SLICE_BYTES_MIN.min(plan.slice_bytes_max);
    (Protocol::Slots, spread.clamp(least, plan.slice_bytes_max))
}

/// A peer that takes longer with its part of the last operation than this has to expect that this rank is gone.
const REST_LIMIT: Duration = Duration::from_secs(5);
/// Below this a slice costs more in hand-overs than it gains in overlap.
const SLICE_BYTES_MIN: usize = 16 << 10;
