//! Inputs of plans and predictions, from a configuration, and the configuration of a planned mesh.

use crate::config::{Config, Pipeline, StageSplit, new_model, optimizer};
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::Inventory;
use unisono_parallel::data_parallel::ReduceFrequency;
use unisono_parallel::mesh::Mesh;
use unisono_parallel::pipeline::{Order, Split};
use unisono_plan::cost::ModelShape;
use unisono_plan::planner::Candidate;
use unisono_plan::{BatchPlan, GptShape, RunShape, SequenceSharing, Stages, unit_costs};

impl Config {
    /// Returns the dimensions of the model on which predictions depend.
    pub(crate) fn gpt_shape(&self) -> GptShape {
        self.gpt_config().gpt_shape()
    }

    /// Returns the settings on which predictions depend, apart from mesh and batch.
    pub(crate) fn run_shape(&self) -> RunShape {
        let (kv_transfer, ulysses_ranks) = (self.context.kv_transfer, self.context.ulysses_ranks);
        RunShape {
            gpt: self.gpt_shape(),
            sharing: SequenceSharing { kv_transfer, ulysses_ranks },
            sequence_parallel: self.strategy.sequence_parallel,
            settings: self.settings(),
            optimizer: optimizer(self),
        }
    }

    /// Returns the shape of the configured language model for a plan, with the exact number of its
    /// parameters.
    ///
    /// # Errors
    /// Fails if the configuration is invalid.
    pub fn model_shape(&self) -> Result<ModelShape> {
        let (_, inventory) = new_model(self, None)?;
        Ok(ModelShape::from_inventory(&self.run_shape(), &inventory))
    }

    /// Divides the configured model over the pipeline of `mesh`.
    ///
    /// # Errors
    /// Fails for a schedule that does not exist or does not fit, and for a model with too few
    /// layers.
    pub(crate) fn stages(&self, mesh: &Mesh, batch: &BatchPlan, inventory: &Inventory) -> Result<Stages> {
        let (ranks, settings) = (mesh.degrees().pipeline, &self.pipeline);
        if ranks == 1 {
            return Ok(Stages::single());
        }
        self.check_depth_first()?;
        let order = Order::find(&settings.schedule)?;
        let chunks = if settings.chunks == 0 { order.usual_chunks() } else { settings.chunks };
        let schedule = order.schedule_parts(ranks, batch.accumulation, batch.micro_sequences, chunks)?;
        Stages::new(schedule, &self.stage_split(inventory), self.model.layers)
    }

    /// Returns the rule that divides layers into stages.
    fn stage_split(&self, inventory: &Inventory) -> Split {
        let settings = &self.pipeline;
        if !settings.stage_ends.is_empty() {
            return Split::Ends(settings.stage_ends.clone());
        }
        if settings.layers_per_stage > 0.0 {
            return Split::LayersPerStage(settings.layers_per_stage);
        }
        match settings.split {
            StageSplit::Even => Split::Even,
            StageSplit::Cost => Split::ByCost(unit_costs(&self.gpt_shape(), inventory)),
        }
    }

    /// Checks that the schedule of a pipeline alone gives the order of micro-batches.
    fn check_depth_first(&self) -> Result<()> {
        let (ranks, breadth) = (self.mesh.pipeline, self.data.breadth_first);
        if breadth > 1 {
            let what = format!("data.breadth_first = {breadth} with mesh.pipeline = {ranks}");
            let remedy = "set it to 1, and pipeline.schedule to \"breadth-first\"";
            return Err(Error::invalid(format!("{what}: the schedule has the order; {remedy}")));
        }
        Ok(())
    }

    /// Returns this configuration with the mesh, strategy and batch of a plan: a configuration for
    /// as many ranks. The axes of the mesh have their default order.
    ///
    /// # Errors
    /// Fails if the settings do not fit together.
    pub fn with_candidate(&self, candidate: &Candidate) -> Result<Self> {
        let parallel = &candidate.parallel;
        let mut planned = self.clone();
        // With the default order of axes, whose distances the prediction has.
        planned.mesh = parallel.degrees();
        planned.strategy.kind = parallel.kind;
        planned.strategy.units.clear();
        planned.strategy.reduce_each = match parallel.reduces_each {
            true => ReduceFrequency::MicroBatch,
            false => ReduceFrequency::Step,
        };
        planned.model.activation_checkpointing = parallel.activation_checkpointing;
        planned.data.micro_batch = candidate.micro_batch;
        planned.data.breadth_first = 1;
        planned.data.global_batch = candidate.micro_batch * candidate.accumulation * parallel.batch_ranks();
        planned.pipeline = Pipeline::default();
        // Reading the text again checks the values as the start of a run does.
        Self::parse(&planned.to_toml()?, &[])
    }
}
