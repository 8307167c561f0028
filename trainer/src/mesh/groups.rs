//! The communicators of a mesh, each list of ranks once.

use super::{GroupKind, HostId, Mesh};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use unisono::Communicator;

/// This rank's communicators: one for each group that has more than one rank, shared by the kinds whose groups
/// are the same ranks.
pub struct MeshGroups {
    mesh: Mesh,
    rank: usize,
    /// By [`GroupKind`]: the first kind that divides the world in the same way.
    canonical: [GroupKind; GroupKind::ALL.len()],
    /// Of kinds that are their own twins.
    communicators: BTreeMap<GroupKind, Communicator>,
}

impl MeshGroups {
    /// Makes them all. Every rank of `world` must call it, with the same mesh.
    ///
    /// Two kinds have a list of ranks in common only if all their lists are the same: members of a group differ along
    /// whole axes. So one split per kind that divides the world as no earlier kind does makes every distinct list once.
    ///
    /// # Errors
    /// If the mesh is of another number of ranks; of the splits.
    pub fn new(world: &Communicator, mesh: Mesh) -> Result<Self> {
        if world.size() != mesh.world_size() {
            let what =
                format!("a mesh of {} ranks over a communicator of {}", mesh.world_size(), world.size());
            return Err(Error::invalid(what));
        }
        HostId::warn_cross_host_groups(world, &mesh)?;
        let (rank, twins) = (world.rank(), GroupKind::ALL.map(|kind| mesh.canonical_kind(kind)));
        let mut groups = Self { mesh, rank, canonical: twins, communicators: BTreeMap::new() };
        for kind in GroupKind::ALL.into_iter().filter(|&kind| twins[kind as usize] == kind) {
            if mesh.group(kind, rank).len() > 1 {
                groups.make(world, kind)?;
            }
        }
        Ok(groups)
    }

    fn make(&mut self, world: &Communicator, kind: GroupKind) -> Result<()> {
        let made = match kind {
            GroupKind::World => Some(world.clone()),
            _ => world.split(Some(self.mesh.color(kind, self.rank) as u32), self.rank as i32)?,
        };
        self.communicators.extend(made.map(|made| (kind, made)));
        Ok(())
    }

    /// Number of communicators that this rank has.
    pub fn communicator_count(&self) -> usize {
        self.communicators.len()
    }

    /// The communicator of this rank's group; none if this rank is alone in it.
    pub fn get(&self, kind: GroupKind) -> Option<&Communicator> {
        self.communicators.get(&self.canonical[kind as usize])
    }

    /// Number of ranks in this rank's group.
    pub fn size(&self, kind: GroupKind) -> usize {
        self.get(kind).map_or(1, Communicator::size)
    }

    /// This rank's place in its group.
    pub fn rank(&self, kind: GroupKind) -> usize {
        self.get(kind).map_or(0, Communicator::rank)
    }

    /// The arithmetic behind them.
    pub fn mesh(&self) -> Mesh {
        self.mesh
    }

    /// Where this rank stands.
    pub fn coordinates(&self) -> super::Coordinates {
        self.mesh.coordinates(self.rank)
    }
}

impl Mesh {
    /// The first kind that divides this world in the same way.
    pub(super) fn canonical_kind(&self, kind: GroupKind) -> GroupKind {
        let same = |other: &GroupKind| {
            (0..self.world_size()).all(|rank| self.color(*other, rank) == self.color(kind, rank))
        };
        GroupKind::ALL.into_iter().find(same).expect("a kind divides as itself does")
    }
}
