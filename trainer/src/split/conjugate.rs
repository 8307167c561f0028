//! The two ends of a region that is cut: each does forward what the other does backward.

use crate::error::Result;
use crate::flat::Ranks;
use crate::nn::{Module, vector};
use crate::parameter::ParameterId;
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono::Sum;

/// Where a region begins that is cut: the "f" of Megatron-LM.
pub struct Enter(Ends);

/// Where it ends: the "g".
pub struct Leave(Ends);

/// What both need.
struct Ends {
    group: Option<Ranks>,
    sequence: bool,
}

impl Enter {
    pub(super) fn new(group: Option<Ranks>, sequence: bool) -> Self {
        Self(Ends { group, sequence })
    }
}

impl Leave {
    pub(super) fn new(group: Option<Ranks>, sequence: bool) -> Self {
        Self(Ends { group, sequence })
    }
}

impl Module for Enter {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        self.0.to_all(pass, input)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        self.0.to_sum(pass, gradient)
    }
}

impl Module for Leave {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        self.0.to_sum(pass, input)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        self.0.to_all(pass, gradient)
    }
}

impl Ends {
    /// Whether rows are cut outside the region in this pass. In inference they are not: there may be one only.
    fn cuts_rows(&self, pass: &Pass<'_>) -> bool {
        self.sequence && pass.keeps()
    }

    /// What every rank has a part of, or all, becomes what every rank has all of.
    fn to_all(&self, pass: &Pass<'_>, part: Tensor) -> Result<Tensor> {
        let Some(group) = self.group.as_ref().filter(|_| self.cuts_rows(pass)) else { return Ok(part) };
        let mut all = pass.tensor_there(part.rows() * group.ranks(), part.columns())?;
        pass.wait("rows of a layer", || all.all_gather(&part, group))?;
        Ok(all)
    }

    /// What every rank has a summand of becomes the sum, or this rank's rows of it.
    fn to_sum(&self, pass: &Pass<'_>, mut summand: Tensor) -> Result<Tensor> {
        let Some(group) = &self.group else { return Ok(summand) };
        if !self.cuts_rows(pass) {
            pass.wait("sum of a layer", || summand.all_reduce(group, Sum))?;
            return Ok(summand);
        }
        let mut rows = pass.tensor_there(summand.rows() / group.ranks(), summand.columns())?;
        pass.wait("sum of rows of a layer", || rows.reduce_scatter(&summand, group))?;
        Ok(rows)
    }
}

/// y = x + b, of each row: the bias of a map whose sum is complete only behind its [`Leave`].
pub struct Bias(ParameterId);

impl Bias {
    /// Of a parameter that was added.
    pub fn new(bias: ParameterId) -> Self {
        Self(bias)
    }
}

impl Module for Bias {
    fn forward(&self, pass: &mut Pass<'_>, mut input: Tensor) -> Result<Tensor> {
        if let Some(device) = pass.device() {
            let bias = pass.weights_on(device, self.0)?;
            device.compute().add_to_rows(input.view_mut(), bias.view(..))?;
            return Ok(input);
        }
        let (columns, bias) = (input.columns(), pass.weights(self.0));
        input.data_mut().chunks_exact_mut(columns).for_each(|row| vector::add(row, bias));
        Ok(input)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        match pass.device() {
            Some(device) => {
                pass.accumulate_on(device, self.0, |compute, into| compute.add_rows(into, gradient.view()))?
            }
            None => pass.accumulate(self.0, |_, into| vector::add_rows(into, gradient.data()))?,
        }
        Ok(gradient)
    }
}
