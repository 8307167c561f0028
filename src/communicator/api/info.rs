//! Methods that return facts about a communicator: its rank, size, settings, statistics and state.

use crate::communicator::Communicator;
use crate::config::Config;
use crate::engine::{MemoryStats, TrafficStats};
use crate::error::{Error, Result};
use crate::flight::FlightRecord;
use crate::schedule::Rank;
use crate::status::FlightRecordSource;

impl Communicator {
    /// Returns this rank's number, from 0 up to [`Communicator::size`] − 1.
    ///
    /// ```
    /// let ranks = unisono::Communicator::local(3)?;
    /// assert_eq!(ranks[2].rank(), 2);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn rank(&self) -> Rank {
        self.shared.rank
    }

    /// Returns the number of ranks.
    ///
    /// ```
    /// let ranks = unisono::Communicator::local(3)?;
    /// assert_eq!(ranks[0].size(), 3);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn size(&self) -> usize {
        self.shared.ranks
    }

    /// Returns the name of the transport: `threads`, `shm`, `tcp`, `mixed` or `sim`.
    ///
    /// ```
    /// let comm = unisono::Communicator::local(1)?.remove(0);
    /// assert_eq!(comm.transport(), "threads");
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn transport(&self) -> &'static str {
        self.shared.transport
    }

    /// Returns the settings of the communicator.
    ///
    /// ```
    /// let comm = unisono::Communicator::local(1)?.remove(0);
    /// assert!(comm.config().check().is_ok());
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Returns the memory that this communicator uses at this rank. The call waits for earlier
    /// operations.
    ///
    /// # Errors
    /// If an earlier operation panicked.
    ///
    /// ```
    /// let comm = unisono::Communicator::local(1)?.remove(0);
    /// println!("{:?}", comm.memory_stats()?);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn memory_stats(&self) -> Result<MemoryStats> {
        self.with_engine(|engine| Ok(engine.memory_stats()))
    }

    /// Returns the traffic of this rank since the communicator was made. The call waits for earlier
    /// operations.
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

    /// Returns the last 64 operations of this rank and their states. The call never waits, on any
    /// thread.
    ///
    /// ```
    /// # use unisono::{Communicator, OpState, Sum};
    /// # let comm = Communicator::local(1)?.remove(0);
    /// comm.all_reduce(&mut [1.0f32; 10], Sum)?;
    /// let last = comm.flight_record().operations[0].clone();
    /// assert_eq!((last.op.name(), last.op.count, last.state), ("all_reduce", 10, OpState::Done));
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn flight_record(&self) -> FlightRecord {
        self.shared.flight_record()
    }

    /// Returns true if an error has ended this communicator. The call never waits.
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let comm = Communicator::local(1)?.remove(0);
    /// assert!(!comm.is_poisoned());
    /// comm.abort("no more data");
    /// assert!(comm.is_poisoned());
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn is_poisoned(&self) -> bool {
        self.shared.recorder.error().is_some()
    }

    /// Returns the error that ended this communicator. Every later operation returns the same
    /// error. The call never waits.
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let comm = Communicator::local(1)?.remove(0);
    /// assert!(comm.error().is_none());
    /// comm.abort("no more data");
    /// assert!(comm.error().unwrap().to_string().contains("no more data"));
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn error(&self) -> Option<Error> {
        self.shared.recorder.error()
    }
}
