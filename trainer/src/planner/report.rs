//! The plan, as numbers and as text.

use crate::error::{Error, Result};
use crate::planner::batch_recipe::BatchRecipe;
use crate::planner::format::{count, format_flops, row_of, size, table, time};
use crate::planner::hardware::Hardware;
use crate::planner::model_dims::{BytesPerParam, ModelDims};
use crate::planner::parallel_config::{KINDS, ParallelConfig, gigabytes};
use crate::planner::rules::{Decision, decide, rule_of_thumb};
use crate::planner::search::fastest;
use crate::planner::step_time::StepTime;
use crate::planner::{explain, warnings};
use crate::train::sections;
use serde::Serialize;

/// Everything that a plan says.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// What is trained.
    pub dims: ModelDims,
    /// Bytes of every parameter.
    pub bytes: BytesPerParam,
    /// On what.
    pub hardware: Hardware,
    /// By what share of a measured time the fitted link is wrong at most; none if none was fitted.
    pub fit_error: Option<f64>,
    /// How.
    pub decision: Decision,
    /// How it is usually done.
    pub rule_of_thumb: &'static str,
    /// In which batches; or why there are none, and what can be done.
    pub recipe: std::result::Result<BatchRecipe, String>,
    /// Bytes of a bucket of gradients.
    pub bucket: f64,
    /// The strategies of data ranks, on the decided mesh.
    pub strategies: Vec<StrategyRow>,
    /// What is likely to go wrong.
    pub warnings: Vec<String>,
}

/// One strategy of data ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StrategyRow {
    /// How the run is cut.
    pub parallel: ParallelConfig,
    /// Bytes of weights, gradients and optimizer's state of each rank.
    pub kept_bytes: [f64; 3],
    /// Bytes that each rank sends forward, backward, and after the step.
    pub sent_bytes: [f64; 3],
    /// Reductions and gatherings of a step.
    pub collectives: f64,
    /// Seconds of a step.
    pub step_time: StepTime,
}

impl PlanReport {
    /// For a step of so many tokens, and buckets of so many bytes.
    ///
    /// # Errors
    /// [`Error::Illegal`] if nothing makes the model fit.
    pub fn new(
        sizes: ModelDims,
        bytes: BytesPerParam,
        hardware: Hardware,
        tokens: usize,
        bucket: f64,
    ) -> Result<Self> {
        let decision = decide(&sizes, &bytes, &hardware)?;
        let recipe = match BatchRecipe::new(tokens, &sizes, &bytes, &hardware, &decision.parallel) {
            Err(Error::Invalid(what)) => Err(what),
            other => Ok(other?),
        };
        let batch = recipe.as_ref().map_or([1, 1], |recipe| [recipe.micro_batch, recipe.accumulation]);
        let row = |kind| {
            let cut = ParallelConfig { kind, ..decision.parallel };
            let (parameters, [micro, times]) = (cut.parameters(&sizes), batch);
            StrategyRow {
                parallel: cut,
                kept_bytes: cut.kept_bytes(&bytes, parameters),
                sent_bytes: cut.sent_bytes(&bytes, parameters, times),
                collectives: cut.collectives(&sizes, &bytes, bucket, times),
                step_time: StepTime::new(&sizes, &bytes, &hardware, &cut, [micro * times, times], bucket),
            }
        };
        let strategies: Vec<StrategyRow> = KINDS.into_iter().map(row).collect();
        let fits = |row: &StrategyRow| {
            row.parallel.needed_bytes(&sizes, &bytes, batch[0]) <= hardware.usable_memory()
        };
        let decision = fastest(decision, &strategies, bucket, fits);
        let own = strategies.iter().find(|row| row.parallel.kind == decision.parallel.kind);
        let warnings =
            warnings::all(&sizes, &bytes, &hardware, &decision.parallel, recipe.as_ref().ok(), own);
        let rule_of_thumb = rule_of_thumb(&sizes);
        Ok(Self {
            dims: sizes,
            bytes,
            hardware,
            fit_error: None,
            decision,
            rule_of_thumb,
            recipe,
            bucket,
            strategies,
            warnings,
        })
    }

