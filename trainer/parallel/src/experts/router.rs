//! Choice of the experts of each token.

use super::balance::{BalanceLoss, TokenRow};
use super::capacity::excess;
use super::scores::{self, Weighting};
use super::{ExpertBalance, ExpertShape, Experts};
use unisono_nn::error::Result;
use unisono_nn::ops::{Mat, Operand};
use unisono_nn::parameter::{Init, Parameter, ParameterId, Registry};
use unisono_nn::pass::Pass;
use unisono_nn::tensor::Tensor;

/// Computes scores of all experts for each token, and chooses the best.
///
/// Parameters are `weight` of experts × features and, with balancing by biases, `bias`. The bias of
/// an expert is added to its score for the choice only.
pub(super) struct Router {
    weight: ParameterId,
    bias: Option<ParameterId>,
    experts: Experts,
    features: usize,
    /// Path in the model, for reports.
    path: String,
    /// Number of tensor parallel ranks. They make the same choices, and each has a part of the
    /// gradient.
    replicas: usize,
}

/// Experts of each token of a micro-batch.
pub(super) struct Routing {
    /// Scores: tokens × experts.
    scores: Tensor,
    /// Log-sum-exp of the logits of each token, if their loss is on.
    log_sums: Option<Tensor>,
    balance: Option<BalanceLoss>,
    /// Number of tokens that chose each expert, before any is dropped.
    loads: Vec<u32>,
    /// Choices: the experts of each token, from the best.
    pub(super) chosen: Vec<u32>,
    /// True for each choice beyond the capacity of its expert; empty without a capacity, and
    /// outside of training.
    pub(super) dropped: Vec<bool>,
    /// Weights of the choices: tokens × experts per token.
    pub(super) weights: Tensor,
}

impl Router {
    /// Adds the parameters. `replicas` is the number of tensor parallel ranks.
    pub(super) fn new(
        registry: &mut Registry,
        experts: &Experts,
        shape: &ExpertShape,
        replicas: usize,
    ) -> Self {
        let add = |registry: &mut Registry| {
            let weight = registry.add(Parameter::new(
                "weight",
                &[experts.count, shape.features],
                shape.init[0].weight,
            ));
            let bias = Parameter::new("bias", &[experts.count], Init::Zeros);
            let bias = Parameter { sign_rate: Some(experts.bias_rate as f32), ..bias };
            (weight, (experts.balance == ExpertBalance::Bias).then(|| registry.add(bias)))
        };
        let path = registry.path();
        let (weight, bias) =
            // Tensor parallel ranks have parts of the experts, so each knows a part of the gradient
            // of a choice.
            registry.with_partial_grads(replicas > 1, |registry| registry.scope("router", add));
        Self { weight, bias, experts: *experts, features: shape.features, path, replicas }
    }

    /// Chooses the experts of each token. In training, also adds the losses and drops choices.
    pub(super) fn forward(&self, pass: &mut Pass<'_>, input: &Tensor) -> Result<Routing> {
        let Experts { count, per_token, score, normalize, scale, .. } = self.experts;
        let rows = input.rows();
        let mut scores = pass.tensor(rows, count);
        let weight = pass.weights_view(self.weight)?;
        let matrix = Mat::new(weight.values(), count, self.features);
        pass.ops().matmul(scores.matrix_mut(), 0.0, 1.0, input.matrix(), matrix.t())?;
        let (mut log_sums, mut weights) = (pass.tensor(rows, 1), pass.tensor(rows, per_token));
        let mut chosen = vec![0; rows * per_token];
        let (bias, mut order) = (self.bias.map(|bias| pass.weights(bias)), Vec::with_capacity(count));
        let weighting = Weighting { normalize, scale: scale as f32 };
        for (row, chosen) in chosen.chunks_exact_mut(per_token).enumerate() {
            let scores = scores.row_mut(row);
            log_sums.row_mut(row)[0] = scores::score(score, scores);
            scores::choose(scores, bias, &mut order, chosen);
            weighting.weights(scores, chosen, weights.row_mut(row));
        }
        let mut loads = vec![0; count];
        chosen.iter().for_each(|&expert| loads[expert as usize] += 1);
        let log_sums = (self.experts.z_loss > 0.0).then_some(log_sums);
        let mut routing =
            Routing { scores, log_sums, balance: None, loads, chosen, dropped: Vec::new(), weights };
        if pass.keeps() {
            self.add_losses(pass, &mut routing)?;
            routing.dropped = excess(pass, &self.experts, &routing.chosen)?;
            self.report(pass, &routing);
        }
        Ok(routing)
    }

