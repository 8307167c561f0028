//! Carries out schedules over a mesh.
//!
//! An operation is cut into *pieces* (the i-th slice of every block); piece `i`
//! runs on channel `i mod channels`, and every channel is a little interpreter
//! of the same program with lanes, scratch and window bank of its own. One
//! thread advances all channels in turn and never waits inside a step: a step
//! that cannot go on names the rank it needs, and the next channel gets its
//! chance. Only when no channel can move does the thread give time away, look
//! at the clock, at the abort flag and at the notes of the other ranks.

mod choice;
mod express;
mod finite;
mod layout;
mod ledger;
mod memory;
mod notes;
mod operand;
mod plan;
mod reach;
mod recorder;
mod ride;
mod roll;
mod rotation;
mod run;
mod sheet;
mod shrink;
mod spots;
mod stage;
mod staging;
mod trace;
mod traffic;
mod transfer;
mod usage;
mod watch;

#[cfg(feature = "gpu")]
pub(crate) use layout::Layout;
pub(crate) use layout::Shares;
pub(crate) use memory::Buffers;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use notes::fuzz as fuzz_notes;
pub(crate) use notes::{PLACE_BYTES_MAX, bits};
#[cfg(feature = "gpu")]
pub(crate) use plan::Bounds;
pub(crate) use recorder::{Owner, Recorder};
pub(crate) use roll::Company;
pub(crate) use shrink::Assembly;
pub use traffic::Traffic;
pub(crate) use transfer::{Direction, Transfer};
pub use usage::MemoryUse;
pub(crate) use watch::AbortFlag;

use crate::call::{Call, Digest, Kind};
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::reduction::Reduction;
use crate::schedule::{Algorithm, Collective, Rank, Spec};
use express::Express;
use memory::Scratch;
use plan::{Plan, Plans};
use std::path::Path;
use std::sync::Arc;
use trace::Trace;
use unisono_cuda::{DType, Store};
use unisono_transports::{Mesh, Window, fork};
use watch::Watch;

/// One collective operation, as the communicator hands it over.
pub(crate) struct Job<'a> {
    pub(crate) kind: Kind,
    /// The collective whose algorithms serve it.
    pub(crate) collective: Collective,
    pub(crate) dtype: DType,
    pub(crate) reduction: Option<Reduction>,
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
        Reduction::is_narrow(self.reduction, self.dtype)
    }
}

/// The state of one communicator at one rank.
pub(crate) struct Engine {
    mesh: Mesh,
    config: Config,
    plans: Plans,
    channels: Vec<Channel>,
    express: Express,
    ledger: ledger::Ledger,
    /// Whether memory that peers reach has been lent; and where their buffers are in the operation at hand.
    lent: bool,
    offsets: Vec<reach::Offsets>,
    watch: Watch,
    recorder: Arc<Recorder>,
    trace: Option<Box<Trace>>,
    sequence: u64,
    pub(crate) traffic: Traffic,
    /// Sends to and receives from each peer so far.
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Algorithms that the caller insists on, by collective.
    chosen: [Option<&'static Algorithm>; Collective::ALL.len()],
    /// What the last collective was carried out with.
    pub(crate) last: Option<&'static Algorithm>,
    /// The first error; what every later call returns.
    poison: Option<Error>,
    /// Whether this communicator has been shrunk, or was to be.
    shrunk: bool,
    /// Room for a buffer that is sent while it is overwritten.
    aside: Vec<u8>,
    /// The process that it was made in.
    process: u64,
}

/// What one channel keeps from operation to operation.
#[derive(Default)]
struct Channel {
    /// Instances of window programs run so far.
    instance: u64,
    /// For each rank, how many of them it has surely finished.
    finished: Vec<u64>,
    /// How the instance at hand writes to windows, and whether it is timed; and what it takes then.
    way: (Store, staging::Timed),
    trial: staging::Trial,
    scratch: Scratch,
    run: run::Progress,
}

impl Job<'_> {
    /// Whether all shares are equally long.
    fn is_even(&self) -> bool {
        matches!((&self.input, &self.output), (Shares::Even { .. }, Shares::Even { .. }))
    }
}

