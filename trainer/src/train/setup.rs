//! From a configuration and a communicator to a run.

use super::feed::Feed;
use super::formula::Plan;
use super::ledger::Ledger;
use super::network::Network;
use super::report::say;
use super::run::Run;
use super::trace::Trace;
use crate::checkpoint;
use crate::config::{Config, DeviceKind, ModelKind, OptimiserKind};
use crate::data::{Dataset, Sampler};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::flat::Ranks;
use crate::memory::Memory;
use crate::mesh::{GroupKind, Groups, Mesh, Seeding};
use crate::optim::{AdamW, Muon, Optimiser, Sgd};
use crate::parallel::{self, Team};
use std::path::Path;
use unisono::Communicator;

impl Run {
    /// Makes everything that this rank of `world` needs, and goes on from a checkpoint if the configuration says so.
    /// All ranks call it.
    ///
    /// # Errors
    /// For what does not go together, files that cannot be read, and of collectives.
    pub fn new(config: &Config, world: Communicator) -> Result<Self> {
        let mesh = mesh(config, world.ranks())?;
        let batch = config.batch(&mesh)?;
        let feed = Feed::open(config)?;
        let data = feed.training.dataset(&config.data.path)?;
        agree(&world, config, &data)?;
        let groups = Groups::new(&world, mesh)?;
        let tensor = groups.get(GroupKind::Tensor);
        let (memory, settings) = (Memory::default(), config.settings());
        let device = device(config, &world, &memory)?;
        let gpu = device.as_ref().map(|device| device.compute().stream().gpu());
        let layers = tensor.map(|tensor| Ranks::new(tensor.clone(), gpu)).transpose()?;
        let (network, inventory) = Network::new(config, feed.extents, layers.as_ref())?;
        let team = Team::new(groups.get(GroupKind::Data).cloned(), tensor)?;
        let chunks = groups.get(GroupKind::SequenceData).map(Communicator::duplicate).transpose()?;
        let flat = device.as_ref().filter(|_| on_host(config).is_none());
        let flat = flat.map_or_else(|| memory.clone(), |device| memory.on(device.compute()));
        let strategy = parallel::make(config.strategy.kind.strategy(), &inventory, team, &settings, &flat)?;
        let at = groups.coordinates();
        let seeding = Seeding::new(u64::from(config.seed), at);
        let sampler = sampler(config, &feed)?.share(at.batch_data, mesh.batch_data())?;
        let optimiser = optimiser(config);
        let plan = Plan { config, extents: feed.extents, inventory: &inventory, mesh, batch };
        let ledger = Ledger { formulas: plan.memory(config.strategy.kind, &*optimiser), ..Ledger::default() };
        let mut run = Self {
            config: config.clone(),
            world,
            groups,
            chunks,
            layers,
            batch,
            feed,
            data,
            sampler,
            seeding,
            network,
            inventory,
            memory,
            device,
            strategy,
            optimiser,
            step: 0,
            ledger,
            trace: Trace::new(!config.log.trace.is_empty()),
        };
        run.memory.forget_peaks();
        if config.checkpoint.resume {
            run.resume()?;
        }
        Ok(run)
    }

    /// Goes on from the last checkpoint, if there is one; says so where that leaves nothing to go on from, or to do.
    fn resume(&mut self) -> Result<()> {
        let root = &self.config.checkpoint.folder;
        let Some(folder) = checkpoint::latest(Path::new(root)) else {
            self.say(&format!("no checkpoint in `{root}` to go on from: beginning at step 1"));
            return Ok(());
        };
        self.load(&folder)?;
        let (taken, steps) = (self.step, self.config.schedule.steps);
        if taken >= steps {
            let folder = folder.display();
            self.say(&format!("`{folder}` is at step {taken} of {steps}: nothing is left to do; a larger schedule.steps goes on"));
        }
        Ok(())
    }

    /// One line for whoever started the run.
    fn say(&self, what: &str) {
        if self.speaks() {
            say(what);
        }
    }
}

