//! Tensor and sequence parallelism: layers cut between the ranks of a group.
//!
//! A map is cut by columns (its outputs) or by rows (its inputs). Where a cut region begins stands an [`Enter`], where it ends a
//! [`Leave`]: of these two, each does forward what the other does backward. With sequence parallelism the rows between two
//! regions are cut too, and norms, dropout and residuals work on a rank's share of them.
//!
//! | | forward | backward |
//! |---|---|---|
//! | [`Enter`] | nothing | sum over the group |
//! | [`Leave`] | sum over the group | nothing |
//! | [`Enter`], rows cut | all_gather of rows | reduce_scatter of rows |
//! | [`Leave`], rows cut | reduce_scatter of rows | all_gather of rows |
//!
//! Which map is cut how is said by name, in a [`Plan`].
//!
//! # A layer of your own, in four steps
//!
//! 1. Declare how its parameters are cut: a [`Cut`] for each, by [`Split::cut`].
//! 2. Add the parameters with it, and make the module of its local extents.
//! 3. Put an [`Enter`] before what is cut, and a [`Leave`] behind, by [`Split::enter`] and [`Split::leave`].
//! 4. Add what works on rows between regions within [`Split::on_rows`]: its gradients are then summed over the group.
//!
//! Sources: Shoeybi et al., "Megatron-LM", arXiv 1909.08053, 2019; Korthikanti et al., "Reducing activation
//! recomputation in large transformer models", MLSys 2023.

mod conjugate;
mod cross_entropy;
mod plan;

pub use conjugate::{Bias, Enter, Leave};
pub use cross_entropy::SplitCrossEntropy;
pub use plan::{Plan, Style};

use crate::error::{Error, Result};
use crate::flat::Ranks;
use crate::nn::{Draw, Linear, Module, Sequential, Start};
use crate::parameter::{Cut, Inventory, Parameter, Registry};
use crate::pass::Pass;
use crate::tensor::Tensor;

/// How a model is cut between the ranks of a group; by default not at all.
#[derive(Default)]
pub struct Split {
    group: Option<Ranks>,
    /// Whether rows are cut between regions.
    sequence: bool,
    plan: Plan,
}

impl Split {
    /// Between the ranks of `group`, as `plan` says. A pass on a GPU needs ranks that have met there.
    pub fn new(group: Option<Ranks>, sequence: bool, plan: Plan) -> Self {
        let sequence = sequence && group.is_some();
        Self { group, sequence, plan }
    }

    /// Number of parts.
    pub fn parts(&self) -> usize {
        self.group.as_ref().map_or(1, Ranks::ranks)
    }

    /// This rank's part.
    pub fn part(&self) -> usize {
        self.group.as_ref().map_or(0, Ranks::rank)
    }

    /// The ranks between which the model is cut.
    pub fn group(&self) -> Option<&Ranks> {
        self.group.as_ref()
    }

    /// This rank's part of a dimension of `blocks` blocks, of grains that stay together; none where nothing is cut.
    pub fn cut(&self, dimension: usize, whole: usize, blocks: usize, grain: usize) -> Option<Cut> {
        let (parts, part) = (self.parts(), self.part());
        (parts > 1).then_some(Cut { dimension, whole, blocks, grain, parts, part })
    }

    /// Where a region begins that is cut.
    pub fn enter(&self) -> Enter {
        Enter::new(self.group.clone(), self.sequence)
    }

    /// Where it ends.
    pub fn leave(&self) -> Leave {
        Leave::new(self.group.clone(), self.sequence)
    }

    /// Adds parameters of what works on the rows between regions.
    pub fn on_rows<R>(&self, registry: &mut Registry, make: impl FnOnce(&mut Registry) -> R) -> R {
        registry.in_parts(self.sequence, make)
    }

    /// What decides about dropout between regions.
    pub fn draw(&self) -> Draw {
        if self.sequence { Draw::Split } else { Draw::Shared }
    }

