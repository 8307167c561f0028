//! Plan as numbers and as text.

use crate::GptShape;
use crate::cost::format::{count, format_flops, sections, size, table, time};
use crate::cost::{Estimate, ExchangeCosts, Hardware, Link, ModelShape, ParallelConfig, StepTime};
use crate::planner::batch_recipe::BatchRecipe;
use crate::planner::choice::choose;
use crate::planner::rules::{Decision, rule_of_thumb};
use crate::planner::search::{Candidate, Search};
use crate::planner::tables::Measured;
use crate::planner::throughput::Throughput;
use crate::planner::tree::decide;
use crate::planner::{explain, plot, tables, warnings};
use serde::Serialize;
use unisono_nn::counted;
use unisono_nn::error::{Error, Result};
use unisono_parallel::data_parallel::ParallelKind;
use unisono_parallel::mesh::Degrees;

/// Strategies that a plan compares.
const KINDS: [ParallelKind; 4] =
    [ParallelKind::Replicated, ParallelKind::Zero1, ParallelKind::Zero2, ParallelKind::Zero3];

/// Returns the GB of `parameters` in 16 bits: 2 per billion.
pub(super) fn gigabytes(parameters: f64) -> f64 {
    2.0 * parameters / 1e9
}

/// Plan of a run: the decision, and the numbers behind it.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// Model.
    pub shape: ModelShape,
    /// Hardware.
    pub hardware: Hardware,
    /// Maximum relative error of the fitted link; `None` if no link was fitted.
    pub fit_error: Option<f64>,
    /// Chosen strategy.
    pub decision: Decision,
    /// All meshes that were evaluated.
    pub search: Search,
    /// Usual choice for models of this size.
    pub rule_of_thumb: &'static str,
    /// Batch sizes, or the reason why there are none and the options.
    pub recipe: std::result::Result<BatchRecipe, String>,
    /// Bucket size of gradients in bytes.
    pub bucket: f64,
    /// Data parallel strategies on the chosen mesh.
    pub strategies: Vec<StrategyRow>,
    /// Pace of the chosen mesh; `None` if it does not divide the batch.
    pub throughput: Option<Throughput>,
    /// Warnings, one per line.
    pub warnings: Vec<String>,
    /// Predicted and measured numbers; empty if nothing was measured.
    #[serde(skip)]
    pub measured: String,
}

/// One data parallel strategy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StrategyRow {
    /// Parallelism of the run.
    pub parallel: ParallelConfig,
    /// Bytes of weights, gradients and optimizer state per rank.
    pub kept_bytes: [f64; 3],
    /// Bytes that each rank sends in forward, backward and step.
    pub sent_bytes: [f64; 3],
    /// Number of reduce-scatters and all-gathers per step.
    pub collectives: f64,
    /// Time of a step, by parts.
    pub step_time: StepTime,
}

impl PlanReport {
    /// Computes a plan for this number of tokens per step, and this bucket size.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no strategy fits the model into memory.
    pub fn new(shape: ModelShape, hardware: Hardware, tokens: usize, bucket: f64) -> Result<Self> {
        Self::among(shape, hardware, tokens, bucket, |_| ())
    }

    /// Computes a plan among meshes that run: those for which `memory_of` returns the exact bytes
    /// of a rank, and not an error.
    ///
    /// # Errors
    /// Fails as [`PlanReport::new`] does.
    pub fn among_runs(
        shape: ModelShape,
        hardware: Hardware,
        tokens: usize,
        bucket: f64,
        memory_of: impl Fn(&Candidate) -> Result<usize>,
    ) -> Result<Self> {
        let room = hardware.usable_memory();
        Self::among(shape, hardware, tokens, bucket, |search| search.keep_runs(memory_of, room))
    }

