//! Communicators: groups of ranks that carry out operations together.
//!
//! Every collective has a form with separate buffers and a form in one buffer, named by one rule:
//!
//! - [`all_reduce`](Communicator::all_reduce), [`broadcast`](Communicator::broadcast) and
//!   [`reduce`](Communicator::reduce), whose input and output are equally long, work in place. The
//!   form with separate buffers ends in `_into`.
//! - The other collectives, whose input and output differ in length or meaning, take separate
//!   buffers. The form in one buffer ends in `_in_place`.
//! - A form that runs in the background on owned buffers ends in `_async` and returns a [`Work`]
//!   handle. [`Scope`] has forms on borrowed buffers.

mod api;
mod calls;
mod lifecycle;
#[cfg(all(test, not(shuttle)))]
mod reentrancy_tests;
#[cfg(all(test, shuttle))]
mod shuttle_tests;

pub use crate::communicator::api::algorithm::register_algorithm;
pub use crate::communicator::api::lists::ListOperation;
pub use crate::communicator::api::messages::{RecvBuffer, SendBuffer};
pub use crate::communicator::api::point_to_point::Group;
pub use crate::communicator::api::symmetric::SymmetricBuffer;
pub use crate::communicator::calls::call_options::CallOptions;
pub use crate::communicator::calls::foreign;
pub use crate::communicator::calls::operation::{OpBuffers, Operation, UnevenOperation};
#[cfg(feature = "gpu")]
pub(crate) use crate::communicator::calls::validate::ArgCheck;
pub use crate::communicator::calls::work::Work;
pub use crate::communicator::lifecycle::builder::{ChildBuilder, CommunicatorBuilder};
pub use crate::communicator::lifecycle::local_ranks::local;
#[cfg(all(feature = "serde", any(test, feature = "fuzzing")))]
pub(crate) use api::objects::fuzz as fuzz_objects;
pub use api::scope::{Scope, ScopedWork};
#[cfg(feature = "gpu")]
pub(crate) use calls::counts::{digest_words, displacements};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use lifecycle::split::fuzz as fuzz_ticket;

use crate::bootstrap::UniqueId;
use crate::communicator::calls::op_queue::{ThreadMark, Ticket, TicketLock};
use crate::communicator::calls::task_queue::TaskQueue;
use crate::communicator::lifecycle::leaving::Ownership;
use crate::config::Config;
use crate::engine::messages::SubmissionQueue;
use crate::engine::registry::{CommRegistry, RegisteredComm};
use crate::engine::{AbortFlag, Engine, Job, Owner, Recorder};
use crate::error::{Error, ErrorKind, Result};
use crate::flight::FlightRecord;
use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use crate::status::{self, FlightRecordSource};
use crate::sync::{AtomicBool, Instant, Mutex, MutexGuard, thread};
use lifecycle::split::Origin;
use std::sync::{Arc, TryLockError, Weak};
use std::task::Waker;
use std::time::Duration;
use unisono_transports::{Fabric, ListenerGuard, sys::fork_guard};

/// A group of ranks that carry out collective operations together.
///
/// Every rank holds its own communicator and calls the same operations in the same order. Calls run
/// on the caller's thread and return when this rank's part is done. Operations run in the
/// background with [`Communicator::spawn`], [`Communicator::scope`] and the `_async` forms. Threads
/// can share a communicator. Its operations then run in the order of the calls.
///
/// A clone is another handle of the same rank, for threads and tasks that own their data. It costs
/// only two reference counts. [`Communicator::duplicate`] makes a new communicator instead.
///
/// An error that [is poisoning](Error::is_poisoning) ends the communicator: every later call
/// returns it, and [`Communicator::shrink`] makes a new communicator of the ranks that are left. A
/// call from within a call on the same communicator and thread is refused.
///
/// If the last handle of a rank is dropped, the other ranks are told that this rank has left. This
/// happens at once, or after the last operation and message that the rank has started. A process
/// that ends with exit code 0 leaves in the same way. Messages and operations for which nobody has
/// waited get two seconds to complete, and the process warns of those that are lost. If the process
/// ends in another way, the other ranks are told that the rank has failed.
///
/// If a related communicator of the rank has failed before, the other ranks are told this, too.
/// Communicators are related if one was made of the other, or both of the same one. After a rank
/// has made a further one, for example by [`Communicator::shrink`], it does not tell the failure.
///
/// ```compile_fail,E0382
/// # let comm = unisono::Communicator::local(1).unwrap().remove(0);
/// drop(comm);
/// comm.barrier();
/// ```
///
/// A forked child process cannot use its parent's communicators: every call in the child returns an
/// error.
#[derive(Clone)]
pub struct Communicator {
    shared: Arc<Shared>,
    /// Ends the communicator when the last of its handles is dropped.
    _ownership: Arc<Ownership>,
    /// True for the handle that is given to an operation when its turn has come.
    with_ticket: bool,
}

