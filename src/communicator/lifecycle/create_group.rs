//! Groups that only their members make.

use crate::communicator::lifecycle::split::TICKET_BYTES;
use crate::communicator::{Communicator, SELF_WAIT_MESSAGE, Work};
use crate::engine::messages::INTERNAL_TAGS;
use crate::error::Result;
use crate::op_desc::OpKind;
use crate::schedule::Rank;

impl Communicator {
    /// Makes a communicator of `members`, in that order. Only the members call this method.
    ///
    /// All members give the same list and the same `tag`. Groups that are made at the same time
    /// need different tags if they share two ranks. Other ranks may run operations at the same
    /// time.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) if the list names a rank twice,
    /// names a rank that does not exist, or does not name this rank. The same error is returned
    /// inside an operation of this communicator, because its messages may move only afterwards.
    /// The errors of [`Communicator::split`] if the members cannot connect, and those of
    /// [`Communicator::irecv`] if the first member does not call this method.
    ///
    /// ```
    /// # let ranks = unisono::Communicator::local(3)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// if comm.rank() != 1 {
    ///     let pair = comm.create_group(&[2, 0], 0).unwrap();
    ///     assert_eq!((pair.size(), pair.rank()), (2, if comm.rank() == 2 { 0 } else { 1 }));
    /// }
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn create_group(&self, members: &[Rank], tag: u32) -> Result<Communicator> {
        let position = self.checked_members(members)?;
        // A wait for a message is refused here only if the message has not arrived yet, so it would
        // depend on the time whether a member gets the group or an error.
        if self.shared.is_used_by_this_thread() {
            return Err(self.usage_error(SELF_WAIT_MESSAGE));
        }
        let tag = INTERNAL_TAGS | u64::from(tag);
        let mut ticket = [0u8; TICKET_BYTES];
        if position > 0 {
            let (bytes, _) = self.irecv_any_tag_space(vec![0u8; TICKET_BYTES], members[0], tag).wait()?;
            ticket.copy_from_slice(&bytes);
            let group = self.connect_group(&ticket, members, self.config())?;
            return self.bequeath_algorithms(group);
        }
        self.check_can_reconnect()?;
        let reserved = self.reserve_endpoint(&mut ticket, members);
        // The other members wait for a ticket. An empty ticket tells them that there is none.
        let send = |&member: &Rank| self.isend_any_tag_space(ticket.to_vec(), member, tag);
        let sent: Vec<Work<Vec<u8>>> = members[1..].iter().map(send).collect();
        let _reserved = reserved.map_err(|error| self.attach_rank(error))?;
        sent.into_iter().try_for_each(|work| work.wait().map(drop))?;
        let group = self.connect_group(&ticket, members, self.config())?;
        self.bequeath_algorithms(group)
    }

    /// Returns the position of this rank among `members`.
    fn checked_members(&self, members: &[Rank]) -> Result<usize> {
        let args = self.arg_check(OpKind::Split);
        let mut seen = vec![false; self.size()];
        for &member in members {
            args.require_rank("member", member)?;
            if std::mem::replace(&mut seen[member], true) {
                return Err(args.invalid(format!("rank {member} is in the group twice")));
            }
        }
        let position = members.iter().position(|&member| member == self.rank());
        position.ok_or_else(|| self.usage_error("only members make the group, and this rank is none of them"))
    }
}