impl Engine {
    pub(crate) fn new(mesh: Mesh, config: Config, company: watch::Company) -> Self {
        let (ranks, recorder) = (mesh.ranks, Arc::clone(&company.1));
        let channels = channels_of(mesh.geometry.lanes);
        let channel = || Channel { finished: vec![0; ranks], ..Channel::default() };
        Self {
            watch: Watch::new(mesh.rank, ranks, config.timeout, company),
            trace: config.trace.as_deref().and_then(|folder| opened(folder, recorder.owner())),
            recorder,
            process: fork::process(),
            channels: (0..channels).map(|_| channel()).collect(),
            express: Express::new(ranks),
            ledger: ledger::Ledger::default(),
            lent: false,
            offsets: Vec::new(),
            mesh,
            config,
            plans: Plans::default(),
            sequence: 0,
            traffic: Traffic::default(),
            sent: vec![0; ranks],
            received: vec![0; ranks],
            chosen: [None; Collective::ALL.len()],
            last: None,
            poison: None,
            shrunk: false,
            aside: Vec::new(),
        }
    }

    /// Carries out one collective; every rank calls it with a matching job.
    pub(crate) fn collective(&mut self, job: &mut Job<'_>) -> Result<()> {
        self.sound()?;
        if self.config.check_finite {
            self.check_input(job)?;
        }
        self.traffic.begin();
        let reaching = self.reaching(job);
        let sheet = if reaching.is_none() { self.sheet(job)? } else { None };
        match sheet {
            Some(sheet) => self.carry_out_small(sheet, job),
            None => self.carry_out(reaching, job),
        }
    }

    #[inline]
    fn carry_out_small(&mut self, sheet: usize, job: &mut Job<'_>) -> Result<()> {
        let call = self.call_of(sheet);
        let (number, timed) = (self.traffic.operations, job.share_bytes_max >= TIMED_FROM_BYTES);
        self.begin(&call);
        if timed {
            self.recorder.start(number);
        }
        let ended = self.ride(sheet, job, call);
        if timed && ended.is_ok() {
            self.recorder.stop(number);
        }
        self.end(ended, call)
    }

    /// By `reaching`, which reaches the buffers of peers, where that is possible.
    fn carry_out(&mut self, reaching: Option<&'static Algorithm>, job: &mut Job<'_>) -> Result<()> {
        let algorithm = self.algorithm(job.collective, job.root, job.share_bytes_max, job.is_narrow())?;
        let spec = self.spec(job.collective, job.root, job.share_bytes_max);
        let bank_bytes = self.bank_bytes();
        let plan = self.plans.get(algorithm, spec, self.mesh.rank, &self.mesh.geometry, bank_bytes)?;
        let call = self.call(job, plan.digest);
        let (number, timed) = (self.traffic.operations, job.share_bytes_max >= TIMED_FROM_BYTES);
        self.begin(&call);
        if timed {
            self.recorder.start(number);
        }
        self.last = Some(algorithm);
        let ended = match reaching {
            Some(row) => self.reach_or_run(row, spec, &plan, job, call),
            None => self.run(&plan, job, call),
        };
        if timed && ended.is_ok() {
            self.recorder.stop(number);
        }
        self.end(ended, call)
    }

    /// Runs `row`, which reaches the buffers of peers, if all ranks' can be reached; else `plan`.
    fn reach_or_run(
        &mut self,
        row: &'static Algorithm,
        spec: Spec,
        plan: &Plan,
        job: &mut Job<'_>,
        call: Call,
    ) -> Result<()> {
        if !self.exchange_offsets(job, call)? {
            return self.run(plan, job, call);
        }
        let bank_bytes = self.bank_bytes();
        self.last = Some(row);
        let plan = self.plans.get(row, spec, self.mesh.rank, &self.mesh.geometry, bank_bytes)?;
        self.run_reaching(&plan, job, call)
    }

