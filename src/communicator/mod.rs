//! The public face: a group of ranks that do things together.

mod asked;
mod collectives;
mod group;
mod grow;
mod lent;
#[cfg(all(test, shuttle))]
mod models;
mod pending;
mod scope;
mod shrink;
mod siblings;
mod split;
mod turnstile;

#[cfg(feature = "gpu")]
pub(crate) use asked::Asked;
#[cfg(feature = "gpu")]
pub(crate) use collectives::{digest, places};
pub use group::Group;
pub use lent::Lent;
pub use pending::Pending;
pub use scope::{Scope, Scoped};
pub(crate) use siblings::Siblings;

use crate::call::Call;
use crate::config::Config;
use crate::engine::{AbortFlag, Engine, MemoryUse, Owner, Recorder, Traffic};
use crate::error::{Error, ErrorKind, Result};
use crate::flight::Flight;
use crate::rendezvous::{self, UniqueId};
use crate::schedule::{Algorithm, Collective, Rank};
use crate::status::{self, Reporter};
use crate::sync::{Instant, Mutex, OnceLock, thread};
use pending::Worker;
use siblings::Sibling;
use split::Origin;
use std::sync::{Arc, TryLockError, Weak};
use std::time::Duration;
use turnstile::{Ticket, Turnstile};
use unisono_transports::{Door, Mesh, Venue, fork};

/// A group of ranks that carry out collective operations together.
///
/// Every rank holds one of its own and calls the same operations in the same
/// order. Calls block until this rank's part is done and run on the caller's
/// thread; see [`Communicator::start`] and [`Communicator::scope`] for
/// operations that run meanwhile. A communicator may be shared between
/// threads: operations then run in the order in which they were asked for.
///
/// The first error but misuse poisons a communicator: every later call returns
/// that error, and [`Communicator::shrink`] makes another one of the ranks that are
/// left. Dropping it tells the others goodbye, and is the end of it:
///
/// ```compile_fail,E0382
/// # let comm = unisono::Communicator::threads(1).unwrap().remove(0);
/// drop(comm);
/// comm.barrier();
/// ```
///
/// A process that was forked has no part in its parent's communicators: there, every call is an error that says so.
#[derive(Clone)]
pub struct Communicator {
    shared: Arc<Shared>,
    /// Whether this one is in the hands of an operation that already has its turn.
    in_turn: bool,
}

struct Shared {
    rank: Rank,
    ranks: usize,
    transport: &'static str,
    host: String,
    engine: Mutex<Engine>,
    turnstile: Turnstile,
    abort: Arc<AbortFlag>,
    recorder: Arc<Recorder>,
    worker: OnceLock<Worker>,
    origin: Origin,
    epoch: u64,
    config: Config,
    siblings: Arc<Siblings>,
    /// This rank's doors in what this came from, while ranks may live that were left behind there.
    doors: Vec<Door>,
    /// The process that it was made in.
    process: u64,
}

impl Sibling for Shared {
    fn waits_elsewhere(&self, call: Call) {
        // Whoever uses it says more than that.
        if let Ok(mut engine) = self.engine.try_lock() {
            engine.cry_elsewhere(call);
        }
    }
}

impl Reporter for Shared {
    fn flight(&self) -> Flight {
        self.recorder.flight(self.turnstile.waiting())
    }
}

impl Communicator {
    /// Ranks as threads of this process: the communicators of all of them, by rank.
    ///
    /// # Errors
    /// If the memory for their links cannot be had.
    pub fn threads(ranks: usize) -> Result<Vec<Self>> {
        Self::threads_with(ranks, &Config::from_env()?)
    }

    /// As [`Communicator::threads`], with settings.
    ///
    /// # Errors
    /// If there is no rank, or the memory for their links cannot be had.
    pub fn threads_with(ranks: usize, config: &Config) -> Result<Vec<Self>> {
        if ranks == 0 {
            return Err(Error::misuse("a communicator needs at least one rank"));
        }
        let meshes = unisono_transports::threads::mesh(ranks, config.geometry())?;
        let nursery = Arc::default();
        let name = split::next_group();
        let over = |mesh| Self::new(mesh, config, Origin::Threads(Arc::clone(&nursery), name));
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
        let identity = rendezvous::Identity::from_env()?;
        Self::meet(identity, config)
    }

