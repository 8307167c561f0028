//! Growing a communicator by new ranks.

use crate::bootstrap;
use crate::bootstrap::{RANKS_MAX, RankInfo, UniqueId};
use crate::communicator::Communicator;
use crate::communicator::lifecycle::split::Origin;
use crate::error::{Error, ErrorKind, Result};

impl Communicator {
    /// Makes a communicator of these ranks and of `newcomers` new ranks. These ranks keep their
    /// numbers, and the new ranks follow them.
    ///
    /// Every rank calls this method with the same `id`, whose address is on rank 0's host. Newcomer
    /// `i` calls [`Communicator::join`] with that id as rank `size() + i` of `size() + newcomers`,
    /// or [`Communicator::from_env`] with `RANK`, `WORLD_SIZE` and `UNISONO_ID` set accordingly.
    /// The caller sends the id to the newcomers. Nobody else may be able to read it, because it
    /// holds a secret.
    ///
    /// The new communicator has this one's settings. Algorithms that were
    /// [set](Communicator::set_algorithm) are not inherited, because newcomers have set none. All
    /// ranks must set them again.
    ///
    /// This communicator stays as it is. If newcomers do not join within
    /// [`Config::join_timeout`](crate::Config::join_timeout), the ranks get an error and can go on
    /// using this communicator.
    ///
    /// # Errors
    /// The errors of [`Communicator::join`]. [`ErrorKind::InvalidUsage`] on all ranks if they give
    /// different ids or numbers. [`ErrorKind::Unsupported`] if the ranks are threads or use a
    /// custom fabric, because other processes cannot join them.
    ///
    /// ```no_run
    /// # use unisono::{Communicator, UniqueId};
    /// let comm = Communicator::from_env()?;
    /// # let (id_for_all_ranks, address) = ("", std::net::Ipv4Addr::LOCALHOST.into());
    /// // Rank 0 makes the id and gives it to the other ranks and to the newcomer.
    /// let id = UniqueId::new(address)?;
    /// let larger = comm.grow(&id, 1)?;
    /// assert_eq!(larger.size(), comm.size() + 1);
    /// # Ok::<(), unisono::Error>(())
    /// ```
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
        // This check comes after the comparison, so that all ranks refuse the same number.
        if newcomers > RANKS_MAX - self.size() {
            let text = format!("{newcomers} newcomers and {} ranks are more than {RANKS_MAX}", self.size());
            return Err(self.attach_rank(Error::invalid_usage(text)));
        }
        let (rank, ranks) = (self.rank(), self.size() + newcomers);
        let identity = RankInfo { rank, ranks, id: id.clone() };
        let (mesh, id) = bootstrap::join_and_locate(&identity, self.config())?;
        Ok(self.with_same_parent(mesh, self.config(), Origin::Bootstrap(id)))
    }
}
