//! The public face: a group of ranks that do things together.

mod collectives;
mod grow;
mod op_queue;
mod point_to_point;
mod scope;
mod shrink;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod split;
mod symmetric;
mod validate;
mod work;

pub use crate::communicator::point_to_point::Group;
pub use crate::communicator::symmetric::SymmetricBuffer;
#[cfg(feature = "gpu")]
pub(crate) use crate::communicator::validate::ArgCheck;
pub use crate::communicator::work::Work;
#[cfg(feature = "gpu")]
pub(crate) use collectives::{digest_words, displacements};
pub use scope::{Scope, ScopedWork};

use crate::bootstrap;
use crate::bootstrap::UniqueId;
use crate::communicator::op_queue::{Ticket, TicketLock};
use crate::communicator::work::Worker;
use crate::config::Config;
use crate::engine::registry::{CommRegistry, RegisteredComm};
use crate::engine::{AbortFlag, Engine, MemoryStats, Owner, Recorder, TrafficStats};
use crate::error::{Error, ErrorKind, Result};
use crate::flight::FlightRecord;
use crate::op_desc::OpDesc;
use crate::schedule::{Algorithm, Collective, Rank};
use crate::status::{self, FlightRecordSource};
use crate::sync::{Instant, Mutex, OnceLock, thread};
use split::Origin;
use std::sync::{Arc, TryLockError, Weak};
use std::time::Duration;
use unisono_transports::{Fabric, ListenerGuard, Reconnect, sys::fork_guard};

/// A group of ranks that carry out collective operations together.
///
/// Every rank holds one of its own and calls the same operations in the same
/// order. Calls block until this rank's part is done and run on the caller's
/// thread; see [`Communicator::spawn`] and [`Communicator::scope`] for
/// operations that run meanwhile. A communicator may be shared between
/// threads: operations then run in the order in which they were asked for.
///
/// The first error but misuse poisons a communicator: every later call returns
/// that error, and [`Communicator::shrink`] makes another one of the ranks that are
/// left. Dropping it tells the others goodbye, and is the end of it:
///
/// ```compile_fail,E0382
/// # let comm = unisono::Communicator::local(1).unwrap().remove(0);
/// drop(comm);
/// comm.barrier();
/// ```
///
/// A process that was forked has no part in its parent's communicators: there, every call is an error that says so.
#[derive(Clone)]
pub struct Communicator {
    shared: Arc<Shared>,
    /// Whether this one is in the hands of an operation that already has its turn.
    with_ticket: bool,
}

struct Shared {
    rank: Rank,
    ranks: usize,
    transport: &'static str,
    host: String,
    engine: Mutex<Engine>,
    op_queue: TicketLock,
    abort: Arc<AbortFlag>,
    recorder: Arc<Recorder>,
    worker: OnceLock<Worker>,
    origin: Origin,
    epoch: u64,
    config: Config,
    registry: Arc<CommRegistry>,
    /// This rank's doors in what this came from, while ranks may live that were left behind there.
    listener_guards: Vec<ListenerGuard>,
    /// The process that it was made in.
    process: u64,
}