    /// Meets the other `ranks - 1` ranks at the address in `id`, which rank 0 holds.
    ///
    /// # Errors
    /// On every rank the same story: who is missing, twice there, or of another world, version or secret.
    pub fn join(id: &UniqueId, rank: Rank, ranks: usize, config: &Config) -> Result<Self> {
        Self::meet(rendezvous::Identity { rank, ranks, id: id.clone() }, config)
    }

    fn meet(identity: rendezvous::Identity, config: &Config) -> Result<Self> {
        let mesh = rendezvous::join(&identity, config)?;
        Ok(Self::new(mesh, config, Origin::Rendezvous(identity.id)))
    }

    /// A communicator over a mesh made otherwise, such as a simulated network. It cannot be split or shrunk.
    ///
    /// `config` must be the same on all ranks: they have not met, so nothing compares what decides on algorithms and on
    /// where data lies in shared memory.
    pub fn over(mesh: Mesh, config: &Config) -> Self {
        Self::new(mesh, config, Origin::Foreign(None, 0))
    }

    /// As [`Communicator::over`], with the place where this rank meets others anew: it can be split and shrunk.
    pub fn over_with(mesh: Mesh, venue: Arc<dyn Venue>, config: &Config) -> Self {
        Self::new(mesh, config, Origin::Foreign(Some(venue), 0))
    }

    fn new(mesh: Mesh, config: &Config, origin: Origin) -> Self {
        Self::related(&Arc::default(), (0, Vec::new()), mesh, config, origin)
    }

    /// One that its rank has beside `siblings`.
    fn related(
        siblings: &Arc<Siblings>,
        (epoch, doors): (u64, Vec<Door>),
        mesh: Mesh,
        config: &Config,
        origin: Origin,
    ) -> Self {
        let abort = Arc::new(AbortFlag::default());
        let (rank, ranks, transport) = (mesh.rank, mesh.ranks, mesh.transport);
        let owner =
            Owner { communicator: origin.name(), epoch, rank, ranks, host: config.host.clone(), transport };
        let recorder = Arc::new(Recorder::new(owner));
        let watch = (Arc::clone(&abort), Arc::clone(&recorder), Arc::clone(siblings));
        let engine = Engine::new(mesh, config.clone(), watch);
        let shared = Shared {
            rank,
            ranks,
            transport,
            host: config.host.clone(),
            engine: Mutex::new(engine),
            turnstile: Turnstile::default(),
            abort,
            recorder,
            worker: OnceLock::new(),
            origin,
            epoch,
            config: config.clone(),
            siblings: Arc::clone(siblings),
            doors,
            process: fork::process(),
        };
        let shared = Arc::new(shared);
        let sibling: Weak<Shared> = Arc::downgrade(&shared);
        siblings.add(sibling);
        if config.status {
            let recorded: Weak<Shared> = Arc::downgrade(&shared);
            status::tell_of(recorded, shared.origin.secret());
        }
        Self { shared, in_turn: false }
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> Rank {
        self.shared.rank
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
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
    pub fn use_algorithm(&self, algorithm: &'static Algorithm) -> Result<()> {
        self.with(|engine| {
            engine.choose(algorithm.collective, Some(algorithm));
            Ok(())
        })
    }

    /// Leaves the choice of algorithms for `collective` to the library again; every rank must do the same.
    ///
    /// # Errors
    /// If an earlier operation failed.
    pub fn use_any_algorithm(&self, collective: Collective) -> Result<()> {
        self.with(|engine| {
            engine.choose(collective, None);
            Ok(())
        })
    }

    /// The algorithm that would carry out `collective` with shares of `bytes` bytes; floats of 8 and 16 bits may be served by
    /// another one, which rounds their sums once.
    ///
    /// # Errors
    /// If none can, or the one insisted on cannot.
    pub fn algorithm_for(&self, collective: Collective, bytes: usize) -> Result<&'static Algorithm> {
        self.with(|engine| engine.algorithm(collective, 0, bytes, false))
    }

    /// The algorithm that carried out the last collective of this rank.
    ///
    /// # Errors
    /// If an earlier operation failed.
    pub fn last_algorithm(&self) -> Result<Option<&'static Algorithm>> {
        self.with(|engine| Ok(engine.last))
    }

