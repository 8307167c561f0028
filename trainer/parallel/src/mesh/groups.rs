//! Communicators of a mesh. Each list of ranks has one communicator.

use super::{GroupKind, Mesh};
use std::collections::BTreeMap;
use unisono::Communicator;
use unisono_nn::error::{Error, Result};

/// Communicators of this rank, for each group with more than one rank. Kinds with equal lists of
/// ranks share a communicator, so operations on it need one order for all of these kinds.
pub struct MeshGroups {
    mesh: Mesh,
    rank: usize,
    /// First kind with the same groups, by [`GroupKind`].
    canonical: [GroupKind; GroupKind::ALL.len()],
    /// Communicators of the first kinds.
    communicators: BTreeMap<GroupKind, Communicator>,
}

impl MeshGroups {
    /// Creates all communicators. Every rank of `world` must call this with the same mesh.
    ///
    /// Two kinds share a list of ranks only if all their lists are equal, because members of a
    /// group differ along whole axes. One split per distinct kind therefore creates every list
    /// once.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the mesh has another number of ranks than `world`. Fails if a split or
    /// the exchange of locations fails.
    pub fn new(world: &Communicator, mesh: Mesh) -> Result<Self> {
        if world.size() != mesh.world_size() {
            let what =
                format!("a mesh of {} ranks over a communicator of {}", mesh.world_size(), world.size());
            return Err(Error::invalid(what));
        }
        mesh.warn_of_placement(world)?;
        let (rank, twins) = (world.rank(), GroupKind::ALL.map(|kind| mesh.canonical_kind(kind)));
        let mut groups = Self { mesh, rank, canonical: twins, communicators: BTreeMap::new() };
        // A split is a collective of the world, so all ranks split in the same order. The groups of
        // a kind have equal sizes, so that either all ranks skip a kind or none does.
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

    /// Returns the number of communicators of this rank.
    pub fn communicator_count(&self) -> usize {
        self.communicators.len()
    }

    /// Returns the communicator of this rank's group; `None` if this rank is alone.
    pub fn get(&self, kind: GroupKind) -> Option<&Communicator> {
        self.communicators.get(&self.canonical[kind as usize])
    }

    /// Returns the number of ranks of this rank's group, at least 1.
    pub fn size(&self, kind: GroupKind) -> usize {
        self.get(kind).map_or(1, Communicator::size)
    }

    /// Returns this rank's index in its group.
    pub fn rank(&self, kind: GroupKind) -> usize {
        self.get(kind).map_or(0, Communicator::rank)
    }

    /// Returns the mesh.
    pub fn mesh(&self) -> Mesh {
        self.mesh
    }

    /// Returns the coordinates of this rank.
    pub fn coordinates(&self) -> super::Coordinates {
        self.mesh.coordinates(self.rank)
    }
}

impl Mesh {
    /// Returns the first kind with the same groups.
    pub(super) fn canonical_kind(&self, kind: GroupKind) -> GroupKind {
        let same = |other: &GroupKind| {
            (0..self.world_size()).all(|rank| self.color(*other, rank) == self.color(kind, rank))
        };
        GroupKind::ALL.into_iter().find(same).expect("a kind divides as itself does")
    }
}