/// The mesh of so many ranks, if all its kinds of parallelism are there.
pub(crate) fn mesh(config: &Config, ranks: usize) -> Result<Mesh> {
    let mesh = Mesh::new(ranks, config.mesh)?;
    if config.mesh.pipeline > 1 {
        let what = format!("mesh.pipeline = {}: not part of this build; set it to 1", config.mesh.pipeline);
        return Err(Error::Unavailable(what));
    }
    cut_sequences(config, &mesh)?;
    Ok(mesh)
}

/// What computes, if it is not the CPU.
fn device(config: &Config, world: &Communicator, memory: &Memory) -> Result<Option<Device>> {
    if config.device != DeviceKind::Cpu {
        computes_elsewhere(config)?;
    }
    let gpu = match config.device {
        DeviceKind::Cpu => return Ok(None),
        DeviceKind::Cuda => Device::of_rank(world.rank())?,
        DeviceKind::Software => Device::software()?,
    };
    Device::new(&gpu, memory).map(Some)
}

/// Why flat memory stays on the host though a device computes, if it does.
pub(super) fn on_host(config: &Config) -> Option<&'static str> {
    (!config.strategy.offload.is_empty())
        .then_some("strategy.offload keeps the optimiser's state in files of the host")
}

/// That there are kernels for all of it.
fn computes_elsewhere(config: &Config) -> Result<()> {
    let only_on_the_cpu = [
        ("mesh.sequence_data", config.mesh.sequence_data),
        ("model.cross_entropy_splits", config.model.cross_entropy_splits),
    ];
    match only_on_the_cpu.into_iter().find(|(_, value)| *value > 1) {
        Some((key, value)) => {
            let what = format!("{key} = {value} with a device that is not the CPU: not part of this build");
            Err(Error::Unavailable(format!("{what}; set {key} to 1, or device to \"cpu\"")))
        }
        None => Ok(()),
    }
}

/// That sequences can be cut into chunks.
fn cut_sequences(config: &Config, mesh: &Mesh) -> Result<()> {
    let (degree, context) = (mesh.degrees().sequence_data, config.model.context);
    if degree > 1 && config.model.kind == ModelKind::Mlp {
        let what = format!("mesh.sequence_data = {degree}: a perceptron has no sequences; set it to 1");
        return Err(Error::illegal(what));
    }
    if !context.is_multiple_of(degree) {
        let what = format!("mesh.sequence_data = {degree} does not divide model.context = {context}");
        let legal: Vec<_> = (1..=mesh.data())
            .filter(|&degree| mesh.data().is_multiple_of(degree) && context.is_multiple_of(degree))
            .map(|degree| degree.to_string())
            .collect();
        return Err(Error::illegal(format!("{what}; on this mesh: {}", legal.join(", "))));
    }
    Ok(())
}

/// That all ranks have the same configuration and the same data.
fn agree(world: &Communicator, config: &Config, data: &Dataset) -> Result<()> {
    let mine = [crate::random::text(&config.to_toml()?), data.samples, data.hash];
    let mut all = vec![0; mine.len() * world.ranks()];
    world.all_gather(&mine, &mut all)?;
    match all.chunks_exact(mine.len()).position(|other| other != &all[..mine.len()]) {
        Some(rank) => {
            let what = format!("rank {rank} has another configuration or other data than rank 0");
            Err(Error::illegal(what))
        }
        None => Ok(()),
    }
}

fn sampler(config: &Config, feed: &Feed) -> Result<Sampler> {
    let shuffle = config.data.shuffle.then_some(u64::from(config.seed));
    Sampler::new(feed.training.count(), config.data.global_batch as u64, shuffle, config.data.tail)
}

/// The configured optimiser.
pub(super) fn optimiser(config: &Config) -> Box<dyn Optimiser> {
    let own = &config.optimiser;
    let (momentum, decay) = (own.momentum as f32, own.weight_decay as f32);
    let betas = (own.beta1 as f32, own.beta2 as f32);
    let adamw = AdamW { betas, epsilon: own.epsilon as f32, decay };
    match own.kind {
        OptimiserKind::Adamw => Box::new(adamw),
        OptimiserKind::Sgd => Box::new(Sgd { momentum, decay }),
        OptimiserKind::Muon => Box::new(Muon { momentum, decay, rest: adamw, ..Muon::default() }),
    }
}
