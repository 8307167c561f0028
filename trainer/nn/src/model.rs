//! Interface of models.
//!
//! A model is a list of blocks, one for each unit of parameters. Nobody but the runner walks it,
//! in the order of a [`StepPlan`].

use crate::batch::Batch;
use crate::error::Result;
use crate::modules::Module;
use crate::parameter::UnitId;
use crate::pass::Pass;
use crate::step_plan::{StepPlan, Visit, Work};
use crate::tensor::Tensor;

/// Value between two blocks of a model: in forward, or its gradient in backward.
#[derive(Debug, Default)]
pub enum Flow {
    /// Nothing: the first block reads the data of the pass.
    #[default]
    Start,
    /// Rows of features.
    Features(Tensor),
    /// Mean loss of the micro-batch. In backward: the factor of the loss.
    Loss(f32),
}

impl Flow {
    /// Returns the features.
    ///
    /// # Panics
    /// Panics if there are none: the blocks of the model do not fit together.
    pub fn into_features(self) -> Tensor {
        match self {
            Self::Features(features) => features,
            other => panic!("a block wants features, and gets {other:?}"),
        }
    }

    /// Returns the loss, or its factor.
    ///
    /// # Panics
    /// Panics if there is none: the blocks of the model do not fit together.
    pub fn into_loss(self) -> f32 {
        match self {
            Self::Loss(loss) => loss,
            other => panic!("a block wants a loss, and gets {other:?}"),
        }
    }
}