impl RegisteredComm for Shared {
    fn notify_blocked(&self, call: OpDesc) {
        // Whoever uses it says more than that.
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
    /// Ranks as threads of this process: the communicators of all of them, by rank.
    ///
    /// # Errors
    /// If the memory for their links cannot be had.
    pub fn local(ranks: usize) -> Result<Vec<Self>> {
        Self::local_with(ranks, &Config::from_env()?)
    }

    /// As [`Communicator::local`], with settings.
    ///
    /// # Errors
    /// If there is no rank, or the memory for their links cannot be had.
    pub fn local_with(ranks: usize, config: &Config) -> Result<Vec<Self>> {
        if ranks == 0 {
            return Err(Error::invalid_usage("a communicator needs at least one rank"));
        }
        let meshes = unisono_transports::threads::fabrics(ranks, config.geometry())?;
        let exchange = Arc::default();
        let name = split::next_group_id();
        let over = |mesh| Self::new(mesh, config, Origin::Threads(Arc::clone(&exchange), name));
        Ok(meshes.into_iter().map(over).collect())
    }

    /// Meets the other ranks as the launcher's environment says: `unisono run`, torchrun, or by hand
    /// `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` and `UNISONO_SECRET`.
    ///
    /// # Errors
    /// Names the variable that is missing or wrong; see also [`Communicator::join`].
    pub fn from_env() -> Result<Self> {
        Self::from_env_with(&Config::from_env()?)
    }

    /// As [`Communicator::from_env`], with settings.
    ///
    /// # Errors
    /// As [`Communicator::from_env`].
    pub fn from_env_with(config: &Config) -> Result<Self> {
        let identity = bootstrap::RankInfo::from_env()?;
        Self::bootstrap(identity, config)
    }

    /// Meets the other `ranks - 1` ranks at the address in `id`, which rank 0 holds.
    ///
    /// # Errors
    /// On every rank the same story: who is missing, twice there, or of another world, version or secret.
    pub fn join(id: &UniqueId, rank: Rank, ranks: usize, config: &Config) -> Result<Self> {
        Self::bootstrap(bootstrap::RankInfo { rank, ranks, id: id.clone() }, config)
    }

    fn bootstrap(identity: bootstrap::RankInfo, config: &Config) -> Result<Self> {
        let mesh = bootstrap::join(&identity, config)?;
        Ok(Self::new(mesh, config, Origin::Bootstrap(identity.id)))
    }

    /// A communicator over a mesh made otherwise, such as a simulated network. It cannot be split or shrunk.
    ///
    /// `config` must be the same on all ranks: they have not met, so nothing compares what decides on algorithms and on
    /// where data lies in shared memory.
    pub fn from_fabric(mesh: Fabric, config: &Config) -> Self {
        Self::new(mesh, config, Origin::Custom(None, 0))
    }

    /// As [`Communicator::from_fabric`], with the place where this rank meets others anew: it can be split and shrunk.
    pub fn from_fabric_with(mesh: Fabric, venue: Arc<dyn Reconnect>, config: &Config) -> Self {
        Self::new(mesh, config, Origin::Custom(Some(venue), 0))
    }

    fn new(mesh: Fabric, config: &Config, origin: Origin) -> Self {
        Self::with_registry(&Arc::default(), (0, Vec::new()), mesh, config, origin)
    }

    /// One that its rank has beside `siblings`.
    fn with_registry(
        siblings: &Arc<CommRegistry>,
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
        let watch = (Arc::clone(&abort), Arc::clone(&recorder), Arc::clone(siblings));
        let engine = Engine::new(mesh, config.clone(), watch);
        let shared = Shared {
            rank,
            ranks,
            transport,
            host: config.host.clone(),
            engine: Mutex::new(engine),
            op_queue: TicketLock::default(),
            abort,
            recorder,
            worker: OnceLock::new(),
            origin,
            epoch,
            config: config.clone(),
            registry: Arc::clone(siblings),
            listener_guards: doors,
            process: fork_guard::current_pid(),
        };
        let shared = Arc::new(shared);
        let sibling: Weak<Shared> = Arc::downgrade(&shared);
        siblings.register(sibling);
        if config.status_server {
            let recorded: Weak<Shared> = Arc::downgrade(&shared);
            status::register(recorded, shared.origin.secret());
        }
        Self { shared, with_ticket: false }
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> Rank {
        self.shared.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.shared.ranks
    }

    /// How ranks reach each other: `threads`, `shm`, `tcp`, `mixed` or `sim`.
    pub fn transport(&self) -> &'static str {
        self.shared.transport
    }

    /// The settings it was made with.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Uses `algorithm` for its collective from now on; every rank must do the same.
    ///
    /// # Errors
    /// If an earlier operation failed.
    pub fn set_algorithm(&self, algorithm: &'static Algorithm) -> Result<()> {
        self.with_engine(|engine| {
            engine.set_override(algorithm.collective, Some(algorithm));
            Ok(())
        })
    }

    /// Leaves the choice of algorithms for `collective` to the library again; every rank must do the same.
    ///
    /// # Errors
    /// If an earlier operation failed.
    pub fn clear_algorithm(&self, collective: Collective) -> Result<()> {
        self.with_engine(|engine| {
            engine.set_override(collective, None);
            Ok(())
        })
    }

    /// The algorithm that would carry out `collective` with shares of `bytes` bytes; floats of 8 and 16 bits may be served by
    /// another one, which rounds their sums once.
    ///
    /// # Errors
    /// If none can, or the one insisted on cannot.
    pub fn select_algorithm(&self, collective: Collective, bytes: usize) -> Result<&'static Algorithm> {
        self.with_engine(|engine| engine.select_algorithm(collective, 0, bytes, false))
    }

