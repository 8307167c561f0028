//! Predicts memory, traffic and computation of a run on any number of ranks, in one process.

use super::{config_lints, launch, refusals, setup};
use crate::config::{Config, new_model_with_experts};
use unisono::Communicator;
use unisono_nn::allocator::AllocClass;
use unisono_nn::counted;
use unisono_nn::error::Result;
use unisono_nn::parameter::{Inventory, Parameter};
use unisono_nn::process_group::ProcessGroup;
use unisono_parallel::data_parallel::ParallelKind;
use unisono_parallel::experts::ExpertParallel;
use unisono_parallel::mesh::{Mesh, MeshOnHosts};
use unisono_plan::cost::{CostModel, Traffic, flops_per_sample, in_memory, sections, table};
use unisono_plan::{BatchPlan, RunShape, Stages};

/// Prediction of a run, without its execution.
pub struct DryRun {
    config: Config,
    /// Numbers of the configuration for the formulas.
    run: RunShape,
    mesh: Mesh,
    hosts: Option<MeshOnHosts>,
    batch: BatchPlan,
    /// All parameters.
    inventory: Inventory,
    stages: Stages,
    /// Parameters of each rank of a pipeline.
    of_stages: Vec<Inventory>,
    /// Strategy of each unit.
    units: Vec<ParallelKind>,
}

impl DryRun {
    /// Predicts a run of `world` ranks.
    ///
    /// # Errors
    /// Fails as the start of the run would.
    pub fn new(config: &Config, world: usize) -> Result<Self> {
        let mesh = setup::mesh(config, world)?;
        setup::check_device_supported(config)?;
        let batch = config.batch(&mesh)?;
        // The groups are described, not connected.
        let tensor = described_group(config.mesh.tensor)?.map(ProcessGroup::from);
        let experts = ExpertParallel::new(described_group(config.mesh.expert)?);
        let (_, inventory) = new_model_with_experts(config, tensor.as_ref(), experts)?;
        let units = config.strategy.unit_kinds(&inventory)?;
        let stages = config.stages(&mesh, &batch, &inventory)?;
        let of_stage = |stage| {
            let mut stage_inventory = inventory.clone();
            stages.keep_own(stage, &mut stage_inventory);
            stage_inventory
        };
        let of_stages = (0..mesh.degrees().pipeline).map(of_stage).collect();
        let (config, run) = (config.clone(), config.run_shape());
        Ok(Self { config, run, mesh, hosts: None, batch, inventory, stages, of_stages, units })
    }

    /// Shows the mesh on hosts of `per_host` consecutive ranks each.
    ///
    /// # Errors
    /// [`Error::Invalid`](unisono_nn::error::Error::Invalid) if `per_host` is 0.
    pub fn on_hosts(self, per_host: usize) -> Result<Self> {
        Ok(Self { hosts: Some(MeshOnHosts::even(self.mesh, per_host)?), ..self })
    }

