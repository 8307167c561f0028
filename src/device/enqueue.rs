//! From a call to a launch.

use super::Shared;
use super::job::{Job, refused};
use super::plan::{Plan, Plans, SLICE_UNIT_BYTES};
use crate::call::Call;
use crate::engine::{Layout, Shares};
use crate::error::{Error, ErrorKind, Result};
use crate::reduction::Reduction;
use crate::schedule::{Algorithm, Collective, Reach, Spec};
use crate::select;
use unisono_cuda::device::{Event, Stream};
use unisono_cuda::{Finish, Op};
use unisono_transports::p2p::{Order, Protocol};

/// What a communicator keeps from call to call at this rank.
#[derive(Default)]
pub(super) struct State {
    plans: Plans,
    sequence: u64,
    /// The stream of the last launch, by its number, and when it is done.
    last: Option<(Stream, Option<Event>)>,
    /// The last call, until it is known to be over.
    pub(super) call: Option<Call>,
    pub(super) chosen: [Option<&'static Algorithm>; Collective::ALL.len()],
    pub(super) last_algorithm: Option<&'static Algorithm>,
}

impl Shared {
    /// Enqueues this rank's part of a collective.
    pub(super) fn enqueue(&self, stream: &Stream, job: &Job<'_>) -> Result<()> {
        self.base.with(|engine| engine.listen(None))?;
        let mut state = self.lock();
        let enqueued = self.enqueue_in(&mut state, stream, job);
        enqueued.map_err(|error| {
            let error = self.base.place(error);
            // What was refused here, others may be waiting for.
            if error.is_misuse() { error } else { self.end(error, state.call) }
        })
    }

    fn enqueue_in(&self, state: &mut State, stream: &Stream, job: &Job<'_>) -> Result<()> {
        let bytes = job.input.share_bytes.max(job.output.share_bytes);
        let spec = self.spec(job, bytes);
        let algorithm = self.algorithm(state, job.collective, &spec, bytes)?;
        let plan = state.plans.get(algorithm, spec, &self.endpoint)?;
        let op = job.reduction.map(Reduction::op);
        let call = Call::new(state.sequence, job.kind, job.dtype, op, job.root, job.count).by(plan.digest);
        let order = self.order(job, &plan, call, bytes);
        state.last_algorithm = Some(algorithm);
        if let Some(uploaded) = &plan.uploaded {
            self.follow(state, stream)?;
            let element = job.dtype.size();
            let (inputs, outputs) = job.collective.shares(self.base.ranks(), job.root, self.base.rank());
            let gpu = self.endpoint.arena().gpu();
            let tables = [&job.input, &job.output].map(|side| side.shares(gpu, plan.parts, element));
            let [from, into] = tables;
            let (from, into) = (from?, into?);
            let input = job.input.operand(inputs, plan.parts, element, from.as_ref());
            let output = job.output.operand(outputs, plan.parts, element, into.as_ref());
            self.endpoint.launch(stream, uploaded, &order, &input, &output)?;
            state.last = Some((stream.clone(), stream.record().ok()));
        }
        state.sequence += 1;
        state.call = Some(call);
        self.bell.ring();
        Ok(())
    }

    /// Lets `stream` wait for the last launch, if that was on another one: launches of one communicator use the same memory.
    fn follow(&self, state: &State, stream: &Stream) -> Result<()> {
        match &state.last {
            Some((last, Some(event))) if last != stream => stream.wait(event).map_err(refused),
            _ => Ok(()),
        }
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
        let spread = longest.div_ceil(channels).next_multiple_of(SLICE_UNIT_BYTES);
        let least = SLICE_BYTES_MIN.min(plan.slice_bytes_max);
        let slice_bytes = spread.clamp(least, plan.slice_bytes_max);
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
            protocol: Protocol::Counted,
            limit: self.base.config().timeout,
        }
    }

    /// Whether the last launch is known to be over; it is forgotten then.
    pub(super) fn is_idle(&self, state: &mut State) -> bool {
        let over = match &state.last {
            Some((_, Some(event))) => event.is_done().unwrap_or(true),
            // Captured: it may be repeated at any time.
            Some((_, None)) => false,
            None => true,
        };
        if over {
            state.call = None;
        }
        over
    }
}

/// Below this a slice costs more in hand-overs than it gains in overlap.
const SLICE_BYTES_MIN: usize = 16 << 10;
