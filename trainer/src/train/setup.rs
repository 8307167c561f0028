//! Creates a run from a configuration and a communicator.

use super::report::print_line;
use super::run::Run;
use super::trace::Trace;
use crate::checkpoint::{self, RunFiles, SavedBy};
use crate::config::{Config, Context, DeviceKind, Model, Positions, new_model_with_experts, optimizer};
use crate::data::{DatasetId, Sampler};
use crate::train::added_values::AddedNames;
use crate::train::checkpoint_writer::CheckpointWriter;
use crate::train::data_loader::{DataLoader, dataset_id};
use crate::train::header::RunHeader;
use crate::train::memory_check::check_fits;
use crate::train::memory_report::MemoryReport;
use crate::train::processors::warn_of_differences;
use crate::train::stage_times::StageTimes;
use crate::train::{Interrupt, pretrained};
use std::path::Path;
use std::sync::Arc;
use unisono::Communicator;
use unisono_nn::allocator::Allocator;
use unisono_nn::device::Device;
use unisono_nn::error::{Error, Result};
use unisono_nn::gpu_timeline::GpuTimeline;
use unisono_nn::ops::InstructionSets;
use unisono_nn::parameter::{Dtype, Inventory};
use unisono_nn::process_group::ProcessGroup;
use unisono_parallel::context_parallel::KvTransfer;
use unisono_parallel::data_parallel::{
    self, DataParallel, ExpertGroups, Mixed, ParallelKind, ProcessGroups, Settings,
};
use unisono_parallel::experts::ExpertParallel;
use unisono_parallel::mesh::{GroupKind, Mesh, MeshGroups, SeedSource};
use unisono_plan::cost::{CostModel, flops_per_sample};

impl Run {
    /// Creates the state of this rank of `world`, and resumes from a checkpoint if configured. All
    /// ranks must call this.
    ///
    /// # Errors
    /// Fails if settings do not fit together, or a file or a collective fails.
    pub fn new(config: &Config, world: Communicator) -> Result<Self> {
        Self::create(config, world, |_| ())
    }