    /// Computes a plan among the meshes that `restrict` leaves.
    fn among(
        shape: ModelShape,
        hardware: Hardware,
        tokens: usize,
        bucket: f64,
        restrict: impl FnOnce(&mut Search),
    ) -> Result<Self> {
        let estimate = |parallel| Estimate { shape: &shape, hardware: &hardware, parallel };
        let samples = tokens / shape.gpt.context;
        // A batch with a part of a sequence divides over no ranks, and the search then has no mesh
        // for it.
        let samples = if tokens.is_multiple_of(shape.gpt.context) { samples } else { 0 };
        let mut search = Search::new(&shape, &hardware, samples, bucket);
        restrict(&mut search);
        let mut decision = choose(decide(&shape, &hardware), &search, &shape)?;
        let chosen = search.find(&decision.parallel);
        decision.parallel = chosen.map_or(decision.parallel, |chosen| chosen.parallel);
        let fastest = chosen.map(|chosen| chosen.micro_batch);
        let recipe = BatchRecipe::with_micro_batch(tokens, &estimate(decision.parallel), fastest);
        let recipe = match recipe {
            Err(Error::Invalid(what)) => Err(what),
            other => Ok(other?),
        };
        let [micro, times] =
            recipe.as_ref().map_or([1, 1], |recipe| [recipe.micro_batch, recipe.accumulation]);
        let row = |kind| {
            let chosen = decision.parallel;
            let reduces_each = chosen.reduces_each && kind == chosen.kind;
            let estimate = estimate(ParallelConfig { kind, reduces_each, ..chosen });
            StrategyRow {
                parallel: estimate.parallel,
                kept_bytes: estimate.kept(),
                sent_bytes: estimate.sent(times),
                collectives: estimate.collectives(bucket, times),
                step_time: StepTime::new(&estimate, micro, times, bucket),
            }
        };
        let strategies: Vec<StrategyRow> = KINDS.into_iter().map(row).collect();
        let chosen_row = strategies.iter().find(|row| row.parallel.kind == decision.parallel.kind);
        let mut warnings =
            warnings::all(&estimate(decision.parallel), recipe.as_ref().ok(), chosen_row, bucket);
        if recipe.is_err() {
            warnings.push("the times of each rank are of one sample, because ranks cannot have equal parts of this batch".to_owned());
        }
        let rule_of_thumb = rule_of_thumb(&shape);
        let chosen = search.find(&decision.parallel);
        let throughput = chosen.map(|chosen| Throughput::new(chosen, &shape, &hardware));
        Ok(Self {
            shape,
            hardware,
            fit_error: None,
            decision,
            search,
            rule_of_thumb,
            recipe,
            bucket,
            strategies,
            throughput,
            warnings,
            measured: String::new(),
        })
    }

    /// Returns the candidate with the chosen mesh; `None` if it does not divide the batch.
    pub fn chosen(&self) -> Option<&Candidate> {
        self.search.find(&self.decision.parallel)
    }

    /// Returns the chosen candidate, and the fastest ones with other meshes.
    pub(super) fn ranked(&self) -> impl Iterator<Item = &Candidate> {
        self.chosen().into_iter().chain(self.search.alternatives(&self.decision.parallel))
    }

