//! Placement of a mesh on hosts and NUMA domains. Groups with much traffic should stay within one.

use super::{AxisOrder, Degrees, GroupKind, Location, Mesh};
use unisono::Communicator;
use unisono_nn::error::{Error, Result};

/// Kinds of groups by decreasing traffic, each with its key in the section `mesh` and the cost of
/// leaving a host. Data parallel groups are not among them, because their traffic overlaps with
/// computation.
const BY_TRAFFIC: [(GroupKind, &str, &str); 4] = [
    (GroupKind::Tensor, "tensor", "each layer waits for its sums twice forward and twice back"),
    (GroupKind::SequenceData, "sequence_data", "attention of each layer waits for keys and values"),
    (GroupKind::Expert, "expert", "the tokens of each layer go to their experts and back"),
    (GroupKind::Pipeline, "pipeline", "activations pass between stages"),
];

/// Number of kinds in [`BY_TRAFFIC`] about which to warn. Stages are meant to be apart.
const WARNED_KINDS: usize = 3;

impl Mesh {
    /// Rejects tensor parallel groups that are larger than a host.
    ///
    /// # Errors
    /// [`Error::Invalid`] names both numbers.
    pub fn check_fits_hosts(&self, local_world: usize) -> Result<()> {
        let tensor = self.degrees().tensor;
        if tensor <= local_world {
            return Ok(());
        }
        let what = format!("tensor = {tensor} ranks do not fit on a host of {local_world}");
        Err(Error::invalid(format!("{what}: a tensor parallel group stays on one host")))
    }

    /// Returns the groups of a kind that are in several places, with rank `r` in `places[r]`.
    pub fn crossing_groups<P: PartialEq>(&self, kind: GroupKind, places: &[P]) -> Vec<Vec<usize>> {
        let crosses = |group: &Vec<usize>| group.iter().any(|&rank| places[rank] != places[group[0]]);
        self.groups(kind).into_iter().filter(crosses).collect()
    }

    /// Returns the order of axes that keeps the most groups within one place: first tensor parallel
    /// groups, then those that share sequences, experts, and pipelines. `None` if this mesh keeps
    /// as many, apart from pipelines.
    pub fn better_order<P: PartialEq>(&self, places: &[P]) -> Option<AxisOrder> {
        let crossings = |order| {
            let mesh = self.with_order(order);
            BY_TRAFFIC.map(|(kind, ..)| mesh.crossing_groups(kind, places).len())
        };
        let present = crossings(self.degrees.order);
        let (found, best) =
            AxisOrder::all().map(|order| (crossings(order), order)).min_by_key(|&(found, _)| found)?;
        (found[..WARNED_KINDS] < present[..WARNED_KINDS]).then_some(best)
    }

    /// Returns the warning about a placement, with rank `r` at `locations[r]`. It names groups that
    /// leave a host or else a NUMA domain, their cost, and the order of axes that keeps more within
    /// one. `None` if no tensor parallel group leaves one, and no order is better.
    pub fn placement_warning(&self, locations: &[Location]) -> Option<String> {
        let hosts: Vec<_> = locations.iter().map(|location| location.host).collect();
        let of_hosts = self.crossing_warning("host", &hosts);
        of_hosts.or_else(|| self.crossing_warning("NUMA domain", locations))
    }

    fn crossing_warning<P: PartialEq>(&self, place: &str, places: &[P]) -> Option<String> {
        let better = self.better_order(places);
        let warned = BY_TRAFFIC[..WARNED_KINDS].iter().filter_map(|&(kind, name, cost)| {
            let groups = self.crossing_groups(kind, places);
            let first = groups.first().filter(|_| kind == GroupKind::Tensor || better.is_some())?;
            let (count, s) = (groups.len(), if groups.len() == 1 { "" } else { "s" });
            let kept = better.map(|order| self.with_order(order).crossing_groups(kind, places).len());
            let kept = kept.map_or(String::new(), |kept| format!(" ({kept} with the order below)"));
            Some(format!("{count} {name} group{s} leave a {place}{kept}, as ranks {first:?}: {cost}"))
        });
        let mut parts: Vec<String> = warned.collect();
        if parts.is_empty() {
            return None;
        }
        parts.push(match better {
            Some(order) => format!("mesh.order={order} keeps more of them within a {place}"),
            None => format!("no mesh.order keeps more of them within a {place}"),
        });
        Some(parts.join("; "))
    }

    fn with_order(self, order: AxisOrder) -> Self {
        Self { degrees: Degrees { order, ..self.degrees }, ..self }
    }

    /// Logs the warning about the placement of `world`, on its first rank. All ranks must call
    /// this.
    pub(super) fn warn_of_placement(&self, world: &Communicator) -> Result<()> {
        let locations = Location::gather(world)?;
        if let Some(warning) = self.placement_warning(&locations).filter(|_| world.rank() == 0) {
            tracing::warn!("{warning}");
        }
        Ok(())
    }
}
