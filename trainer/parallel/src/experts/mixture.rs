//! Mixture of experts as a module.

use super::dispatch::Dispatch;
use super::grouped::GroupedExperts;
use super::router::{Router, Routing};
use super::{ExpertParallel, ExpertShape, Experts};
use crate::tensor_parallel::TensorParallel;
use unisono_nn::error::Result;
use unisono_nn::modules::{Gelu, Linear, Module, Sequential, SwiGlu};
use unisono_nn::parameter::{Parameter, Registry};
use unisono_nn::pass::Pass;
use unisono_nn::tensor::Tensor;

/// Computes y = Σ w FFN(x) over the experts that a router chooses for each row, plus the shared
/// experts' FFN(x).
///
/// (rows, features) → (rows, features). Rows travel to the ranks of their experts while this rank
/// computes the shared experts, which every row uses. Saves the input, the rows of this rank's
/// experts, and the results of its tokens. In a pass on a GPU,
/// [`Error::Unsupported`](unisono_nn::Error::Unsupported) is the result.
///
/// ```
/// use unisono_nn::allocator::Allocator;
/// use unisono_parallel::experts::{ExpertParallel, ExpertShape, Experts, MixtureOfExperts};
/// use unisono_nn::modules::{LinearInit, Module};
/// use unisono_nn::parameter::Registry;
/// use unisono_nn::pass::{Pass, Seeds};
/// use unisono_nn::strategy::LocalStrategy;
/// use unisono_parallel::tensor_parallel::TensorParallel;
///
/// let (memory, mut registry) = (Allocator::default(), Registry::default());
/// let settings = Experts { count: 4, per_token: 2, ..Experts::default() };
/// let init = [LinearInit::fan_in(8), LinearInit::fan_in(16)];
/// let shape = ExpertShape { features: 8, hidden: 16, is_gated: true, init };
/// let (_, mixture) = registry.unit("mlp", |registry| {
///     let (split, parallel) = (TensorParallel::default(), ExpertParallel::default());
///     MixtureOfExperts::new(registry, &settings, shape, &split, &parallel)
/// });
/// let mut strategy = LocalStrategy::new(registry.finish(), &memory, 1);
/// let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
/// pass.set_sequence(5);
/// let rows = pass.tensor_from(5, 8, &[0.5; 40])?;
/// let output = mixture.forward(&mut pass, rows)?;
/// assert_eq!((output.rows(), output.columns()), (5, 8));
/// let loads = &pass.added_mut().take_sums().loads["mlp"];
/// assert_eq!(loads.iter().sum::<u64>(), 10);
/// # Ok::<(), unisono_nn::error::Error>(())
/// ```
pub struct MixtureOfExperts {
    pub(super) router: Router,
    pub(super) shared: Option<Box<dyn Module>>,
    pub(super) experts: GroupedExperts,
    settings: Experts,
    pub(super) parallel: ExpertParallel,
}

struct Saved {
    input: Tensor,
    routing: Routing,
    dispatch: Dispatch,
    results: Tensor,
}

impl MixtureOfExperts {
    /// Creates the module with `router`, `shared` and `experts.N`, which have no biases. The ranks
    /// of `split` have a part of each expert, and those of `parallel` some of the experts. With
    /// several ranks in `split`, put
    /// [`CopyToRegion`](crate::tensor_parallel::CopyToRegion) before it and
    /// [`ReduceFromRegion`](crate::tensor_parallel::ReduceFromRegion) after it.
    ///
    /// The number of experts per token must be from 1 to the number of experts, which the ranks of
    /// `parallel` must divide ([`ExpertParallel::check`]).
    ///
    /// # Panics
    /// Panics as [`Registry::add`] does.
    pub fn new(
        registry: &mut Registry,
        settings: &Experts,
        shape: ExpertShape,
        split: &TensorParallel,
        parallel: &ExpertParallel,
    ) -> Self {
        let router = Router::new(registry, settings, &shape, split.size());
        let shared = (settings.shared > 0).then(|| {
            let shape = ExpertShape { hidden: shape.hidden * settings.shared, ..shape };
            registry.scope("shared", |registry| feed_forward(registry, shape, split))
        });
        let own_experts = parallel.own_experts(settings.count);
        let experts = GroupedExperts::new(registry, settings.count, own_experts, shape, split);
        Self { router, shared, experts, settings: *settings, parallel: parallel.clone() }
    }
}

/// Creates this rank's part of the shared experts, as one feed-forward part.
fn feed_forward(registry: &mut Registry, shape: ExpertShape, split: &TensorParallel) -> Box<dyn Module> {
    let [input_weight, output_weight] = shape.weights(split);
    let mut linear = |name: &str, weight: Parameter| {
        let [outputs, inputs] = [weight.shape[0], weight.shape[1]];
        let weight = registry.scope(name, |registry| registry.add(weight));
        Box::new(Linear::from_parameters(weight, None, inputs, outputs)) as Box<dyn Module>
    };
    let (first, second) = (linear("c_fc", input_weight), linear("c_proj", output_weight));
    let activation: Box<dyn Module> = if shape.is_gated { Box::new(SwiGlu) } else { Box::new(Gelu::Tanh) };
    Box::new(Sequential(vec![first, activation, second]))
}

impl Module for MixtureOfExperts {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        pass.expect_host("mixtures of experts")?;
        let routing = self.router.forward(pass, &input)?;
        let Experts { count, per_token, .. } = self.settings;
        let dispatch = Dispatch::new(pass, self.parallel.group(), count, per_token, &routing)?;
        // Rows travel in the background, so shared experts hide the exchange.
        let under_way = dispatch.send(pass, &input, None);
        let mut output = match &self.shared {
            Some(shared) => shared.forward(pass, input.copy()?)?,
            None => Tensor::zeros(pass.memory(), input.rows(), input.columns()),
        };
        let rows = dispatch.receive(pass, under_way)?;
        let results = self.experts.forward(pass, rows, &dispatch.counts())?;
        // No computation is left that could hide the way back, so it is waited for at once.
        let results = dispatch.receive_back(pass, dispatch.send_back(pass, results))?;
        dispatch.combine(&results, Some(&routing.weights), &mut output);
        // Backward needs the results too, for the gradients of the weights of choices.
        pass.save(Saved { input, routing, dispatch, results });
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        let Saved { input, routing, dispatch, results } = pass.restore();
        let of_weights = dispatch.weight_gradients(pass, &gradient, &results);
        // The results have a row for each choice, and the next exchange needs as much memory again.
        drop(results);
        let rows = dispatch.send(pass, &gradient, Some(&routing.weights));
        let rows = dispatch.receive(pass, rows)?;
        let of_rows = self.experts.backward(pass, rows)?;
        // The gradients of shared experts and of the router need no rows of other ranks, so they
        // are computed while rows travel.
        let under_way = dispatch.send_back(pass, of_rows);
        let mut of_input = match &self.shared {
            Some(shared) => shared.backward(pass, gradient)?,
            None => Tensor::zeros(pass.memory(), input.rows(), input.columns()),
        };
        of_input.add(&self.router.backward(pass, &routing, &input, &of_weights)?)?;
        let of_rows = dispatch.receive_back(pass, under_way)?;
        dispatch.combine(&of_rows, None, &mut of_input);
        Ok(of_input)
    }
}
