//! The public face: a group of ranks that do things together.

mod collectives;
mod group;
mod grow;
mod lent;
mod pending;
mod scope;
mod shrink;
mod split;
mod turnstile;

#[cfg(feature = "gpu")]
pub(crate) use collectives::{digest, places, total};
pub use group::Group;
pub use lent::Lent;
pub use pending::Pending;
pub use scope::{Scope, Scoped};

use crate::config::Config;
use crate::engine::{AbortFlag, Engine, MemoryUse, Owner, Recorder, Traffic};
use crate::error::{Error, ErrorKind, Result};
use crate::flight::Flight;
use crate::rendezvous::{self, UniqueId};
use crate::schedule::{Algorithm, Collective, Rank};
use crate::status::{self, Reporter};
use pending::Worker;
use split::Origin;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use turnstile::{Ticket, Turnstile};
use unisono_transports::Mesh;

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
/// left. Dropping it tells the others goodbye.
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

    /// A communicator over a mesh made otherwise, such as a simulated network. It cannot be split.
    pub fn over(mesh: Mesh, config: &Config) -> Self {
        Self::new(mesh, config, Origin::Foreign)
    }

    fn new(mesh: Mesh, config: &Config, origin: Origin) -> Self {
        Self::of_epoch(0, mesh, config, origin)
    }

    fn of_epoch(epoch: u64, mesh: Mesh, config: &Config, origin: Origin) -> Self {
        let abort = Arc::new(AbortFlag::default());
        let (rank, ranks, transport) = (mesh.rank, mesh.ranks, mesh.transport);
        let owner =
            Owner { communicator: origin.name(), epoch, rank, ranks, host: config.host.clone(), transport };
        let recorder = Arc::new(Recorder::new(owner));
        let engine = Engine::new(mesh, config.clone(), Arc::clone(&abort), Arc::clone(&recorder));
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
        };
        let shared = Arc::new(shared);
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

    /// The algorithm that would carry out `collective` with shares of `bytes` bytes.
    ///
    /// # Errors
    /// If none can, or the one insisted on cannot.
    pub fn algorithm_for(&self, collective: Collective, bytes: usize) -> Result<&'static Algorithm> {
        self.with(|engine| engine.algorithm(collective, 0, bytes))
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
        self.shared.abort.raise(reason);
        // When nothing runs, nobody else would tell the other ranks.
        if let Ok(mut engine) = self.shared.engine.try_lock() {
            engine.abort(reason);
        }
    }

    /// Runs `operation` on the engine when it is this call's turn.
    pub(crate) fn with<R>(&self, operation: impl FnOnce(&mut Engine) -> Result<R>) -> Result<R> {
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
            Ok(mut engine) => operation(&mut engine).map_err(|error| self.place(error)),
            Err(_) => Err(self.place(Error::new(ErrorKind::Bug("an earlier operation panicked".to_owned())))),
        }
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

const WAITS_FOR_ITSELF: &str = "an operation, or what was to happen after it, waits for one that comes later: neither would end. \
     Inside, use the communicator that it is given, or start what is to come";

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {}, {})", self.rank(), self.ranks(), self.transport())
    }
}
