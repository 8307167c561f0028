//! Start and end of a sharded region: each does in forward what the other does in backward.

use unisono::Sum;
use unisono_nn::error::Result;
use unisono_nn::modules::Module;
use unisono_nn::parameter::ParameterId;
use unisono_nn::pass::Pass;
use unisono_nn::process_group::ProcessGroup;
use unisono_nn::tensor::Tensor;

/// Start of a sharded region: "f" in Megatron-LM.
pub struct CopyToRegion(RegionComm);

/// End of a sharded region: "g" in Megatron-LM.
pub struct ReduceFromRegion(RegionComm);

/// Communication of both.
struct RegionComm {
    group: Option<ProcessGroup>,
    sequence: bool,
}

impl CopyToRegion {
    pub(crate) fn new(group: Option<ProcessGroup>, sequence: bool) -> Self {
        Self(RegionComm { group, sequence })
    }
}

impl ReduceFromRegion {
    pub(crate) fn new(group: Option<ProcessGroup>, sequence: bool) -> Self {
        Self(RegionComm { group, sequence })
    }
}

impl Module for CopyToRegion {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        self.0.all_gather_rows(pass, input)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        self.0.reduce(pass, gradient)
    }
}

impl Module for ReduceFromRegion {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        self.0.reduce(pass, input)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        self.0.all_gather_rows(pass, gradient)
    }
}

impl RegionComm {
    /// Returns true if rows outside of the region are sharded in this pass. In inference they are
    /// not, because there may be a single row.
    fn shards_rows(&self, pass: &Pass<'_>) -> bool {
        self.sequence && pass.keeps()
    }

    /// Gathers the rows of all ranks.
    fn all_gather_rows(&self, pass: &Pass<'_>, part: Tensor) -> Result<Tensor> {
        let Some(group) = self.group.as_ref().filter(|_| self.shards_rows(pass)) else { return Ok(part) };
        let mut gathered = pass.tensor_in_place(part.rows() * group.size(), part.columns())?;
        pass.waits().time("rows of a layer", || gathered.all_gather(&part, group))?;
        Ok(gathered)
    }

    /// Sums over ranks, and keeps the whole sum or this rank's rows of it.
    fn reduce(&self, pass: &Pass<'_>, mut summand: Tensor) -> Result<Tensor> {
        let Some(group) = &self.group else { return Ok(summand) };
        // Without sharded rows, every rank needs the whole sum, for its norm and residual.
        if !self.shards_rows(pass) {
            pass.waits().time("sum of a layer", || summand.all_reduce(group, Sum))?;
            return Ok(summand);
        }
        let mut rows = pass.tensor_in_place(summand.rows() / group.size(), summand.columns())?;
        pass.waits().time("sum of rows of a layer", || rows.reduce_scatter(&summand, group))?;
        Ok(rows)
    }
}

/// Computes y = x + b for each row: the bias of a layer whose sum is complete after its
/// [`ReduceFromRegion`].
pub struct BiasAdd(ParameterId);

impl BiasAdd {
    /// Creates the module from an existing parameter.
    pub fn new(bias: ParameterId) -> Self {
        Self(bias)
    }
}

impl Module for BiasAdd {
    fn forward(&self, pass: &mut Pass<'_>, mut input: Tensor) -> Result<Tensor> {
        pass.ops().add_to_rows(input.values_mut(), pass.weights_view(self.0)?.values())?;
        Ok(input)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        pass.accumulate(self.0, |ops, sum| ops.add_rows(sum, gradient.values()))?;
        Ok(gradient)
    }
}
