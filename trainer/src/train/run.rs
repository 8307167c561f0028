//! State of one rank of a run.

use super::trace::Trace;
use crate::checkpoint::RunFiles;
use crate::config::Config;
use crate::data::{DatasetId, Sampler};
use crate::models::Gpt;
use crate::train::Interrupt;
use crate::train::added_values::AddedNames;
use crate::train::checkpoint_writer::CheckpointWriter;
use crate::train::data_loader::DataLoader;
use crate::train::memory_report::MemoryReport;
use crate::train::read_ahead::ReadAhead;
use crate::train::stage_times::StageTimes;
use std::sync::Arc;
use unisono::Communicator;
use unisono_nn::allocator::Allocator;
use unisono_nn::device::Device;
use unisono_nn::parameter::Inventory;
use unisono_nn::process_group::ProcessGroup;
use unisono_parallel::data_parallel::DataParallel;
use unisono_parallel::mesh::{MeshGroups, SeedSource};
use unisono_parallel::optimizer::Optimizer;
use unisono_parallel::pipeline::Program;
use unisono_plan::BatchPlan;

/// State of a run on one rank. All ranks must call the same methods in the same order.
pub struct Run {
    pub(super) config: Config,
    pub(super) world: Communicator,
    pub(super) groups: MeshGroups,
    /// Ranks with chunks of the same sequences; `None` if sequences are whole. Models have this
    /// communicator alone, so that they do not wait for gradients.
    pub(super) sequence_group: Option<Communicator>,
    /// Tensor parallel group of the model; `None` if layers are whole.
    pub(super) tensor_group: Option<ProcessGroup>,
    pub(super) batch: BatchPlan,
    /// This rank's computation in a step.
    pub(super) program: Program,
    /// This rank's computation of one micro-batch in validation.
    pub(super) validation: Program,
    pub(super) loader: DataLoader,
    pub(super) dataset: DatasetId,
    pub(super) sampler: Sampler,
    pub(super) seeds: SeedSource,
    pub(super) model: Gpt,
    pub(super) inventory: Arc<Inventory>,
    pub(super) memory: Allocator,
    /// GPU of the computation; `None` for the CPU.
    pub(super) device: Option<Device>,
    pub(super) strategy: Box<dyn DataParallel>,
    pub(super) optimizer: Box<dyn Optimizer>,
    /// Number of steps taken.
    pub(super) train_step: u64,
    pub(super) memory_report: MemoryReport,
    /// Floating-point operations of the whole model for one sample.
    pub(super) flops_per_sample: f64,
    /// Names of the losses and metrics of blocks.
    pub(super) added_names: AddedNames,
    pub(super) trace: Trace,
    /// Time of all steps, and the part of it in which this rank waited for nobody.
    pub(super) worked: StageTimes,
    /// Request to end the run early.
    pub(super) interrupt: Interrupt,
    pub(super) writer: CheckpointWriter,
    /// Files that every checkpoint contains; only on rank 0.
    pub(super) files: RunFiles,
    /// Threads that read the batches of coming steps; `None` until the first step with
    /// `data.workers`.
    pub(super) read_ahead: Option<ReadAhead>,
}

impl Run {
    /// Returns true on the reporting rank.
    pub fn is_root(&self) -> bool {
        self.world.rank() == 0
    }

    /// Returns the number of steps taken.
    pub fn steps_taken(&self) -> u64 {
        self.train_step
    }

    /// Returns this rank's memory in the last step.
    pub fn ledger(&self) -> &MemoryReport {
        &self.memory_report
    }
}