    /// Describes the next operation of all ranks.
    fn call(&mut self, job: &Job<'_>, algorithm: Digest) -> Call {
        let op = job.reduction.map(Reduction::op);
        let sequence = self.number_all();
        Call::new(sequence, job.kind, job.dtype, op, job.root, job.count).by(algorithm)
    }

    /// Carries out sends and receives together; those of one peer and direction keep their order.
    pub(crate) fn transfer(&mut self, transfers: &mut [Transfer<'_>]) -> Result<()> {
        self.sound()?;
        let Some(first) = transfers.first() else {
            return Ok(());
        };
        let call = first.call();
        if self.config.check_finite {
            self.check_sends(transfers)?;
        }
        for transfer in &*transfers {
            self.traffic.begin();
            self.begin(&transfer.call());
            self.recorder.pair(self.traffic.operations, transfer.peer());
        }
        let ended = self.run_transfers(transfers);
        self.end(ended, call)
    }

    /// The next number for a message to (or from) `peer`.
    pub(crate) fn number(&mut self, direction: Direction, peer: Rank) -> u64 {
        let counter = match direction {
            Direction::Send => &mut self.sent[peer],
            Direction::Recv => &mut self.received[peer],
        };
        *counter += 1;
        *counter - 1
    }

    /// The next number for an operation of all ranks.
    pub(crate) fn number_all(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence - 1
    }

    /// The number that the next operation of all ranks will have.
    pub(crate) fn next_number(&self) -> u64 {
        self.sequence
    }

    /// Lends a buffer that keeps its memory from call to call.
    pub(crate) fn take_aside(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.aside)
    }

    /// Takes the buffer back.
    pub(crate) fn keep_aside(&mut self, aside: Vec<u8>) {
        self.aside = aside;
    }

    /// Tells all ranks that this communicator is over, because of `reason`.
    pub(crate) fn abort(&mut self, reason: &str) {
        if self.poison.is_none() {
            self.close(self.aborted(reason));
            self.dump();
        }
    }

    /// That this rank ends the communicator because of `reason`.
    fn aborted(&self, reason: &str) -> Error {
        let kind = ErrorKind::Aborted { by: self.mesh.rank, reason: reason.to_owned() };
        Error::new(kind).at(self.mesh.rank, &self.config.host, None)
    }

    /// Hears what the others have to say while the operation `call`, if there is one, is carried out elsewhere.
    #[cfg(feature = "gpu")]
    pub(crate) fn listen(&mut self, call: Option<Call>) -> Result<()> {
        self.sound()?;
        let now = self.mesh.pace.now();
        self.watch.listen(&mut *self.mesh.control, now, call).or_else(|error| self.fail(error, call))
    }

    /// The links, for messages that no schedule knows of.
    #[cfg(feature = "gpu")]
    pub(crate) fn links(&mut self) -> &mut [Option<Box<dyn unisono_transports::Link>>] {
        &mut self.mesh.links
    }

    /// Tells the others that this rank has been waiting in `call` for a while.
    #[cfg(feature = "gpu")]
    pub(crate) fn cry(&mut self, call: Call) {
        self.watch.cry(&mut *self.mesh.control, call);
    }

    /// By rank: who ended, or left.
    #[cfg(feature = "gpu")]
    pub(crate) fn gone(&self) -> Vec<bool> {
        self.watch.gone()
    }

    /// What `peer` last said it was waiting in.
    #[cfg(feature = "gpu")]
    pub(crate) fn last_word(&self, peer: Rank) -> Option<Call> {
        self.watch.last_word(peer)
    }

    /// Ends this communicator because of an error seen elsewhere; the first one stays.
    #[cfg(feature = "gpu")]
    pub(crate) fn end_with(&mut self, error: Error, call: Option<Call>) -> Result<()> {
        self.sound()?;
        self.fail(error, call)
    }

    /// Tells the others that this rank waits in `call` of another communicator.
    pub(crate) fn cry_elsewhere(&mut self, call: Call) {
        self.watch.cry_elsewhere(&mut *self.mesh.control, call);
        // An abort that came meanwhile found the engine in use, and told nobody.
        let _ = self.sound();
    }

