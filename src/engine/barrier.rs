//! The barrier whose error lists the ranks that did not come.
//!
//! Every rank sends an empty message to every other rank. So each rank itself knows all ranks that
//! are missing.

use crate::engine::Engine;
use crate::engine::p2p::Transfer;
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::{OpDesc, OpKind};
use crate::schedule::Rank;
use std::time::Duration;
use unisono_reducers::DType;

impl Engine {
    /// Waits until every rank has called this function, but not longer than `timeout`.
    ///
    /// # Errors
    /// [`ErrorKind::BarrierTimeout`] with all ranks that are missing. Any error poisons the
    /// communicator.
    pub(crate) fn barrier_within(&mut self, timeout: Duration) -> Result<()> {
        self.check_healthy()?;
        self.traffic.operations += 1;
        let op = self.number(OpDesc::new(0, OpKind::BarrierTimeout, DType::U8, None, 0, 0));
        self.begin_op(&op, false);
        // The watchdog's own deadline must not come first.
        let usual = self.watchdog.exchange_timeout(timeout.saturating_mul(2));
        // A rank that comes late finds first messages of ranks that have already failed. Second
        // messages come only from ranks that got first messages from all others.
        let confirmed = self.number(op);
        let result = self.meet_all(op, timeout).and_then(|()| self.meet_all(confirmed, timeout));
        self.watchdog.exchange_timeout(usual);
        self.end_op(result, op, false)
    }

    fn meet_all(&mut self, op: OpDesc, timeout: Duration) -> Result<()> {
        let (rank, ranks) = (self.fabric.rank, self.fabric.ranks);
        let peers = (1..ranks).map(|distance| (rank + distance) % ranks);
        let messages = |peer| [Transfer::send(peer, &[], op), Transfer::recv(peer, &mut [], op)];
        let mut transfers: Vec<_> = peers.flat_map(messages).collect();
        let begun = self.fabric.wait.now();
        self.run_transfers_checked(&mut transfers, &|engine, transfers| {
            let waited = engine.fabric.wait.now().saturating_sub(begun);
            if waited > timeout { Err(missing_error(transfers, waited)) } else { Ok(()) }
        })
    }
}

/// Returns the error with the peers of all open transfers.
fn missing_error(transfers: &[Transfer<'_>], waited: Duration) -> Error {
    let open = transfers.iter().filter(|transfer| !transfer.is_done());
    let mut missing: Vec<Rank> = open.map(Transfer::peer).collect();
    missing.sort_unstable();
    missing.dedup();
    Error::new(ErrorKind::BarrierTimeout { missing, after: waited })
}