struct Shared {
    rank: Rank,
    ranks: usize,
    transport: &'static str,
    host: String,
    engine: Mutex<Engine>,
    engine_user: ThreadMark,
    op_queue: TicketLock,
    abort: Arc<AbortFlag>,
    recorder: Arc<Recorder>,
    tasks: Arc<TaskQueue>,
    origin: Origin,
    epoch: u64,
    config: Config,
    registry: Arc<CommRegistry>,
    /// This rank's listeners of the parent communicators. They stay open while excluded ranks may
    /// still connect to them.
    listener_guards: Vec<ListenerGuard>,
    /// The process that made the communicator.
    process: u64,
    /// Messages that threads have submitted while the engine was busy.
    submissions: Arc<SubmissionQueue>,
    /// Wakes the thread that uses the engine.
    engine_waker: Waker,
    /// True if no handle is left.
    ownerless: AtomicBool,
    /// A reference to this communicator itself, which keeps it alive while it has messages to send
    /// and no handle is left.
    lingering: Mutex<Option<Arc<Shared>>>,
    /// False for a communicator of GPUs. A process that ends regularly then does not tell the other
    /// ranks that it leaves.
    leaves_at_exit: AtomicBool,
    /// True if a warning of a lost message was given.
    loss_told: AtomicBool,
    /// True while the background thread moves messages of this communicator.
    attended: AtomicBool,
    /// True if time is simulated; see [`unisono_transports::WaitStrategy::is_simulated`].
    is_simulated: bool,
}

impl Shared {
    /// Returns true if this thread runs an operation of the communicator, in which waiting for
    /// another operation would never end.
    fn is_used_by_this_thread(&self) -> bool {
        self.op_queue.is_held_by_this_thread() || self.engine_user.is_this_thread()
    }

    /// Returns the field in which the communicator keeps itself alive while it has messages to
    /// send.
    fn lingering(&self) -> MutexGuard<'_, Option<Arc<Shared>>> {
        self.lingering.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl RegisteredComm for Shared {
    fn notify_blocked(&self, call: OpDesc) {
        // If an operation holds the lock, it tells the other ranks more than this itself.
        if let Ok(mut engine) = self.engine.try_lock() {
            engine.announce_wait_elsewhere(call);
        }
    }
}

impl FlightRecordSource for Shared {
    fn flight_record(&self) -> FlightRecord {
        self.recorder.snapshot(self.op_queue.waiting())
    }
}

impl Communicator {
    /// Makes the communicators of `ranks` threads of this process, by rank.
    ///
    /// [`local`](crate::local) starts the threads as well. [`Communicator::builder`] does the same
    /// with settings of the caller.
    ///
    /// # Errors
    /// If `ranks` is zero, the environment has a wrong setting, or memory for the links runs out.
    ///
    /// ```
    /// use unisono::{Communicator, Sum};
    ///
    /// let ranks = Communicator::local(2)?;
    /// std::thread::scope(|scope| {
    ///     for comm in ranks {
    ///         scope.spawn(move || {
    ///             let mut values = [comm.rank() as u32 + 1];
    ///             comm.all_reduce(&mut values, Sum).unwrap();
    ///             assert_eq!(values, [3]);
    ///         });
    ///     }
    /// });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn local(ranks: usize) -> Result<Vec<Self>> {
        Self::builder().local(ranks)
    }

    /// Connects to the other ranks with the settings that the launcher has put into the
    /// environment.
    ///
    /// `unisono run`, torchrun or the user sets `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`
    /// and `UNISONO_SECRET`.
    ///
    /// # Errors
    /// The error names the variable that is missing or wrong. See also [`Communicator::join`].
    ///
    /// ```no_run
    /// let comm = unisono::Communicator::from_env()?;
    /// println!("rank {} of {}", comm.rank(), comm.size());
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn from_env() -> Result<Self> {
        Self::builder().from_env()
    }

    /// Connects to the other ranks as [`Communicator::from_env`] does. If no launcher has started
    /// the process, returns the communicator of a single rank.
    ///
    /// # Errors
    /// As [`Communicator::from_env`], also if the environment has only some of the variables of a
    /// rank.
    ///
    /// ```no_run
    /// let comm = unisono::Communicator::from_env_or_alone()?;
    /// println!("rank {} of {}", comm.rank(), comm.size());
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn from_env_or_alone() -> Result<Self> {
        Self::builder().from_env_or_alone()
    }