    /// The algorithm that carried out the last collective of this rank.
    ///
    /// # Errors
    /// If an earlier operation failed.
    pub fn last_algorithm(&self) -> Result<Option<&'static Algorithm>> {
        self.with_engine(|engine| Ok(engine.last_algorithm))
    }

    /// What this communicator keeps in memory at this rank. Waits for the operations asked for before.
    ///
    /// # Errors
    /// If an earlier operation panicked.
    pub fn memory_stats(&self) -> Result<MemoryStats> {
        self.with_engine(|engine| Ok(engine.memory_stats()))
    }

    /// What this rank has moved since this communicator was made. Waits for the operations asked for before.
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// comm.all_reduce(&mut vec![1.0f32; 1 << 20], Sum).unwrap();
    /// assert_eq!(comm.traffic_stats().unwrap().bytes, 4 << 20); // 2 (N−1)/N times the buffer
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    ///
    /// # Errors
    /// If an earlier operation panicked.
    pub fn traffic_stats(&self) -> Result<TrafficStats> {
        self.with_engine(|engine| Ok(engine.traffic))
    }

    /// The last 64 operations of this rank: what was called, and how far it is. From any
    /// thread, and at once, whatever is going on.
    ///
    /// ```
    /// # use unisono::{Communicator, OpState, Sum};
    /// # let comm = Communicator::local(1)?.remove(0);
    /// comm.all_reduce(&mut [1.0f32; 10], Sum)?;
    /// let last = comm.flight_record().operations[0];
    /// assert_eq!((last.op.name(), last.op.count, last.state), ("all_reduce", 10, OpState::Done));
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn flight_record(&self) -> FlightRecord {
        self.shared.flight_record()
    }

    /// Ends this communicator on all ranks, from any thread, whatever is going on.
    ///
    /// An operation in progress returns [`ErrorKind::Aborted`] within milliseconds. Calling it again
    /// changes nothing.
    pub fn abort(&self, reason: &str) {
        if self.is_forked() {
            return;
        }
        self.shared.abort.raise(reason);
        let begun = Instant::now();
        // What runs hears of it, while it waits or at its end; where nothing runs, or what runs has looked for the last time,
        // nobody else would tell the other ranks.
        loop {
            match self.shared.engine.try_lock() {
                Ok(mut engine) => return engine.abort(reason),
                Err(TryLockError::Poisoned(_)) => return,
                Err(TryLockError::WouldBlock) => {}
            }
            if self.shared.op_queue.is_held_by_this_thread() || begun.elapsed() > ABORT_LOCK_TIMEOUT {
                return;
            }
            thread::sleep(ABORT_LOCK_TIMEOUT / 1000);
        }
    }

    /// Runs `operation` on the engine when it is this call's turn.
    pub(crate) fn with_engine<R>(&self, operation: impl FnOnce(&mut Engine) -> Result<R>) -> Result<R> {
        if self.is_forked() {
            return Err(self.fork_error());
        }
        let Shared { op_queue: turnstile, engine, .. } = &*self.shared;
        // Where nobody is before this operation, the lock is enough: who takes a ticket from now on waits for it.
        let alone = !self.with_ticket && turnstile.is_idle();
        let (_turn, engine) = match alone.then(|| engine.try_lock()) {
            Some(Ok(engine)) => (None, Ok(engine)),
            _ if !self.with_ticket && turnstile.is_held_by_this_thread() => {
                return Err(self.attach_rank(Error::invalid_usage(SELF_WAIT_MESSAGE)));
            }
            _ => {
                ((!self.with_ticket).then(|| turnstile.wait_for_turn(turnstile.take_ticket())), engine.lock())
            }
        };
        match engine {
            Ok(mut engine) => {
                let ended = operation(&mut engine).map_err(|error| self.attach_rank(error));
                engine.poll_abort();
                ended
            }
            Err(_) => {
                Err(self.attach_rank(Error::new(ErrorKind::Bug("an earlier operation panicked".to_owned()))))
            }
        }
    }

    /// Whether this process was forked from the one whose rank this is.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.shared.process != fork_guard::current_pid()
    }

    #[cold]
    fn fork_error(&self) -> Error {
        let (own, parent) = (std::process::id(), self.shared.process);
        let text = format!(
            "process {own} was forked from process {parent}, whose communicator this is; let the child make its own, or start \
             it with exec"
        );
        self.attach_rank(Error::invalid_usage(text))
    }

    /// Says in an error which rank saw it.
    pub(crate) fn attach_rank(&self, error: Error) -> Error {
        error.with_rank(self.rank(), &self.shared.host, None)
    }

    /// Waits for the ticket's turn and gives `task` a communicator that has it.
    fn in_turn<R>(&self, ticket: Ticket, task: impl FnOnce(&Communicator) -> R) -> R {
        let _turn = self.shared.op_queue.wait_for_turn(ticket);
        task(&Communicator { shared: Arc::clone(&self.shared), with_ticket: true })
    }
}

/// Longer than it takes to unlock what has just looked whether it is aborted.
const ABORT_LOCK_TIMEOUT: Duration = Duration::from_millis(100);
const SELF_WAIT_MESSAGE: &str = "an operation, or what was to happen after it, waits for one that comes later: neither would end. \
     Inside, use the communicator that it is given, or start what is to come";

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {}, {})", self.rank(), self.size(), self.transport())
    }
}