    /// Returns the formulas of each rank of a pipeline.
    fn cost_models(&self) -> impl Iterator<Item = CostModel<'_>> {
        let Self { run, mesh, batch, stages, .. } = self;
        let of_stages = self.of_stages.iter().enumerate();
        of_stages.map(|(stage, inventory)| CostModel {
            run,
            inventory,
            mesh: *mesh,
            batch: *batch,
            stages,
            stage,
        })
    }

    /// Returns the bytes that each rank keeps with a strategy: weights, gradients, optimizer state,
    /// peak of activations, and offloaded state. The largest pipeline stage counts.
    pub fn memory(&self, kind: ParallelKind) -> [usize; 5] {
        self.memory_with(&self.all_units(kind))
    }

    /// Returns the bytes that each rank sends per step with a strategy. The pipeline stage that
    /// sends most counts.
    pub fn traffic(&self, kind: ParallelKind) -> Traffic {
        self.traffic_with(&self.all_units(kind))
    }

    /// Returns the bytes that each rank keeps as configured, as [`DryRun::memory`] does.
    pub fn own_memory(&self) -> [usize; 5] {
        self.memory_with(&self.units)
    }

    /// Returns the bytes at the peak of a step as configured, as [`DryRun::memory`] does: whole
    /// gradients count while they are kept.
    pub fn peak_memory(&self) -> [usize; 5] {
        let predictions = self.cost_models().map(|model| model.memory_at_peak(&self.units));
        predictions.max_by_key(|&memory| in_memory(memory)).expect("a stage")
    }

    /// Returns the bytes that each rank sends per step as configured, as [`DryRun::traffic`] does.
    pub fn own_traffic(&self) -> Traffic {
        self.traffic_with(&self.units)
    }

    /// Returns the floating-point operations of each rank per step.
    pub fn flops(&self) -> f64 {
        let of_sample = flops_per_sample(&self.run.gpt, &self.inventory);
        of_sample * self.batch.global() as f64 / self.mesh.world_size() as f64
    }

    fn memory_with(&self, units: &[ParallelKind]) -> [usize; 5] {
        let predictions = self.cost_models().map(|model| model.memory(units));
        predictions.max_by_key(|&memory| in_memory(memory)).expect("a stage")
    }

    fn traffic_with(&self, units: &[ParallelKind]) -> Traffic {
        let predictions = self.cost_models().map(|model| model.traffic(units));
        predictions.max_by(|left, right| left.total().total_cmp(&right.total())).expect("a stage")
    }

    fn all_units(&self, kind: ParallelKind) -> Vec<ParallelKind> {
        vec![kind; self.units.len()]
    }

    /// Returns the whole report as text and tables.
    pub fn report(&self) -> String {
        let (memory, traffic) = (self.own_memory(), self.own_traffic());
        sections(&[
            ("Model", self.model()),
            ("Mesh", self.hosts.as_ref().map_or_else(|| self.mesh.to_string(), MeshOnHosts::to_string)),
            ("Batch", self.arithmetic()),
            ("Memory of each rank, bytes", memory_table(memory, in_memory(self.peak_memory()))),
            ("Sent by each rank in a step, bytes", traffic_table(&traffic)),
            ("The strategies, MiB", self.comparison()),
            ("Refused by `train` on this machine", refusals::on_this_machine(&self.config)),
            ("To be considered", config_lints::all(&self.config, &self.mesh, &self.batch, in_memory(memory))),
        ])
    }

    fn model(&self) -> String {
        let elements = |parameter: &Parameter| parameter.global_shape().iter().product::<usize>();
        let parameters: usize = self.inventory.parameters.iter().map(elements).sum();
        let units = counted(self.inventory.units.len(), "unit");
        let flops = self.flops();
        format!("{parameters} parameters in {units}\n{flops:.3e} floating-point operations a rank and step")
    }

    fn arithmetic(&self) -> String {
        format!("{}\n{} tokens in a step", self.batch, self.batch.global() * self.config.model.context)
    }

    /// Returns a table that compares all strategies.
    fn comparison(&self) -> String {
        let uniform = self.units.iter().all(|&kind| kind == self.units[0]).then_some(self.units[0]);
        let row = |name: &str, units: &[ParallelKind], is_own: bool, alias: Option<&str>| {
            let (memory, traffic) = (self.memory_with(units), self.traffic_with(units));
            let sums = [in_memory(memory) as f64, traffic.total()];
            let bytes = memory.map(|bytes| bytes as f64).into_iter().chain(sums);
            let bytes = bytes.map(|bytes| format!("{:.2}", bytes / MIB));
            let note = format!("{} {}", alias.unwrap_or(""), if is_own { "<" } else { "" });
            std::iter::once(name.to_owned()).chain(bytes).chain([note.trim().to_owned()]).collect::<Vec<_>>()
        };
        let heads = AllocClass::ALL[..5].iter().map(|class| class.name()).chain(["in memory", "sent"]);
        let heads = std::iter::once("").chain(heads).map(str::to_owned).collect();
        let kinds = ParallelKind::ALL.iter().map(|kind| {
            row(kind.name(), &self.all_units(*kind), uniform == Some(*kind), kind.pytorch_name())
        });
        let mixed = uniform.is_none().then(|| row("strategy.units", &self.units, true, None));
        table(&std::iter::once(heads).chain(kinds).chain(mixed).collect::<Vec<_>>())
    }
}

/// Returns the first communicator of a group of this size; `None` for one rank.
fn described_group(ranks: usize) -> Result<Option<Communicator>> {
    if ranks == 1 {
        return Ok(None);
    }
    launch::check_thread_count(ranks)?;
    Ok(Communicator::local(ranks)?.into_iter().next())
}

fn memory_table(memory: [usize; 5], peak: usize) -> String {
    let rows = AllocClass::ALL.iter().map(|class| class.name()).zip(memory);
    let rows = rows.chain([("in memory", in_memory(memory)), ("at the peak", peak)]);
    table(&rows.map(|(name, bytes)| vec![name.to_owned(), bytes.to_string()]).collect::<Vec<_>>())
}

fn traffic_table(traffic: &Traffic) -> String {
    let Traffic {
        forward,
        backward,
        after_step,
        tensor_parallel: layers,
        sequence_parallel: sequences,
        experts,
        pipeline: stages,
    } = *traffic;
    let phases = [("forward", forward), ("backward", backward), ("after", after_step)];
    let sharing =
        [("in layers", layers), ("in sequences", sequences), ("to experts", experts), ("to stages", stages)];
    let rows = phases.into_iter().chain(sharing).chain([("in all", traffic.total())]);
    table(&rows.map(|(phase, bytes)| vec![phase.to_owned(), format!("{bytes:.0}")]).collect::<Vec<_>>())
}

const MIB: f64 = (1 << 20) as f64;
