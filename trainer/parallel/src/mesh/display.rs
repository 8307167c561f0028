//! Text picture of a mesh: a row per data rank, a column per stage, and tensor parallel ranks in
//! each field. Large meshes show the first and last data ranks only.

use super::{AxisOrder, Coordinates, Degrees, GroupKind, HostId, Mesh};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use unisono_nn::counted;
use unisono_nn::error::{Error, Result};

/// Formats a remark on the ranks of a field.
type Note<'a> = &'a dyn Fn(&[usize]) -> String;

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.summary())?;
        self.write_grid(f, &|_| String::new())
    }
}

/// Picture of a mesh whose ranks are on hosts.
///
/// Each field says on which hosts its tensor parallel ranks are. A line per kind of group says how
/// many hosts a group has.
#[derive(Clone, Debug)]
pub struct MeshOnHosts {
    mesh: Mesh,
    /// Number of the host of each rank, by first occurrence.
    hosts: Vec<usize>,
}

impl MeshOnHosts {
    /// Creates the picture, with rank `r` on `hosts[r]`.
    ///
    /// # Panics
    /// Panics if there are fewer hosts than ranks.
    pub fn new(mesh: Mesh, hosts: &[HostId]) -> Self {
        assert!(hosts.len() >= mesh.world_size(), "{} ranks on {} hosts", mesh.world_size(), hosts.len());
        let mut numbers = BTreeMap::new();
        let number = |host| {
            let next = numbers.len();
            *numbers.entry(host).or_insert(next)
        };
        Self { mesh, hosts: hosts[..mesh.world_size()].iter().map(number).collect() }
    }

    /// Creates the picture with consecutive ranks on hosts of `per_host` ranks.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a host has no ranks.
    pub fn even(mesh: Mesh, per_host: usize) -> Result<Self> {
        if per_host == 0 {
            return Err(Error::invalid("0 ranks per host: there is at least 1"));
        }
        Ok(Self { mesh, hosts: (0..mesh.world_size()).map(|rank| rank / per_host).collect() })
    }

    /// Returns the hosts of these ranks, such as `h0-h1`.
    fn hosts_of(&self, ranks: &[usize]) -> String {
        let hosts: BTreeSet<usize> = ranks.iter().map(|&rank| self.hosts[rank]).collect();
        match (hosts.first(), hosts.last()) {
            (Some(first), Some(last)) if last - first + 1 == hosts.len() && hosts.len() > 2 => {
                format!("h{first}-h{last}")
            }
            _ => hosts.iter().map(|host| format!("h{host}")).collect::<Vec<_>>().join("+"),
        }
    }

    /// Formats the number of groups of a kind, and the hosts of each.
    fn spread(&self, name: &str, kind: GroupKind) -> String {
        let groups = self.mesh.groups(kind);
        let counts: BTreeSet<usize> = groups
            .iter()
            .map(|group| group.iter().map(|&rank| self.hosts[rank]).collect::<BTreeSet<_>>().len())
            .collect();
        let hosts = match (counts.first(), counts.last()) {
            (Some(1), Some(1)) => "each within a host".to_owned(),
            (Some(least), Some(most)) if least == most => format!("each on {most} hosts"),
            (least, most) => format!("each on {} to {} hosts", least.unwrap_or(&0), most.unwrap_or(&0)),
        };
        format!("{name}: {} of {}, {hosts}", counted(groups.len(), "group"), groups[0].len())
    }
}

impl fmt::Display for MeshOnHosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mesh, hosts } = self;
        let hosts = hosts.iter().max().map_or(0, |last| last + 1);
        writeln!(f, "{}, on {}", mesh.summary(), counted(hosts, "host"))?;
        mesh.write_grid(f, &|ranks| format!(" {}", self.hosts_of(ranks)))?;
        let Degrees { tensor, sequence_data, pipeline, expert, .. } = mesh.degrees();
        let kinds = [
            ("tensor", tensor, GroupKind::Tensor),
            ("sequence", sequence_data, GroupKind::SequenceData),
            ("expert", expert, GroupKind::Expert),
            ("data", mesh.data_size(), GroupKind::Data),
            ("pipeline", pipeline, GroupKind::Pipeline),
        ];
        let mut kinds = kinds.into_iter().filter(|&(_, size, _)| size > 1);
        kinds.try_for_each(|(name, _, kind)| writeln!(f, "{}", self.spread(name, kind)))
    }
}

/// Maximum number of rows.
const MAX_ROWS: usize = 18;

impl Mesh {
    /// Writes a row per data rank and a column per stage. `note` follows the tensor parallel ranks
    /// of each field.
    fn write_grid(&self, f: &mut fmt::Formatter<'_>, note: Note<'_>) -> fmt::Result {
        let rows = [vec![self.header()], self.rows(note)].concat();
        let width = |column| rows.iter().map(|row| row.get(column).map_or(0, String::len)).max();
        let widths: Vec<usize> = (0..rows[0].len()).filter_map(width).collect();
        rows.iter().try_for_each(|row| {
            let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())
        })
    }

    fn rows(&self, note: Note<'_>) -> Vec<Vec<String>> {
        let row = |data| self.row(data, note);
        let data = self.data_size();
        if data <= MAX_ROWS {
            return (0..data).map(row).collect();
        }
        let dots = vec!["...".to_owned()];
        (0..MAX_ROWS - 2).map(row).chain([dots, row(data - 1)]).collect()
    }

    /// Returns the number of ranks, the degrees and an unusual order, in one line.
    pub fn summary(&self) -> String {
        let Degrees { tensor, pipeline, sequence_data, expert, expert_folded, order } = self.degrees();
        let factors = self.factors();
        let of_data = &factors[1..factors.len() - 1];
        let shown = of_data.iter().filter(|&&(name, size)| size > 1 || name == "batch");
        let shown: Vec<_> = shown.map(|(name, size)| format!("{name} {size}")).collect();
        let of_data = match sequence_data > 1 || (expert > 1 && !expert_folded) {
            true => format!(" (data: {})", shown.join(" x ")),
            false => String::new(),
        };
        let names = match expert_folded && expert > 1 {
            true => format!(", expert {expert} within data"),
            false => String::new(),
        };
        let order = match order == AxisOrder::default() {
            true => String::new(),
            false => format!(", order {order}"),
        };
        let (world, data) = (self.world_size(), self.data_size());
        let world = counted(world, "rank");
        format!("{world} = tensor {tensor} x data {data} x pipeline {pipeline}{of_data}{names}{order}")
    }

    fn header(&self) -> Vec<String> {
        let stages = (0..self.degrees().pipeline).map(|stage| format!("stage {stage}"));
        [String::new()].into_iter().chain(stages).collect()
    }

    fn row(&self, data: usize, note: Note<'_>) -> Vec<String> {
        let sequence = self.degrees().sequence_data;
        let place =
            Coordinates { batch_data: data / sequence, sequence_data: data % sequence, ..Default::default() };
        let name = match sequence {
            1 => format!("data {data}"),
            _ => format!("batch {} sequence {}", place.batch_data, place.sequence_data),
        };
        let cells =
            (0..self.degrees().pipeline).map(|pipeline| self.cell(Coordinates { pipeline, ..place }, note));
        [name].into_iter().chain(cells).collect()
    }

    fn cell(&self, coordinates: Coordinates, note: Note<'_>) -> String {
        let ranks = (0..self.degrees().tensor).map(|tensor| self.rank(Coordinates { tensor, ..coordinates }));
        let ranks: Vec<usize> = ranks.collect();
        let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
        format!("[{}]{}", numbers.join(" "), note(&ranks))
    }
}