    /// Creates a run as [`Run::new`] does. The reporting rank calls `announce` with the description
    /// of the run before it allocates weights.
    pub(super) fn create(
        config: &Config,
        world: Communicator,
        announce: impl FnOnce(RunHeader<'_>),
    ) -> Result<Self> {
        let mut run = Self::without_state(config, world, announce)?;
        warn_of_differences(&run.world, config, &run.groups.mesh(), InstructionSets::current())?;
        run.memory.reset_peaks();
        // A checkpoint has weights of its own, which the files of `model.from` must not replace.
        let resumes = config.checkpoint.resume && run.resume()?;
        if !resumes {
            run.load_pretrained()?;
        }
        Ok(run)
    }

    /// Creates a run with initial weights.
    fn without_state(
        config: &Config,
        world: Communicator,
        announce: impl FnOnce(RunHeader<'_>),
    ) -> Result<Self> {
        let mesh = mesh(config, world.size())?;
        let batch = config.batch(&mesh)?;
        let feed = DataLoader::open(config)?;
        let data = agreed_dataset(&world, config, &feed)?;
        let files = agreed_files(&world, config)?;
        let groups = MeshGroups::new(&world, mesh)?;
        let tensor = groups.get(GroupKind::Tensor);
        let (memory, settings) = (Allocator::default(), config.settings());
        let device = device(config, &world, &memory)?;
        let gpu = device.as_ref().map(|device| device.compute().stream().gpu());
        let layers = tensor.map(|tensor| ProcessGroup::new(tensor.clone(), gpu)).transpose()?;
        let sharing = groups.get(GroupKind::Expert).map(Communicator::duplicate).transpose()?;
        let (model, mut inventory) =
            new_model_with_experts(config, layers.as_ref(), ExpertParallel::new(sharing))?;
        let (stages, stage) = (config.stages(&mesh, &batch, &inventory)?, groups.coordinates().pipeline);
        let units = config.strategy.unit_kinds(&inventory)?;
        let run = config.run_shape();
        let flops_per_sample = flops_per_sample(&run.gpt, &inventory);
        let shares = stages.keep_own(stage, &mut inventory);
        let inventory = Arc::new(inventory);
        let plan = CostModel { run: &run, inventory: &inventory, mesh, batch, stages: &stages, stage };
        let formulas = plan.memory(&units);
        if world.rank() == 0 {
            announce(RunHeader { config, plan: &plan, loader: &feed, units: &units, formulas });
        }
        // Weights that fill the host would kill ranks without a message, so formulas decide first.
        check_fits(&world, config, &plan, plan.memory_at_peak(&units))?;
        let team = process_groups(&groups, shares)?;
        let chunks = groups.get(GroupKind::SequenceData).map(Communicator::duplicate).transpose()?;
        let trace = trace(config, device.as_ref())?;
        let flat = flat_memory(config, device.as_ref(), &memory).with_timeline(trace.gpu.clone());
        let strategy = strategy(&units, &inventory, team, &settings, &flat)?;
        let seeding = SeedSource::new(u64::from(config.seed), groups.coordinates());
        let sampler = sampler(config, &feed, &groups)?;
        Ok(Self {
            config: config.clone(),
            world,
            groups,
            sequence_group: chunks,
            tensor_group: layers,
            program: stages.program(stage, &batch, &inventory),
            validation: stages.forward_program(stage, &inventory),
            batch,
            loader: feed,
            dataset: data,
            sampler,
            seeds: seeding,
            model,
            inventory,
            memory,
            device,
            strategy,
            optimizer: optimizer(config),
            train_step: 0,
            memory_report: MemoryReport { formulas, ..MemoryReport::default() },
            flops_per_sample,
            worked: StageTimes::default(),
            added_names: AddedNames::default(),
            trace,
            interrupt: Interrupt::default(),
            writer: CheckpointWriter::default(),
            files,
            read_ahead: None,
        })
    }

    /// Resumes from the last checkpoint, and returns true if there is one. Reports if there is
    /// none, or if no steps remain.
    fn resume(&mut self) -> Result<bool> {
        let root = &self.config.checkpoint.folder;
        let Some(folder) = checkpoint::latest(Path::new(root)) else {
            self.log(&format!("no checkpoint in `{root}` to go on from: beginning at step 1"));
            return Ok(false);
        };
        self.load(&folder).map_err(|error| checkpoint::with_last_good(error, &folder))?;
        let (taken, steps) = (self.train_step, self.config.schedule.steps);
        if taken >= steps {
            let folder = folder.display();
            self.log(&format!(
                "`{folder}` is at step {taken} of {steps}: no steps remain; raise schedule.steps to continue"
            ));
        }
        Ok(true)
    }

    /// Keeps the interval of checkpoints of the saved configuration, if this run has none of its
    /// own.
    pub(super) fn keep_saving(&mut self, saved: &str) {
        let saved = saved.parse::<toml::Table>().unwrap_or_default();
        let every = saved.get("checkpoint").and_then(|section| section.get("every")?.as_integer());
        let every = every.map_or(0, |every| u64::try_from(every).unwrap_or(0));
        if self.config.checkpoint.every == 0 && every > 0 && self.config.checkpoint.last {
            self.config.checkpoint.every = every;
            self.log(&format!("checkpoint.every = {every}, as before"));
        }
    }

    /// Logs one line for the user.
    pub(super) fn log(&self, what: &str) {
        if self.is_root() {
            print_line(what);
        }
    }
}

/// Reads the tokenizer's file on rank 0, if there is one, and the files of the model. They are read
/// at the start, because a checkpoint must not fail later for a file that was moved meanwhile.
fn agreed_files(world: &Communicator, config: &Config) -> Result<RunFiles> {
    let (model, path) = (config.model.from.as_str(), config.data.tokenizer.as_str());
    if model.is_empty() && path.is_empty() {
        return Ok(RunFiles::default());
    }
    let who = SavedBy { world: Some(world), ..SavedBy::default() };
    let read = if who.rank() == 0 { RunFiles::read(model, path) } else { Ok(RunFiles::default()) };
    who.agree_on_result(read, "reading the tokenizer")
}

/// Returns the groups of the strategy. `shares` is true if another stage has one of this rank's
/// parameters too.
fn process_groups(groups: &MeshGroups, shares: bool) -> Result<ProcessGroups> {
    let experts = groups.get(GroupKind::Expert).map(|sharing| ExpertGroups {
        sharing: sharing.clone(),
        same: groups.get(GroupKind::ExpertData).cloned(),
    });
    let team = ProcessGroups::new(groups.get(GroupKind::Data).cloned(), groups.get(GroupKind::Tensor))?;
    Ok(team.with_pipeline(groups.get(GroupKind::Pipeline), shares)?.with_experts(experts))
}

/// Returns the mesh for this number of ranks, if its kinds of parallelism and the files of the
/// model are supported.
pub(super) fn mesh(config: &Config, ranks: usize) -> Result<Mesh> {
    let mesh = Mesh::new(ranks, config.mesh)?;
    pretrained::check_supported(config)?;
    check_sequence_sharding(config, &mesh)?;
    check_shard_ranks(config, &mesh)?;
    Ok(mesh)
}

/// Returns the device of the computation, if it is not the CPU.
fn device(config: &Config, world: &Communicator, memory: &Allocator) -> Result<Option<Device>> {
    check_device_supported(config)?;
    let gpu = match config.device {
        DeviceKind::Cpu => return Ok(None),
        DeviceKind::Cuda => Device::gpu_for_rank(world.rank())?,
        DeviceKind::Software => Device::software()?,
    };
    Device::new(&gpu, memory).map(Some)
}

/// Returns the allocator of flat buffers: in the memory of the GPU unless an option keeps them on
/// the host.
fn flat_memory(config: &Config, device: Option<&Device>, memory: &Allocator) -> Allocator {
    let device = device.filter(|_| host_only_option(config).is_none());
    device.map_or_else(|| memory.clone(), |device| memory.with_lane(device.compute()))
}

/// Returns an empty trace, also of the GPU, as the configuration asks for it.
fn trace(config: &Config, device: Option<&Device>) -> Result<Trace> {
    let is_on = !config.log.trace.is_empty();
    let mut trace = Trace::new(is_on);
    let traced = device.filter(|_| is_on);
    trace.gpu = traced.map(|device| GpuTimeline::new(device.compute().stream())).transpose()?;
    Ok(trace)
}

/// Returns the setting that keeps flat buffers on the host although a GPU computes, if there is
/// one.
pub(super) fn host_only_option(config: &Config) -> Option<&'static str> {
    (!config.strategy.offload.is_empty())
        .then_some("strategy.offload keeps the optimizer's state in files of the host")
}

/// Checks that the GPU has kernels for the configuration, if a GPU computes.
pub(super) fn check_device_supported(config: &Config) -> Result<()> {
    if config.device == DeviceKind::Cpu {
        return Ok(());
    }
    let only_on_the_cpu = [
        ("mesh.sequence_data", config.mesh.sequence_data),
        ("model.cross_entropy_splits", config.model.cross_entropy_splits),
        ("data.micro_sequences", config.data.micro_sequences),
    ];
    let degree = only_on_the_cpu.into_iter().find(|(_, value)| *value > 1);
    let degree = degree.map(|(key, value)| (key, value.to_string(), "1".to_owned()));
    let Model { positions, heads, kv_heads, qk_norm, .. } = config.model;
    let rotary = (positions == Positions::Rotary)
        .then(|| ("model.positions", "\"rotary\"".to_owned(), "\"learned\"".to_owned()));
    let count = config.experts.count;
    let experts = (count > 0).then(|| ("experts.count", count.to_string(), "0".to_owned()));
    let grouped = ![0, heads].contains(&kv_heads);
    let grouped = grouped.then(|| ("model.kv_heads", kv_heads.to_string(), heads.to_string()));
    let norm = qk_norm.then(|| ("model.qk_norm", "true".to_owned(), "false".to_owned()));
    let narrow = config.optimizer.moment_dtype != Dtype::F32 && host_only_option(config).is_none();
    let narrow = narrow.then(|| ("optimizer.moment_dtype", "\"bf16\"".to_owned(), "\"f32\"".to_owned()));
    match degree.or(experts).or(rotary).or(grouped).or(norm).or(narrow) {
        Some((key, value, other)) => {
            let what = format!("{key} = {value} with a device that is not the CPU: not part of this build");
            Err(Error::Unsupported(format!("{what}; set {key} to {other}, or device to \"cpu\"")))
        }
        None => Ok(()),
    }
}

/// Checks that sequences can be split into equal chunks, and that their padding is supported.
fn check_sequence_sharding(config: &Config, mesh: &Mesh) -> Result<()> {
    let (degree, context) = (mesh.degrees().sequence_data, config.model.context);
    let (parts, tokens) = (config.data.micro_sequences, context.div_ceil(degree));
    if !tokens.is_multiple_of(parts) {
        let what = format!("data.micro_sequences = {parts} does not divide the {tokens} tokens");
        let rule = "model.context / mesh.sequence_data";
        return Err(Error::invalid(format!("{what} of a rank's sequence ({rule})")));
    }
    check_padding(config)?;
    let Context { kv_transfer, ulysses_ranks, .. } = config.context;
    if ulysses_ranks != 1 && kv_transfer != KvTransfer::Ring {
        let what = format!("context.ulysses_ranks = {ulysses_ranks} is for context.kv_transfer = \"ring\"");
        return Err(Error::invalid(format!("{what}; \"ulysses\" has all of mesh.sequence_data")));
    }
    if ulysses_ranks == 0 || !degree.is_multiple_of(ulysses_ranks) {
        let what = format!("context.ulysses_ranks = {ulysses_ranks} does not divide mesh.sequence_data");
        return Err(Error::invalid(format!("{what} = {degree}")));
    }
    if degree > 1 && kv_transfer != KvTransfer::Gather && parts > 1 {
        let what = format!("data.micro_sequences = {parts} with a context.kv_transfer other than \"gather\"");
        return Err(Error::Unsupported(format!(
            "{what}: not part of this build; set one of them to its default"
        )));
    }
    Ok(())
}

/// Checks that nothing counts positions that fill up sequences. Experts would: a router chooses for
/// padding as for tokens, and its loads, capacities and losses include all rows.
fn check_padding(config: &Config) -> Result<()> {
    let (padding, context, experts) = (config.sequence_padding(), config.model.context, config.experts.count);
    if padding == 0 || experts == 0 {
        return Ok(());
    }
    let unit = config.sequence_unit().unwrap_or(1);
    let nearest = [(context + padding).saturating_sub(unit), context + padding];
    let legal = nearest.into_iter().filter(|&context| context > 0).map(|context| context.to_string());
    Err(Error::Unsupported(format!(
        "ranks divide sequences in multiples of {unit} positions, so model.context = {context} is padded with \
         {padding}, which experts (experts.count = {experts}) would count: not part of this build; set model.context \
         to {}",
        legal.collect::<Vec<_>>().join(" or ")
    )))
}

/// Checks that data ranks, and those with the same experts, form equal groups that divide state.
fn check_shard_ranks(config: &Config, mesh: &Mesh) -> Result<()> {
    let (shards, data, expert) = (config.strategy.shard_ranks, mesh.data_size(), mesh.degrees().expert);
    if shards == 0 {
        return Ok(());
    }
    if !data.is_multiple_of(shards) {
        let what = format!("strategy.shard_ranks = {shards} does not divide the data parallel degree {data}");
        let legal = (1..=data).filter(|&shards| data.is_multiple_of(shards));
        let legal: Vec<_> = legal.map(|shards| shards.to_string()).collect();
        return Err(Error::invalid(format!("{what}; on this mesh: {}", legal.join(", "))));
    }
    if !shards.is_multiple_of(expert) && !expert.is_multiple_of(shards) {
        let what = format!("strategy.shard_ranks = {shards} with mesh.expert = {expert}");
        return Err(Error::invalid(format!("{what}: one of them must be a multiple of the other")));
    }
    Ok(())
}

/// Returns the identity of the data, if all ranks have the same configuration and data, and if no
/// rank finds a token beyond the vocabulary in its part of them.
fn agreed_dataset(world: &Communicator, config: &Config, feed: &DataLoader) -> Result<DatasetId> {
    let data = dataset_id(&feed.training, &config.data.path)?;
    // Ranks with other settings would start other collectives. With other data, the shares of a
    // batch would not be parts of one.
    let mine = [unisono_nn::random::hash_text(&config.to_toml()?), data.samples, data.hash];
    let mut identities = vec![0; mine.len() * world.size()];
    world.all_gather(&mine, &mut identities)?;
    match identities.chunks_exact(mine.len()).position(|other| other != &identities[..mine.len()]) {
        Some(rank) => {
            let what = format!("rank {rank} has another configuration or other data than rank 0");
            Err(Error::invalid(what))
        }
        None => {
            // Ranks examine different parts, so one of them can fail alone. The others would wait
            // for it in the next collective.
            let examined = feed.examine(world.rank(), world.size());
            let who = SavedBy { world: Some(world), ..SavedBy::default() };
            who.agree_on_result(examined, "examining the tokens of a file")?;
            Ok(data)
        }
    }
}

/// Creates the order of this rank's samples.
fn sampler(config: &Config, feed: &DataLoader, groups: &MeshGroups) -> Result<Sampler> {
    let shuffle = config.data.shuffle.then_some(u64::from(config.seed));
    let batch = config.data.global_batch as u64;
    let batches = Sampler::new(feed.training.count(), batch, shuffle, config.data.last_batch)?;
    batches.with_shard(groups.coordinates().batch_data, groups.mesh().batch_data_size())
}

/// Creates the strategy of a model whose units have the strategies `kinds`.
fn strategy(
    kinds: &[ParallelKind],
    inventory: &Arc<Inventory>,
    team: ProcessGroups,
    settings: &Settings,
    memory: &Allocator,
) -> Result<Box<dyn DataParallel>> {
    let replicates = kinds[0] != ParallelKind::Replicated
        && inventory.parameters.iter().any(|parameter| settings.replicates(parameter));
    // Experts are averaged over other ranks than the rest, so they are a part with groups of their
    // own, also if all units have one strategy.
    if kinds.iter().any(|&other| other != kinds[0]) || replicates || team.experts.is_some() {
        return Ok(Box::new(Mixed::new(kinds, inventory, &team, settings, memory)?));
    }
    data_parallel::new_strategy(kinds[0], inventory, team, settings, memory)
}