    /// Tells the others of an abort that came while nothing waited, and which nobody heard.
    #[inline]
    pub(crate) fn hear_abort(&mut self) {
        if self.watch.is_abort_raised() {
            let _ = self.unsound();
        }
    }

    /// The error that ended this communicator, if one did.
    #[inline]
    fn sound(&mut self) -> Result<()> {
        if self.watch.is_abort_raised() || self.poison.is_some() { self.unsound() } else { Ok(()) }
    }

    #[cold]
    fn unsound(&mut self) -> Result<()> {
        if let Some(reason) = self.watch.abort_raised() {
            self.abort(&reason);
        }
        self.poison.clone().map_or(Ok(()), Err)
    }

    /// The operation that was counted last begins.
    #[inline]
    fn begin(&mut self, call: &Call) {
        let number = self.traffic.operations;
        self.recorder.begin(number, call);
        if let Some(trace) = &mut self.trace {
            trace.begin(number, call);
        }
    }

    /// Names the place of an error, spreads it and keeps it.
    #[inline]
    fn end(&mut self, ended: Result<()>, call: Call) -> Result<()> {
        match ended {
            Ok(()) => {
                self.recorder.end(self.traffic.operations);
                if let Some(trace) = &mut self.trace {
                    trace.end(&self.recorder, None);
                }
                Ok(())
            }
            Err(error) => self.fail(error, Some(call)),
        }
    }

    #[cold]
    fn fail(&mut self, error: Error, call: Option<Call>) -> Result<()> {
        let error = self.watch.explain(&mut *self.mesh.control, error);
        let error = error.at(self.mesh.rank, &self.config.host, call);
        if let Some(trace) = &mut self.trace {
            trace.end(&self.recorder, Some(&error));
        }
        self.close(error.clone());
        self.dump();
        Err(error)
    }

    /// From now on, every call returns `error`, which the others hear of and the record has.
    fn close(&mut self, error: Error) {
        self.watch.spread(&mut *self.mesh.control, &error);
        self.recorder.fail(error.to_string());
        self.poison = Some(error);
    }

    /// Leaves the flight record where the configuration says: once for each failure, as operations may follow elsewhere that
    /// are none of its story.
    fn dump(&self) {
        let Some(folder) = &self.config.dump else { return };
        match self.recorder.flight(0).dump(folder) {
            Ok(file) => tracing::info!(file = %file.display(), "wrote the flight record"),
            Err(error) => tracing::warn!(folder = %folder.display(), %error, "no flight record is written"),
        }
    }

    /// Bytes of one channel's half of the window.
    fn bank_bytes(&self) -> usize {
        let window = self.mesh.window.as_ref().map_or(0, Window::bytes);
        window / (2 * self.channels.len()) / plan::SLICE_UNIT_BYTES * plan::SLICE_UNIT_BYTES
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A child that was forked has no farewell to say: its parent is still there.
        if self.process != fork::process() {
            return;
        }
        if std::thread::panicking() {
            self.abort("its thread panicked");
        }
        // A shrunk one is over for all of them.
        let error = self.poison.as_ref().filter(|_| !self.shrunk);
        self.watch.farewell(&mut *self.mesh.control, error);
    }
}

/// Reading the clock is nothing beside so many bytes.
const TIMED_FROM_BYTES: usize = 128 << 10;

/// Lanes that each channel has: a program may use two.
pub(crate) const LANES_PER_CHANNEL: usize = 2;

/// Lanes of a mesh for `channels` channels: two for each, and one for sends and receives.
pub(crate) const fn lanes_for(channels: usize) -> usize {
    channels * LANES_PER_CHANNEL + 1
}

fn channels_of(lanes: usize) -> usize {
    (lanes - 1) / LANES_PER_CHANNEL
}

fn opened(folder: &Path, owner: &Owner) -> Option<Box<Trace>> {
    let trace = Trace::open(folder, owner).map(Box::new);
    trace.inspect_err(|error| tracing::warn!(folder = %folder.display(), %error, "no trace is written")).ok()
}
