//! Going on with more ranks.

use super::Communicator;
use super::split::Origin;
use crate::error::{Error, ErrorKind, Result};
use crate::rendezvous::{self, Identity, UniqueId};

impl Communicator {
    /// A communicator of these ranks, under their numbers, and `newcomers` more after them.
    ///
    /// Every rank calls it with the same `id`, whose address is on rank 0's host; newcomer `i` calls
    /// [`Communicator::join`] with that id as rank `ranks() + i` of `ranks() + newcomers`, or
    /// [`Communicator::from_env`] with `RANK`, `WORLD_SIZE` and `UNISONO_ID` set so. How the id
    /// gets to newcomers is the caller's business: it holds a secret.
    ///
    /// This communicator stays as it is: if newcomers do not come within
    /// [`Config::join_timeout`](crate::Config::join_timeout), the ranks get an error and can go on with it.
    ///
    /// # Errors
    /// As [`Communicator::join`]; misuse, on all ranks, if they do not mean the same id and number;
    /// [`ErrorKind::Unavailable`] between threads and over a foreign mesh, where nobody can come from outside.
    pub fn grow(&self, id: &UniqueId, newcomers: usize) -> Result<Communicator> {
        if !matches!(self.shared.origin, Origin::Rendezvous(_)) {
            let what = format!("nobody can join ranks over {} from outside", self.transport());
            return Err(self.place(Error::new(ErrorKind::Unavailable(what))));
        }
        let mut wishes = vec![0u64; 2 * self.ranks()];
        let wish = [id.name(), newcomers as u64];
        self.all_gather(&wish, &mut wishes)?;
        if wishes.chunks(2).any(|other| other != wish) {
            return Err(self.place(Error::misuse("ranks grow with another id, or by another number")));
        }
        let (rank, ranks) = (self.rank(), self.ranks() + newcomers);
        let mesh = rendezvous::join(&Identity { rank, ranks, id: id.clone() }, self.config())?;
        Ok(self.sibling(mesh, self.config(), Origin::Rendezvous(id.clone())))
    }
}