    /// Connects rank `rank` to the other `ranks - 1` ranks. Rank 0 listens at the address in `id`.
    ///
    /// # Errors
    /// The error has the same cause on every rank. It names the ranks that are missing, that are
    /// present twice, or that have another group size, version or secret.
    ///
    /// ```
    /// use unisono::{Communicator, Config, UniqueId};
    ///
    /// let id = UniqueId::new(std::net::Ipv4Addr::LOCALHOST.into())?;
    /// let config = Config::default();
    /// let comm = Communicator::join(&id, 0, 1, &config)?;
    /// assert_eq!((comm.rank(), comm.size()), (0, 1));
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn join(id: &UniqueId, rank: Rank, ranks: usize, config: &Config) -> Result<Self> {
        Self::builder().config(config).join(id, rank, ranks)
    }

    fn new(mesh: Fabric, config: &Config, origin: Origin) -> Self {
        Self::with_registry(&Arc::default(), (0, Vec::new()), mesh, config, origin)
    }

    /// Makes a communicator and adds it to the registry of related communicators.
    fn with_registry(
        registry: &Arc<CommRegistry>,
        (epoch, doors): (u64, Vec<ListenerGuard>),
        mesh: Fabric,
        config: &Config,
        origin: Origin,
    ) -> Self {
        let abort = Arc::new(AbortFlag::default());
        let (rank, ranks, transport) = (mesh.rank, mesh.ranks, mesh.transport);
        let owner = Owner {
            communicator: origin.group_id(),
            epoch,
            rank,
            ranks,
            host: config.host.clone(),
            transport,
        };
        let recorder = Arc::new(Recorder::new(owner));
        let watch = (Arc::clone(&abort), Arc::clone(&recorder), Arc::clone(registry));
        let engine = Engine::new(mesh, config.clone(), watch);
        let (submissions, is_simulated) = (Arc::clone(engine.submissions()), engine.is_simulated());
        let engine_waker = engine.waker();
        let shared = Shared {
            rank,
            ranks,
            transport,
            host: config.host.clone(),
            engine: Mutex::new(engine),
            engine_user: ThreadMark::default(),
            op_queue: TicketLock::default(),
            abort,
            recorder,
            tasks: Arc::default(),
            origin,
            epoch,
            config: config.clone(),
            registry: Arc::clone(registry),
            listener_guards: doors,
            process: fork_guard::current_pid(),
            submissions,
            engine_waker,
            ownerless: AtomicBool::new(false),
            lingering: Mutex::default(),
            leaves_at_exit: AtomicBool::new(true),
            loss_told: AtomicBool::new(false),
            attended: AtomicBool::new(false),
            is_simulated,
        };
        let shared = Arc::new(shared);
        let related: Weak<Shared> = Arc::downgrade(&shared);
        registry.register(related);
        if config.status_server {
            let recorded: Weak<Shared> = Arc::downgrade(&shared);
            status::register(recorded, shared.origin.secret());
        }
        let ownership = Arc::new(Ownership::new(&shared));
        Self { shared, _ownership: ownership, with_ticket: false }
    }

    /// Ends this communicator on all ranks. It can be called from any thread, and during any
    /// operation.
    ///
    /// An operation in progress returns [`ErrorKind::Aborted`] within milliseconds. Later calls do
    /// nothing.
    pub fn abort(&self, reason: &str) {
        if self.is_forked() {
            return;
        }
        self.shared.abort.raise(reason);
        self.shared.engine_waker.wake_by_ref();
        let begun = Instant::now();
        // A running operation notices the flag while it waits or at its end, and tells the other
        // ranks. If no operation runs, or if it has checked the flag for the last time, this thread
        // tells them.
        loop {
            match self.shared.engine.try_lock() {
                Ok(mut engine) => return engine.abort(reason),
                Err(TryLockError::Poisoned(_)) => return,
                Err(TryLockError::WouldBlock) => {}
            }
            if self.shared.is_used_by_this_thread() || begun.elapsed() > ABORT_LOCK_TIMEOUT {
                return;
            }
            thread::sleep(ABORT_LOCK_TIMEOUT / 1000);
        }
    }

    /// Runs one collective when it is this call's turn.
    #[inline]
    fn run(&self, mut job: Job<'_>) -> Result<()> {
        if let Some(op) = job.reduction.filter(|op| op.needs_check(job.dtype)) {
            job.reduction = Some(self.checked_op(op, job.kind, job.dtype)?);
        }
        self.with_engine(|engine| engine.collective(&mut job))
    }

