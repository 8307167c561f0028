//! The plan, as numbers and as text.

use super::decide::{Decision, decide, rule_of_thumb};
use super::hardware::Hardware;
use super::pace::Pace;
use super::quickest::quickest;
use super::recipe::Recipe;
use super::sizes::{Bytes, Sizes};
use super::state::{Cut, KINDS, gigabytes};
use super::table::{cells, count, operations, size, table, time};
use super::{explain, warnings};
use crate::error::{Error, Result};
use crate::train::sections;
use serde::Serialize;

/// Everything that a plan says.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// What is trained.
    pub sizes: Sizes,
    /// Bytes of every parameter.
    pub bytes: Bytes,
    /// On what.
    pub hardware: Hardware,
    /// By what share of a measured time the fitted link is wrong at most; none if none was fitted.
    pub fit_error: Option<f64>,
    /// How.
    pub decision: Decision,
    /// How it is usually done.
    pub rule_of_thumb: &'static str,
    /// In which batches; or why there are none, and what can be done.
    pub recipe: std::result::Result<Recipe, String>,
    /// Bytes of a bucket of gradients.
    pub bucket: f64,
    /// The strategies of data ranks, on the decided mesh.
    pub strategies: Vec<Row>,
    /// What is likely to go wrong.
    pub warnings: Vec<String>,
}

/// One strategy of data ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// How the run is cut.
    pub cut: Cut,
    /// Bytes of weights, gradients and optimiser's state of each rank.
    pub kept: [f64; 3],
    /// Bytes that each rank sends forward, backward, and after the step.
    pub sent: [f64; 3],
    /// Reductions and gatherings of a step.
    pub operations: f64,
    /// Seconds of a step.
    pub pace: Pace,
}

impl Answer {
    /// For a step of so many tokens, and buckets of so many bytes.
    ///
    /// # Errors
    /// [`Error::Illegal`] if nothing makes the model fit.
    pub fn new(sizes: Sizes, bytes: Bytes, hardware: Hardware, tokens: usize, bucket: f64) -> Result<Self> {
        let decision = decide(&sizes, &bytes, &hardware)?;
        let recipe = match Recipe::new(tokens, &sizes, &bytes, &hardware, &decision.cut) {
            Err(Error::Illegal(what)) => Err(what),
            other => Ok(other?),
        };
        let batch = recipe.as_ref().map_or([1, 1], |recipe| [recipe.micro, recipe.accumulation]);
        let row = |kind| {
            let cut = Cut { kind, ..decision.cut };
            let (parameters, [micro, times]) = (cut.parameters(&sizes), batch);
            Row {
                cut,
                kept: cut.kept(&bytes, parameters),
                sent: cut.sent(&bytes, parameters, times),
                operations: cut.operations(&sizes, &bytes, bucket, times),
                pace: Pace::new(&sizes, &bytes, &hardware, &cut, [micro * times, times], bucket),
            }
        };
        let strategies: Vec<Row> = KINDS.into_iter().map(row).collect();
        let fits = |row: &Row| row.cut.needed(&sizes, &bytes, batch[0]) <= hardware.room();
        let decision = quickest(decision, &strategies, bucket, fits);
        let own = strategies.iter().find(|row| row.cut.kind == decision.cut.kind);
        let warnings = warnings::list(&sizes, &bytes, &hardware, &decision.cut, recipe.as_ref().ok(), own);
        let rule_of_thumb = rule_of_thumb(&sizes);
        Ok(Self {
            sizes,
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
        serde_json::to_string_pretty(self).map_err(|error| Error::illegal(error.to_string()))
    }

    fn model(&self) -> String {
        let Sizes { parameters, layers, width, heads, sequence, .. } = self.sizes;
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
        let Hardware { ranks, per_host, memory, flops, within, across, .. } = self.hardware;
        let link = |name: &str, link: super::Link| {
            format!("{name}: {} a message, {}/s", time(link.alpha), size(link.beta))
        };
        let own =
            format!("{ranks} ranks, {per_host} a host, of {} and {}FLOP/s", size(memory), operations(flops));
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
        let Decision { leaf, cut, why, missing } = &self.decision;
        let Cut { tensor, pipeline, context, expert, data, .. } = cut;
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
        let row = |row: &Row| {
            let mark = if row.cut.kind == self.decision.cut.kind { " <" } else { "" };
            let [weights, gradients, state] = row.kept.map(size);
            let (sent, pace) = (size(row.sent.iter().sum()), &row.pace);
            let share = format!("{:.0} %", 100.0 * pace.utilisation());
            let name = format!("{}{mark}", row.cut.kind.name());
            let operations = format!("{:.0}", row.operations);
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
        let rows: Vec<_> = std::iter::once(cells(heading)).chain(self.strategies.iter().map(row)).collect();
        let activations = self.decision.cut.activations(&self.sizes);
        format!(
            "{}\nactivations of a sample: {}; no data rank shares another's",
            table(&rows),
            size(activations)
        )
    }
}
