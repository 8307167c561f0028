//! Going on with more ranks.

use super::Communicator;
use super::split::Origin;
use crate::bootstrap;
use crate::bootstrap::{RankInfo, UniqueId};
use crate::error::{Error, ErrorKind, Result};

impl Communicator {
    /// A communicator of these ranks, under their numbers, and `newcomers` more after them.
    ///
    /// Every rank calls it with the same `id`, whose address is on rank 0's host; newcomer `i` calls
    /// [`Communicator::join`] with that id as rank `size() + i` of `size() + newcomers`, or
    /// [`Communicator::from_env`] with `RANK`, `WORLD_SIZE` and `UNISONO_ID` set so. How the id
    /// gets to newcomers is the caller's business: it holds a secret.
    ///
    /// This communicator stays as it is: if newcomers do not come within
    /// [`Config::join_timeout`](crate::Config::join_timeout), the ranks get an error and can go on with it.
    ///
    /// # Errors
    /// As [`Communicator::join`]; misuse, on all ranks, if they do not mean the same id and number;
    /// [`ErrorKind::Unsupported`] between threads and over a foreign mesh, where nobody can come from outside.
    pub fn grow(&self, id: &UniqueId, newcomers: usize) -> Result<Communicator> {
        if !matches!(self.shared.origin, Origin::Bootstrap(_)) {
            let what = format!("nobody can join ranks over {} from outside", self.transport());
            return Err(self.attach_rank(Error::new(ErrorKind::Unsupported(what))));
        }
        let mut proposals = vec![0u64; 2 * self.size()];
        let proposal = [id.group_id(), newcomers as u64];
        self.all_gather(&proposal, &mut proposals)?;
        if proposals.chunks(2).any(|other| other != proposal) {
            return Err(
                self.attach_rank(Error::invalid_usage("ranks grow with another id, or by another number"))
            );
        }
        let (rank, ranks) = (self.rank(), self.size() + newcomers);
        let mesh = bootstrap::join(&RankInfo { rank, ranks, id: id.clone() }, self.config())?;
        Ok(self.with_same_parent(mesh, self.config(), Origin::Bootstrap(id.clone())))
    }
}