    /// What this communicator keeps in memory at this rank. Waits for the operations asked for before.
    ///
    /// # Errors
    /// If an earlier operation panicked.
    pub fn memory(&self) -> Result<MemoryUse> {
        self.with(|engine| Ok(engine.memory()))
    }

    /// What this rank has moved since this communicator was made. Waits for the operations asked for before.
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # let ranks = Communicator::threads(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// comm.all_reduce(&mut vec![1.0f32; 1 << 20], Sum).unwrap();
    /// assert_eq!(comm.traffic().unwrap().bytes, 4 << 20); // 2 (N−1)/N times the buffer
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    ///
    /// # Errors
    /// If an earlier operation panicked.
    pub fn traffic(&self) -> Result<Traffic> {
        self.with(|engine| Ok(engine.traffic))
    }

    /// The last 64 operations of this rank: what was called, and how far it is. From any
    /// thread, and at once, whatever is going on.
    ///
    /// ```
    /// # use unisono::{Communicator, Progress, Sum};
    /// # let comm = Communicator::threads(1)?.remove(0);
    /// comm.all_reduce(&mut [1.0f32; 10], Sum)?;
    /// let last = comm.flight().operations[0];
    /// assert_eq!((last.call.name(), last.call.count, last.progress), ("all_reduce", 10, Progress::Done));
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn flight(&self) -> Flight {
        self.shared.flight()
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
            if self.shared.turnstile.is_held_here() || begun.elapsed() > ENDING_TIME {
                return;
            }
            thread::sleep(ENDING_TIME / 1000);
        }
    }

    /// Runs `operation` on the engine when it is this call's turn.
    pub(crate) fn with<R>(&self, operation: impl FnOnce(&mut Engine) -> Result<R>) -> Result<R> {
        if self.is_forked() {
            return Err(self.forked());
        }
        let Shared { turnstile, engine, .. } = &*self.shared;
        // Where nobody is before this operation, the lock is enough: who takes a ticket from now on waits for it.
        let alone = !self.in_turn && turnstile.is_idle();
        let (_turn, engine) = match alone.then(|| engine.try_lock()) {
            Some(Ok(engine)) => (None, Ok(engine)),
            _ if !self.in_turn && turnstile.is_held_here() => {
                return Err(self.place(Error::misuse(WAITS_FOR_ITSELF)));
            }
            _ => ((!self.in_turn).then(|| turnstile.enter(turnstile.ticket())), engine.lock()),
        };
        match engine {
            Ok(mut engine) => {
                let ended = operation(&mut engine).map_err(|error| self.place(error));
                engine.hear_abort();
                ended
            }
            Err(_) => Err(self.place(Error::new(ErrorKind::Bug("an earlier operation panicked".to_owned())))),
        }
    }

    /// Whether this process was forked from the one whose rank this is.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.shared.process != fork::process()
    }

    #[cold]
    fn forked(&self) -> Error {
        let (own, parent) = (std::process::id(), self.shared.process);
        let text = format!(
            "process {own} was forked from process {parent}, whose communicator this is; let the child make its own, or start \
             it with exec"
        );
        self.place(Error::misuse(text))
    }

    /// Says in an error which rank saw it.
    pub(crate) fn place(&self, error: Error) -> Error {
        error.at(self.rank(), &self.shared.host, None)
    }

    /// Waits for the ticket's turn and gives `task` a communicator that has it.
    fn in_turn<R>(&self, ticket: Ticket, task: impl FnOnce(&Communicator) -> R) -> R {
        let _turn = self.shared.turnstile.enter(ticket);
        task(&Communicator { shared: Arc::clone(&self.shared), in_turn: true })
    }
}

/// Longer than it takes to unlock what has just looked whether it is aborted.
const ENDING_TIME: Duration = Duration::from_millis(100);
const WAITS_FOR_ITSELF: &str = "an operation, or what was to happen after it, waits for one that comes later: neither would end. \
     Inside, use the communicator that it is given, or start what is to come";

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {}, {})", self.rank(), self.ranks(), self.transport())
    }
}