    /// A linear map with `weight` and perhaps `bias`, cut as the plan says of the path that is open.
    pub fn linear(
        &self,
        registry: &mut Registry,
        inputs: usize,
        outputs: usize,
        start: Start,
    ) -> Box<dyn Module> {
        match self.plan.style(&registry.path()) {
            Style::Whole => Box::new(self.on_rows(registry, |r| Linear::new(r, inputs, outputs, start))),
            Style::Column { blocks, grain } => match self.cut(0, outputs, blocks, grain) {
                Some(cut) => self.column(registry, inputs, cut, start),
                None => Box::new(Linear::new(registry, inputs, outputs, start)),
            },
            Style::Row { grain } => match self.cut(1, inputs, 1, grain) {
                Some(cut) => self.row(registry, outputs, cut, start),
                None => Box::new(Linear::new(registry, inputs, outputs, start)),
            },
        }
    }

    /// A linear map to classes, of which every rank has some. [`Split::enter`] stands before it, and nothing behind: what follows
    /// knows that its classes are cut.
    pub fn classes(&self, registry: &mut Registry, inputs: usize, classes: usize, start: Start) -> Linear {
        match self.cut(0, classes, 1, 1) {
            Some(cut) => by_columns(registry, inputs, cut, start),
            None => Linear::new(registry, inputs, classes, start),
        }
    }

    fn column(&self, registry: &mut Registry, inputs: usize, cut: Cut, start: Start) -> Box<dyn Module> {
        let map = by_columns(registry, inputs, cut, start);
        Box::new(Sequential(vec![Box::new(self.enter()), Box::new(map)]))
    }

    fn row(&self, registry: &mut Registry, outputs: usize, cut: Cut, start: Start) -> Box<dyn Module> {
        let (inputs, local) = (cut.whole, cut.local());
        let weight = registry.add(Parameter::new("weight", &[outputs, inputs], start.weight).cut(cut));
        let map = Linear::of(weight, None, local, outputs);
        let mut modules: Vec<Box<dyn Module>> = vec![Box::new(map), Box::new(self.leave())];
        if let Some(init) = start.bias {
            let bias = self.on_rows(registry, |r| r.add(Parameter::new("bias", &[outputs], init)));
            modules.push(Box::new(Bias::new(bias)));
        }
        Box::new(Sequential(modules))
    }

    /// The first of this rank's rows of `rows` between regions, and how many it has.
    ///
    /// # Errors
    /// If they cannot be cut equally.
    pub fn rows(&self, pass: &Pass<'_>, rows: usize) -> Result<(usize, usize)> {
        if !self.sequence || !pass.keeps() {
            return Ok((0, rows));
        }
        let parts = self.parts();
        if !rows.is_multiple_of(parts) {
            let what = format!(
                "{rows} rows of a micro-batch (sequences × tokens) cannot be cut into {parts} equal parts"
            );
            return Err(Error::illegal(format!("{what}: sequence parallelism needs a multiple of {parts}")));
        }
        Ok((self.part() * rows / parts, rows / parts))
    }

    /// All columns of one row of which every rank has its part.
    ///
    /// # Errors
    /// Of the collective.
    pub fn whole_row(&self, pass: &Pass<'_>, row: Tensor) -> Result<Tensor> {
        let Some(group) = &self.group else { return Ok(row) };
        let mut whole = pass.tensor(1, row.columns() * self.parts());
        pass.wait("logits", || whole.all_gather(&row, group))?;
        Ok(whole)
    }

    /// That every line of the plan cut something; and a warning for what is padded.
    ///
    /// # Errors
    /// Names the line that did not, and the names that are near.
    pub fn check(&self, inventory: &Inventory) -> Result<()> {
        self.plan.check()?;
        for parameter in inventory.parameters.iter().filter(|parameter| parameter.shape.len() > 1) {
            let waste = parameter.cut.as_ref().map_or(0.0, Cut::waste);
            if waste > 0.0 {
                tracing::warn!("{}: {:.1} % of all parts together is padding", parameter.name, 100.0 * waste);
            }
        }
        Ok(())
    }
}

fn by_columns(registry: &mut Registry, inputs: usize, cut: Cut, start: Start) -> Linear {
    let (outputs, local) = (cut.whole, cut.local());
    let bias = Parameter::new("bias", &[outputs], start.bias.unwrap_or(start.weight)).cut(cut.clone());
    let weight = registry.add(Parameter::new("weight", &[outputs, inputs], start.weight).cut(cut));
    let bias = start.bias.map(|_| registry.add(bias));
    Linear::of(weight, bias, inputs, local)
}

#[cfg(test)]
mod tests;