    /// The plan, in words and tables.
    pub fn plan(&self) -> String {
        sections(&[
            ("Model", self.model()),
            ("Hardware", self.machine()),
            ("Strategy", self.strategy()),
            ("Batch", self.recipe.as_ref().map_or_else(Clone::clone, |recipe| recipe.lines().join("\n"))),
            ("Each rank, by strategy of the data ranks", self.comparison()),
            ("To be considered", self.warnings.join("\n")),
        ])
    }

    /// The formulas, with the numbers of this plan.
    pub fn explain(&self) -> String {
        explain::text(self)
    }

    /// All of it for programs.
    ///
    /// # Errors
    /// None that could be expected.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).map_err(|error| Error::invalid(error.to_string()))
    }

    fn model(&self) -> String {
        let ModelDims { parameters, layers, width, heads, sequence, .. } = self.dims;
        let own = format!(
            "{} parameters, {layers} layers of width {width}, {heads} heads, sequences of {sequence}",
            count(parameters)
        );
        let state = self.bytes.total();
        let ranks = (state * parameters / self.hardware.memory).ceil();
        format!(
            "{own}\n{} in 16 bits, {} to train ({state} bytes a parameter): the memory of {ranks} ranks, without activations",
            size(1e9 * gigabytes(parameters)),
            size(state * parameters),
        )
    }

    fn machine(&self) -> String {
        let Hardware { ranks, per_host, memory, flops, intra_host: within, inter_host: across, .. } =
            self.hardware;
        let link = |name: &str, link: crate::planner::Link| {
            format!("{name}: {} a message, {}/s", time(link.alpha), size(link.beta))
        };
        let own = format!(
            "{ranks} ranks, {per_host} a host, of {} and {}FLOP/s",
            size(memory),
            format_flops(flops)
        );
        let error =
            self.fit_error.map(|error| format!("\nmeasured times are met within {:.0} %", 100.0 * error));
        format!(
            "{own}\n{}\n{}{}",
            link("within a host", within),
            link("across hosts", across),
            error.unwrap_or_default()
        )
    }

    fn strategy(&self) -> String {
        let Decision { rule: leaf, parallel: cut, reason: why, unsupported: missing } = &self.decision;
        let ParallelConfig { tensor, pipeline, context, expert, data, .. } = cut;
        let factors =
            format!("{} ranks = tensor {tensor} x pipeline {pipeline} x data {data}", self.hardware.ranks);
        let within = format!("of the data ranks {context} share each sequence and {expert} the experts");
        let missing = missing.as_ref().map_or(String::new(), |missing| format!("\nhowever: {missing}"));
        format!(
            "{}: {why}\n{factors}; {within}\nusual for this size: {}{missing}",
            leaf.name(),
            self.rule_of_thumb
        )
    }

    fn comparison(&self) -> String {
        let heading = [
            "",
            "weights",
            "gradients",
            "state",
            "sent",
            "operations",
            "its time",
            "step",
            "computing",
            "no overlap",
        ];
        let row = |row: &StrategyRow| {
            let mark = if row.parallel.kind == self.decision.parallel.kind { " <" } else { "" };
            let [weights, gradients, state] = row.kept_bytes.map(size);
            let (sent, pace) = (size(row.sent_bytes.iter().sum()), &row.step_time);
            let share = format!("{:.0} %", 100.0 * pace.utilization());
            let name = format!("{}{mark}", row.parallel.kind.name());
            let operations = format!("{:.0}", row.collectives);
            vec![
                name,
                weights,
                gradients,
                state,
                sent,
                operations,
                time(pace.communication),
                time(pace.overlapped()),
                share,
                time(pace.naive()),
            ]
        };
        let rows: Vec<_> = std::iter::once(row_of(heading)).chain(self.strategies.iter().map(row)).collect();
        let activations = self.decision.parallel.activations(&self.dims);
        format!(
            "{}\nactivations of a sample: {}; no data rank shares another's",
            table(&rows),
            size(activations)
        )
    }
}
