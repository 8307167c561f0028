//! From a configuration and a communicator to a run.

use super::feed::Feed;
use super::formula::Plan;
use super::ledger::Ledger;
use super::network::Network;
use super::run::Run;
use super::trace::Trace;
use crate::checkpoint;
use crate::config::{Config, OptimiserKind};
use crate::data::Sampler;
use crate::error::{Error, Result};
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
        agree(&world, config, feed.training.count())?;
        let groups = Groups::new(&world, mesh)?;
        let tensor = groups.get(GroupKind::Tensor);
        let (network, inventory) = Network::new(config, feed.extents, tensor)?;
        let (memory, settings) = (Memory::default(), config.settings());
        let team = Team::new(groups.get(GroupKind::Data).cloned(), tensor)?;
        let strategy = parallel::make(config.strategy.kind(), &inventory, team, &settings, &memory)?;
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
            batch,
            feed,
            sampler,
            seeding,
            network,
            inventory,
            memory,
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

    /// Goes on from the last checkpoint, if there is one.
    fn resume(&mut self) -> Result<()> {
        match checkpoint::latest(Path::new(&self.config.checkpoint.folder)) {
            Some(folder) => self.load(&folder),
            None => Ok(()),
        }
    }
}

/// The mesh of so many ranks, if all its kinds of parallelism are there.
pub(crate) fn mesh(config: &Config, ranks: usize) -> Result<Mesh> {
    let mesh = Mesh::new(ranks, config.mesh)?;
    let absent = [("pipeline", config.mesh.pipeline), ("sequence_data", config.mesh.sequence_data)];
    if let Some((name, degree)) = absent.into_iter().find(|&(_, degree)| degree > 1) {
        return Err(Error::Unavailable(format!(
            "mesh.{name} = {degree}: not part of this build; set it to 1"
        )));
    }
    if config.mesh.tensor > 1 && config.optimiser.kind == OptimiserKind::Muon {
        let what = "optimiser.kind = \"muon\" with mesh.tensor > 1: not part of this build, as it needs whole matrices";
        return Err(Error::Unavailable(what.to_owned()));
    }
    Ok(mesh)
}

/// That all ranks have the same configuration and as much data.
fn agree(world: &Communicator, config: &Config, samples: u64) -> Result<()> {
    let mine = [crate::random::text(&config.to_toml()?), samples];
    let mut all = vec![0; 2 * world.ranks()];
    world.all_gather(&mine, &mut all)?;
    match all.chunks_exact(2).position(|other| other != &all[..2]) {
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