/// Part of a model whose parameters are one unit. Computes the current micro-batch of the pass
/// while the weights of the unit are present.
pub trait Block: Send {
    /// Computes the output. The first block gets [`Flow::Start`], and the last one returns
    /// [`Flow::Loss`].
    ///
    /// # Errors
    /// Returns the error of a failed collective, or of the GPU driver.
    ///
    /// # Panics
    /// May panic for a flow of another kind or shape.
    fn forward(&self, pass: &mut Pass<'_>, input: Flow) -> Result<Flow>;

    /// Computes the gradient with respect to the input, and adds to the gradients of weights. The
    /// last block gets the factor of the loss, and the first one returns [`Flow::Start`].
    ///
    /// # Errors
    /// Returns the error of a failed collective, or of the GPU driver.
    ///
    /// # Panics
    /// May panic as [`Block::forward`] does.
    fn backward(&self, pass: &mut Pass<'_>, gradient: Flow) -> Result<Flow>;
}

/// Block in the middle of a model: a module.
pub struct ModuleBlock(pub Box<dyn Module>);

impl Block for ModuleBlock {
    fn forward(&self, pass: &mut Pass<'_>, input: Flow) -> Result<Flow> {
        self.0.forward(pass, input.into_features()).map(Flow::Features)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Flow) -> Result<Flow> {
        self.0.backward(pass, gradient.into_features()).map(Flow::Features)
    }
}

/// Model with a loss: a list of blocks.
///
/// A training loop calls [`Pass::begin_step`], [`set_batches`] and [`run_plan`] with one plan.
/// [`Model::forward`] and [`Model::backward`] are for tests and for single batches. They announce
/// no plan, so call [`Pass::begin_step`] first, unless the strategy is a
/// [`LocalStrategy`](crate::strategy::LocalStrategy).
pub trait Model: Send {
    /// Returns the number of blocks, which is the number of units.
    fn block_count(&self) -> usize;

    /// Returns the block of a unit.
    ///
    /// # Panics
    /// May panic if there is no such unit.
    fn block(&self, unit: UnitId) -> &dyn Block;

    /// Checks that the model can compute a batch.
    ///
    /// # Errors
    /// Fails for a batch of another kind or size.
    fn check(&self, pass: &Pass<'_>, batch: &Batch) -> Result<()>;

    /// Returns the rows and columns of the features between two blocks, for a micro-batch of the
    /// pass.
    ///
    /// # Errors
    /// Fails if they differ from block to block.
    fn feature_shape(&self, pass: &Pass<'_>, micro_batch: usize) -> Result<[usize; 2]>;

    /// Computes the mean loss of each micro-batch of the pass, all of them unit by unit. `batches`
    /// has one element for each micro-batch.
    ///
    /// # Errors
    /// Fails for an unsuitable batch. Returns the error of a failed collective.
    ///
    /// # Panics
    /// Panics as [`Pass::set_batches`] does.
    fn forward_each(&self, pass: &mut Pass<'_>, batches: &[Batch]) -> Result<Vec<f32>> {
        set_batches(self, pass, batches.to_vec())?;
        let plan = StepPlan::breadth_first(self.block_count(), batches.len(), batches.len().max(1));
        let mut flows: Vec<Flow> = batches.iter().map(|_| Flow::Start).collect();
        let forward = plan.visits().iter().filter(|visit| visit.work == Work::Forward);
        forward.into_iter().try_for_each(|visit| run_visit(self, pass, visit, &mut flows))?;
        Ok(flows.into_iter().map(Flow::into_loss).collect())
    }

    /// Computes the mean loss of `batch`, the only micro-batch.
    ///
    /// # Errors
    /// Fails as [`Model::forward_each`] does.
    fn forward(&self, pass: &mut Pass<'_>, batch: &Batch) -> Result<f32> {
        Ok(self.forward_each(pass, std::slice::from_ref(batch))?.into_iter().sum())
    }

    /// Adds the gradient of `scale` times the sum of the losses to the gradients of all parameters,
    /// after [`Model::forward_each`].
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn backward(&self, pass: &mut Pass<'_>, scale: f32) -> Result<()> {
        pass.set_loss_scale(scale);
        let plan = StepPlan::breadth_first(self.block_count(), pass.count(), pass.count().max(1));
        let mut flows: Vec<Flow> = (0..pass.count()).map(|_| Flow::Loss(scale)).collect();
        let mut backward = plan.visits().iter().filter(|visit| visit.work == Work::Backward);
        backward.try_for_each(|visit| run_visit(self, pass, visit, &mut flows))
    }
}

/// Sets the data of all micro-batches of a pass.
///
/// # Errors
/// Fails for a batch that does not suit the model.
///
/// # Panics
/// Panics as [`Pass::set_batches`] does.
pub fn set_batches<M: Model + ?Sized>(model: &M, pass: &mut Pass<'_>, batches: Vec<Batch>) -> Result<()> {
    // All batches are checked first, so that a wrong one leaves the pass as it was.
    batches.iter().try_for_each(|batch| model.check(pass, batch))?;
    pass.set_batches(batches);
    Ok(())
}

/// Computes one visit. Replaces the values of its micro-batches, which are `flows` in their order.
///
/// # Errors
/// Returns the error of a failed collective.
pub fn run_visit<M: Model + ?Sized>(
    model: &M,
    pass: &mut Pass<'_>,
    visit: &Visit,
    flows: &mut [Flow],
) -> Result<()> {
    let block = model.block(visit.unit);
    pass.visit(visit, |pass, index| {
        let flow = std::mem::take(&mut flows[index]);
        flows[index] = match visit.work {
            Work::Forward => block.forward(pass, flow)?,
            Work::Backward | Work::InputGrads => block.backward(pass, flow)?,
            Work::WeightGrads => {
                // Gradients of weights have no output, so the value of the micro-batch stays.
                pass.run_deferred(visit.unit)?;
                flow
            }
        };
        Ok(())
    })
}

/// Runs a plan without backward for the only micro-batch. Returns the output of the last block.
///
/// # Errors
/// Returns the error of a failed collective.
pub fn run_forward<M: Model + ?Sized>(model: &M, pass: &mut Pass<'_>, plan: &StepPlan) -> Result<Flow> {
    let mut flows = [Flow::Start];
    plan.visits().iter().try_for_each(|visit| run_visit(model, pass, visit, &mut flows))?;
    let [output] = flows;
    Ok(output)
}

/// Runs all visits of a plan, after [`set_batches`]. Returns the mean loss of each micro-batch.
/// Gradients are those of `scale` times the sum of these losses: 1 / micro-batches makes it their
/// mean.
///
/// # Errors
/// Returns the error of a failed collective.
pub fn run_plan<M: Model + ?Sized>(
    model: &M,
    pass: &mut Pass<'_>,
    plan: &StepPlan,
    scale: f32,
) -> Result<Vec<f32>> {
    pass.set_loss_scale(scale);
    let mut losses = vec![0.0; pass.count()];
    let mut flows: Vec<Flow> = losses.iter().map(|_| Flow::Start).collect();
    for visit in plan.visits() {
        let micro_batches = visit.micro_batches.clone();
        run_visit(model, pass, visit, &mut flows[micro_batches.clone()])?;
        for (flow, loss) in flows[micro_batches.clone()].iter_mut().zip(&mut losses[micro_batches]) {
            if let Flow::Loss(found) = flow {
                // Backward of this micro-batch begins with the same value, which then is the factor
                // of the loss.
                *loss = std::mem::replace(found, scale);
            }
        }
    }
    Ok(losses)
}
