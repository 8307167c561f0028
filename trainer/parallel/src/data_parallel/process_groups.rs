//! Communicators that a strategy works with.

use unisono::Communicator;
use unisono_nn::error::Result;

/// Groups that a strategy needs, for one rank of a mesh. The default is a rank that is alone.
///
/// A strategy starts collectives in the background, so no other code may use these communicators.
/// [`Communicator::duplicate`] makes another one of the same ranks.
#[derive(Clone, Default)]
pub struct ProcessGroups {
    /// Data parallel group; `None` if this rank is alone.
    pub data: Option<Communicator>,
    /// Tensor parallel group; `None` if this rank is alone.
    pub tensor: Option<Communicator>,
    /// Stages of a pipeline; `None` if this rank is alone.
    pub pipeline: Option<Communicator>,
    /// The two stages that share a tied parameter; `None` if this rank has none.
    pub tied: Option<Communicator>,
    /// Ranks that share experts; `None` if every rank has all experts.
    pub experts: Option<ExpertGroups>,
}

/// Groups of a rank that shares the experts of a model with others.
#[derive(Clone)]
pub struct ExpertGroups {
    /// Ranks with different experts.
    pub sharing: Communicator,
    /// Ranks with the same experts; `None` if this rank is alone.
    pub same: Option<Communicator>,
}

impl ProcessGroups {
    /// Creates the groups. Sums over the tensor parallel group get a communicator of their own, so
    /// that they do not wait for the modules' operations. All ranks of `tensor` must call this.
    ///
    /// # Errors
    /// Fails if the communicator cannot be duplicated.
    pub fn new(data: Option<Communicator>, tensor: Option<&Communicator>) -> Result<Self> {
        let tensor = tensor.map(Communicator::duplicate).transpose()?;
        Ok(Self { data, tensor, ..Self::default() })
    }

    /// Adds the stages of a pipeline. `shares` is true if this rank has a parameter that another
    /// stage has too. All stages must call this.
    ///
    /// # Errors
    /// Fails if the communicator cannot be split.
    pub fn with_pipeline(self, pipeline: Option<&Communicator>, shares: bool) -> Result<Self> {
        let split = |stages: &Communicator| stages.split(shares.then_some(0), stages.rank() as i32);
        let tied = pipeline.map(split).transpose()?.flatten();
        Ok(Self { pipeline: pipeline.cloned(), tied, ..self })
    }

    /// Adds the ranks that share experts.
    pub fn with_experts(self, experts: Option<ExpertGroups>) -> Self {
        Self { experts, ..self }
    }

    /// Returns the number of ranks that divide the experts of each layer.
    pub fn expert_ranks(&self) -> usize {
        self.experts.as_ref().map_or(1, |experts| experts.sharing.size())
    }

    /// Creates the same groups for another part of the model. Collectives of the parts need no
    /// common order then. All ranks must call this.
    ///
    /// # Errors
    /// Fails if a communicator cannot be duplicated.
    pub fn duplicate(&self) -> Result<Self> {
        let copy = |group: &Option<Communicator>| group.as_ref().map(Communicator::duplicate).transpose();
        let (data, tensor, tied) = (copy(&self.data)?, copy(&self.tensor)?, copy(&self.tied)?);
        Ok(Self { data, tensor, tied, pipeline: self.pipeline.clone(), experts: None })
    }

    /// Creates the groups of the experts' parameters, as [`ProcessGroups::duplicate`] does. All
    /// ranks must call this.
    ///
    /// # Errors
    /// Fails if a communicator cannot be duplicated.
    pub fn duplicate_for_experts(&self) -> Result<Self> {
        let Some(ExpertGroups { sharing, same }) = &self.experts else { return self.duplicate() };
        let experts = ExpertGroups { sharing: sharing.duplicate()?, same: None };
        Ok(Self { data: same.clone(), tied: None, ..self.clone() }.duplicate()?.with_experts(Some(experts)))
    }

    /// Creates groups for data parallelism alone.
    pub fn data_only(data: Option<Communicator>) -> Self {
        Self { data, ..Self::default() }
    }
}