    /// Adds the losses of the router to that of the pass.
    fn add_losses(&self, pass: &mut Pass<'_>, routing: &mut Routing) -> Result<()> {
        let Experts { balance, balance_loss, z_loss, .. } = self.experts;
        if balance == ExpertBalance::Loss && balance_loss > 0.0 {
            let (scores, chosen) = (routing.scores.data(), &routing.chosen);
            let balance = BalanceLoss::new(pass, &self.experts, scores, chosen)?;
            pass.add_loss("balance", balance.value, balance_loss as f32);
            routing.balance = Some(balance);
        }
        if let Some(log_sums) = &routing.log_sums {
            let squares: f64 = log_sums.data().iter().map(|sum| f64::from(*sum).powi(2)).sum();
            pass.add_loss("router_z", (squares / log_sums.rows() as f64) as f32, z_loss as f32);
        }
        Ok(())
    }

    /// Reports the loads, and the share of choices that were dropped.
    fn report(&self, pass: &mut Pass<'_>, routing: &Routing) {
        pass.added_mut().expert_load(&self.path, &routing.loads);
        if self.experts.capacity_factor > 0.0 {
            let dropped = routing.dropped.iter().filter(|&&is| is).count();
            pass.added_mut().metric("dropped", dropped as f32 / routing.chosen.len() as f32);
        }
    }

    /// Returns the gradient of the input, from that of the weights of each token's experts.
    pub(super) fn backward(
        &self,
        pass: &mut Pass<'_>,
        routing: &Routing,
        input: &Tensor,
        of_weights: &Tensor,
    ) -> Result<Tensor> {
        let of_logits = self.logits_gradient(pass, routing, of_weights);
        if let Some(bias) = self.bias {
            let (choices, loads) = (routing.chosen.len() as f32, &routing.loads);
            // Loads beyond the mean, times the number of experts: a step uses their signs only.
            // They are whole numbers below 2^24, so that sums over ranks are exact.
            let slopes: Vec<_> =
                loads.iter().map(|&load| load as f32 * loads.len() as f32 - choices).collect();
            pass.accumulate(bias, |_, gradient| {
                gradient.host().iter_mut().zip(&slopes).for_each(|(sum, slope)| *sum += slope);
                Ok(())
            })?;
        }
        pass.accumulate(self.weight, |ops, gradient| {
            let gradient = Mat::new(gradient, self.experts.count, self.features);
            ops.matmul(gradient, 1.0, 1.0, of_logits.matrix().t(), input.matrix())
        })?;
        let mut result = pass.tensor(input.rows(), self.features);
        let weight = pass.weights_view(self.weight)?;
        let matrix = Mat::new(weight.values(), self.experts.count, self.features);
        pass.ops().matmul(result.matrix_mut(), 0.0, 1.0, of_logits.matrix(), matrix)?;
        Ok(result)
    }

    /// Returns the gradient of the logits: this rank's part of it.
    fn logits_gradient(&self, pass: &mut Pass<'_>, routing: &Routing, of_weights: &Tensor) -> Tensor {
        let Experts { per_token, score, normalize, scale, .. } = self.experts;
        // Gradients of the router are summed over tensor parallel ranks, and each of them has the
        // whole of these losses.
        let share = 1.0 / self.replicas as f32;
        let of_log_sums = routing.log_sums.as_ref().map(|sums| (sums, share * pass.added_loss_gradient()));
        let of_balance =
            routing.balance.as_ref().map(|balance| (balance, share * pass.added_loss_gradient()));
        let (rows, length) = (routing.scores.rows(), pass.sequence());
        let mut gradient = Tensor::zeros(pass.memory(), rows, routing.scores.columns());
        let weighting = Weighting { normalize, scale: scale as f32 };
        for (row, chosen) in routing.chosen.chunks_exact(per_token).enumerate() {
            let (scores, scores_gradient) = (routing.scores.row(row), gradient.row_mut(row));
            weighting.backward(scores, chosen, of_weights.row(row), scores_gradient);
            if let Some((balance, slope)) = of_balance {
                let token = TokenRow { row, rows, length };
                balance.add_gradient(&self.experts, token, slope, scores, scores_gradient);
            }
            scores::score_backward(score, scores, scores_gradient);
            if let Some((sums, slope)) = of_log_sums {
                // The gradient of the log-sum-exp is the softmax.
                let factor = 2.0 * slope * sums.row(row)[0] / rows as f32;
                scores_gradient.iter_mut().zip(scores).for_each(|(sum, score)| *sum += factor * score);
            }
        }
        gradient
    }
}