    /// Returns the estimate of the chosen strategy.
    pub(super) fn estimate(&self) -> Estimate<'_> {
        Estimate { shape: &self.shape, hardware: &self.hardware, parallel: self.decision.parallel }
    }

    /// Sets the tokens of the whole run, from which its days follow.
    pub fn set_train_tokens(&mut self, tokens: f64) {
        self.throughput = self.throughput.map(|pace| pace.with_train_tokens(tokens));
    }

    /// Warns of a configured strategy and mesh that are not those of the plan, or whose tensor
    /// parallel ranks are on several hosts.
    pub fn compare_configured(&mut self, kind: ParallelKind, mesh: Degrees) {
        let lines = warnings::of_configured(kind, mesh, &self.hardware, &self.decision.parallel);
        self.warnings.extend(lines);
    }

    /// Adds a table of predicted and measured numbers: of the chosen mesh and its alternatives, as
    /// `measure` finds them.
    ///
    /// # Errors
    /// Returns the error of a measurement.
    pub fn compare_measured(&mut self, measure: impl Fn(&Candidate) -> Result<Measured>) -> Result<()> {
        self.measured = tables::measured(self, measure)?;
        Ok(())
    }

    /// Draws the predicted step time of the meshes, as SVG.
    pub fn svg(&self) -> String {
        plot::svg(self)
    }

    /// Returns the plan as text and tables.
    pub fn plan(&self) -> String {
        sections(&[
            ("Model", self.model()),
            ("Hardware", self.machine()),
            ("Strategy", self.strategy()),
            ("Pace", self.throughput.as_ref().map(Throughput::to_string).unwrap_or_default()),
            ("Batch", self.recipe.as_ref().map_or_else(Clone::clone, |recipe| recipe.lines().join("\n"))),
            ("Remedies, from the cheapest to the dearest", tables::remedies(self)),
            ("Meshes, from the fastest", tables::meshes(self)),
            ("Meshes that do not fit, from the smallest", tables::too_large(self)),
            ("Predicted and measured", self.measured.clone()),
            ("Each rank, by strategy of the data ranks", self.comparison()),
            ("To be considered", self.warnings.join("\n")),
        ])
    }

    /// Returns the formulas with the numbers of this plan.
    pub fn explain(&self) -> String {
        explain::text(self)
    }

    /// Returns the plan as JSON.
    ///
    /// # Errors
    /// Fails if a number has no JSON form, which does not happen.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).map_err(|error| Error::invalid(error.to_string()))
    }

    fn model(&self) -> String {
        let ModelShape { parameters, bytes, .. } = self.shape;
        let GptShape { layers, width, heads, context, .. } = self.shape.gpt;
        let summary = format!(
            "{} parameters, {} of width {width}, {}, sequences of {context}",
            count(parameters),
            counted(layers, "layer"),
            counted(heads, "head")
        );
        let state = bytes.total();
        let ranks = (state * parameters / self.hardware.memory).ceil();
        format!(
            "{summary}\n{} in 16 bits, {} to train ({state} bytes a parameter): the memory of {}, without activations",
            size(1e9 * gigabytes(parameters)),
            size(state * parameters),
            counted(ranks as usize, "rank"),
        )
    }

    fn machine(&self) -> String {
        let Hardware {
            ranks,
            per_host,
            memory,
            flops,
            intra_host,
            inter_host,
            intra_domain,
            cores_per_rank,
            ..
        } = self.hardware;
        let link =
            |name: &str, link: Link| format!("{name}: {} a message, {}/s", time(link.alpha), size(link.beta));
        let summary = format!(
            "{}, {per_host} a host, of {} and {}FLOP/s as reached in large matrix products{}",
            counted(ranks, "rank"),
            size(memory),
            format_flops(flops),
            match cores_per_rank {
                1.0 => String::new(),
                cores => format!("\neach rank has {cores:.2} of a core{}", self.exchange_costs()),
            }
        );
        let error =
            self.fit_error.map(|error| format!("\nmeasured times are met within {:.0} %", 100.0 * error));
        let domains = match self.hardware.per_domain {
            ranks if ranks == per_host => String::new(),
            ranks => format!("\n{}", link(&format!("within a NUMA domain of {ranks}"), intra_domain)),
        };
        format!(
            "{summary}{domains}\n{}\n{}{}",
            link("within a host", intra_host),
            link("across hosts", inter_host),
            error.unwrap_or_default()
        )
    }

    /// Describes what exchanges cost ranks that share cores.
    fn exchange_costs(&self) -> String {
        let Some(ExchangeCosts { calls, background }) = self.hardware.exchange_costs else {
            return String::new();
        };
        let messages = (self.hardware.per_host - 1) as f64;
        let [call, other] = [calls, background].map(|cost| time(cost.collective + messages * cost.message));
        format!(": a collective of all takes {call} of the cores, or {other} on threads of its own")
    }

    fn strategy(&self) -> String {
        let Decision { rule: leaf, parallel: cut, reason: why, unsupported: missing, .. } = &self.decision;
        let ParallelConfig { tensor, pipeline, context, expert, data, .. } = cut;
        let factors = format!(
            "{} = tensor {tensor} x pipeline {pipeline} x data {data}",
            counted(self.hardware.ranks, "rank")
        );
        let sharing =
            format!("of the data ranks {context} share each sequence and {expert} divide the experts");
        let groups = match self.shape.shard_ranks {
            ranks if ranks > 0 && cut.kind.shards_state() => {
                format!("; state is divided within groups of {}", counted(ranks, "data rank"))
            }
            _ => String::new(),
        };
        let recomputed = if self.estimate().recomputes() { "; activations are recomputed" } else { "" };
        let missing = missing.as_ref().map_or(String::new(), |missing| format!("\nhowever: {missing}"));
        format!(
            "{}, {}: {why}\n{factors}; {sharing}{groups}{recomputed}\nusual for this size: {}{missing}",
            leaf.name(),
            cut.kind.name(),
            self.rule_of_thumb
        )
    }

    fn comparison(&self) -> String {
        let numbers = ["sent", "operations", "its time", "step", "computing", "no overlap"];
        let heading = [&["", "weights", "gradients", "state"][..], &numbers].concat();
        let row = |row: &StrategyRow| {
            let mark = if row.parallel.kind == self.decision.parallel.kind { " <" } else { "" };
            let [weights, gradients, state] = row.kept_bytes.map(size);
            let (sent, pace) = (size(row.sent_bytes.iter().sum()), &row.step_time);
            let share = format!("{:.0} %", 100.0 * pace.utilization());
            let name = format!("{}{mark}", row.parallel.kind.name());
            let operations = format!("{:.0}", row.collectives);
            let exchange = time(pace.communication + pace.data_on_cores);
            let [step, naive] = [pace.overlapped(), pace.naive()].map(time);
            vec![name, weights, gradients, state, sent, operations, exchange, step, share, naive]
        };
        let heading = heading.into_iter().map(str::to_owned).collect();
        let rows: Vec<_> = std::iter::once(heading).chain(self.strategies.iter().map(row)).collect();
        let activations = self.estimate().activations();
        format!(
            "{}\n{LEGEND}\nactivations of a sample: {}; no data rank shares another's",
            table(&rows),
            size(activations)
        )
    }
}

/// Meaning of the columns of the comparison.
const LEGEND: &str = "\
< is the strategy of this plan. weights, gradients, state: bytes kept; sent: bytes per step
its time: of this communication; step: if computing hides it as far as possible; computing: share of
that step spent computing; no overlap: step if nothing is hidden";