    /// Runs `operation` on the engine when it is this call's turn.
    pub(crate) fn with_engine<R>(&self, operation: impl FnOnce(&mut Engine) -> Result<R>) -> Result<R> {
        if self.is_forked() {
            return Err(self.fork_error());
        }
        let Shared { op_queue, engine, engine_user, .. } = &*self.shared;
        // If the queue is empty, the lock is enough, because any ticket that is taken later waits
        // for the lock.
        let alone = !self.with_ticket && op_queue.is_idle();
        let (_turn, engine) = match alone.then(|| engine.try_lock()) {
            Some(Ok(engine)) => (None, Ok(engine)),
            _ if engine_user.is_this_thread() => return Err(self.usage_error(REENTRANT_MESSAGE)),
            _ if !self.with_ticket && op_queue.is_held_by_this_thread() => {
                return Err(self.usage_error(SELF_WAIT_MESSAGE));
            }
            _ => {
                let turn = (!self.with_ticket).then(|| op_queue.wait_for_turn(op_queue.take_ticket()));
                (turn, engine.lock())
            }
        };
        match engine {
            Ok(mut engine) => {
                let _mark = engine_user.set();
                let ended = operation(&mut engine).map_err(|error| self.attach_rank(error));
                // An abort may come after the operation has looked at the flag for the last time.
                // Then this thread tells the peers.
                engine.poll_abort();
                ended
            }
            Err(_) => {
                Err(self.attach_rank(Error::new(ErrorKind::Bug("an earlier operation panicked".to_owned()))))
            }
        }
    }

    #[cold]
    fn usage_error(&self, what: &str) -> Error {
        self.attach_rank(Error::invalid_usage(what))
    }

    /// Returns true in a process that was forked from the process of the communicator.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.shared.process != fork_guard::current_pid()
    }

    #[cold]
    fn fork_error(&self) -> Error {
        let (child, parent) = (std::process::id(), self.shared.process);
        let text = format!(
            "process {child} was forked from process {parent}, whose communicator this is; let the child make its own, or start \
             it with exec"
        );
        self.attach_rank(Error::invalid_usage(text))
    }

    /// Adds this rank to an error.
    pub(crate) fn attach_rank(&self, error: Error) -> Error {
        error.with_rank(self.rank(), &self.shared.host, None)
    }

    /// Waits for the ticket's turn and runs `task` with a handle that has the turn.
    fn in_turn<R>(&self, ticket: Ticket, task: impl FnOnce(&Communicator) -> R) -> R {
        let _turn = self.shared.op_queue.wait_for_turn(ticket);
        task(&self.with_turn())
    }

    /// Returns the handle for an operation whose turn it is.
    fn with_turn(&self) -> Communicator {
        Communicator { with_ticket: true, ..self.clone() }
    }

    /// Works as [`Communicator::in_turn`], for a thread that runs while this rank computes on other
    /// threads.
    fn in_background_turn<R>(&self, ticket: Ticket, task: impl FnOnce(&Communicator) -> R) -> R {
        self.in_turn(ticket, |comm| {
            let _background = BackgroundWait::begin(&self.shared);
            task(comm)
        })
    }

    /// Runs several operations together, so that no other call runs between them.
    fn in_one_turn<R>(&self, operations: impl FnOnce(&Communicator) -> Result<R>) -> Result<R> {
        let shared = &*self.shared;
        match () {
            () if self.is_forked() => Err(self.fork_error()),
            () if self.with_ticket => operations(self),
            () if shared.engine_user.is_this_thread() => Err(self.usage_error(REENTRANT_MESSAGE)),
            () if shared.op_queue.is_held_by_this_thread() => Err(self.usage_error(SELF_WAIT_MESSAGE)),
            () => self.in_turn(shared.op_queue.take_ticket(), operations),
        }
    }
}

/// Until it is dropped, lets operations wait in the way that suits a rank that computes at the same
/// time.
struct BackgroundWait<'s>(&'s Shared);

impl<'s> BackgroundWait<'s> {
    fn begin(shared: &'s Shared) -> Self {
        let wait = Self(shared);
        wait.set(true);
        wait
    }

    fn set(&self, background: bool) {
        // An engine whose lock is poisoned runs no operation.
        if let Ok(mut engine) = self.0.engine.lock() {
            engine.wait_in_background(background);
        }
    }
}

impl Drop for BackgroundWait<'_> {
    fn drop(&mut self) {
        self.set(false);
    }
}

/// A time that is longer than an operation holds the lock after its last check of the abort flag.
const ABORT_LOCK_TIMEOUT: Duration = Duration::from_millis(100);
const REENTRANT_MESSAGE: &str = "a call was made from within another call on this communicator and thread, for \
     example by a signal handler or a log subscriber, and neither could end. Make the inner call on another thread or \
     communicator, or after the outer one has returned";
const SELF_WAIT_MESSAGE: &str = "an operation, or what was to happen after it, waits for one that comes later: neither would end. \
     Inside, use the communicator that it is given, or start what is to come";

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {}, {})", self.rank(), self.size(), self.transport())
    }
}
