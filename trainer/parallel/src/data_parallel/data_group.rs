//! The data parallel ranks of a part of the model, and their groups.

use crate::data_parallel::{ParallelKind, ShardGroups};
use std::sync::Arc;
use unisono::Communicator;
use unisono_cuda::device::compute::Compute;
use unisono_nn::allocator::Allocator;
use unisono_nn::error::{Error, Result};
use unisono_nn::gpu_timeline::GpuTimeline;
use unisono_nn::process_group::{Comm, ProcessGroup};

/// Group of ranks that exchange flat buffers in host or GPU memory.
pub(super) struct DataGroup {
    pub(super) process_group: ProcessGroup,
    /// GPU stream for collectives, separate from the stream of the modules.
    pub(super) lane: Option<Arc<Compute>>,
    /// Recorder of the work on `lane`.
    pub(super) timeline: Option<GpuTimeline>,
}

/// Data ranks with which a rank exchanges buckets and shards.
pub(super) struct DataGroups {
    /// Ranks that divide state, or all data ranks if each keeps everything. `None` if this rank is
    /// alone.
    pub(super) group: Option<DataGroup>,
    /// Ranks of other groups with the same shards as this one; `None` if there is one group.
    pub(super) replicas: Option<ProcessGroup>,
}

impl DataGroups {
    /// Divides `data` into these groups, unless ranks of this kind keep everything. All ranks of
    /// `data` must call this.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the groups do not have equal sizes. Fails if a communicator cannot be
    /// split, or ranks cannot set up GPU communication.
    pub(super) fn new(
        kind: ParallelKind,
        data: Option<Communicator>,
        groups: ShardGroups,
        memory: &Allocator,
    ) -> Result<Self> {
        let Some(data) = data else { return Ok(Self { group: None, replicas: None }) };
        let (rank, ranks, ShardGroups { shards, .. }) = (data.rank(), data.size(), groups);
        if kind == ParallelKind::Replicated || shards == ranks {
            return Ok(Self { group: Some(DataGroup::new(data, memory)?), replicas: None });
        }
        if !ranks.is_multiple_of(shards) {
            return Err(Error::invalid(format!("shard_ranks = {shards} does not divide {ranks} data ranks")));
        }
        let group = data.split(Some((rank / shards) as u32), rank as i32)?;
        let replicas = data.split(Some((rank % shards) as u32), rank as i32)?;
        Ok(Self {
            group: group.map(|group| DataGroup::new(group, memory)).transpose()?,
            replicas: replicas.map(|replicas| ProcessGroup::new(replicas, memory.gpu())).transpose()?,
        })
    }
}

impl DataGroup {
    /// Creates the group from `host`, with GPU collectives if `memory` keeps flat buffers on a GPU.
    /// All ranks must call this.
    ///
    /// # Errors
    /// Fails if ranks cannot set up GPU communication.
    pub(super) fn new(host: Communicator, memory: &Allocator) -> Result<Self> {
        let process_group = ProcessGroup::new(host, memory.gpu())?;
        // Other ranks wait for the kernels of a collective, so they start before waiting kernels of
        // modules.
        let high_priority =
            |lane: &Arc<Compute>| Compute::without_cublas(lane.stream().gpu().high_priority_stream()?);
        let lane = memory.lane().map(high_priority).transpose()?.map(Arc::new);
        Ok(Self { process_group, lane, timeline: memory.timeline().cloned() })
    }

    pub(super) fn rank(&self) -> usize {
        self.process_group.rank()
    }

    pub(super) fn ranks(&self) -> usize {
        self.process_group.size()
    }

    /// Returns the communicator for flat buffers.
    pub(super) fn peers(&self) -> Comm<'_> {
        self.process_group.comm()
    }
}
