//! Search for the mesh with the shortest step among those that fit.

use crate::batch_plan::factors;
use crate::cost::{Estimate, Hardware, LinkClass, ModelShape, ParallelConfig, StepTime};
use crate::planner::meshes::{Allowed, legal};
use serde::{Serialize, Serializer};
use unisono_nn::error::Result;

/// Mesh that fits, with the batch that makes its step shortest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// Parallelism of the run.
    pub parallel: ParallelConfig,
    /// Samples that a rank computes at once.
    pub micro_batch: usize,
    /// Micro-batches per rank and step.
    pub accumulation: usize,
    /// Bytes that each rank needs.
    pub needed: f64,
    /// Bytes that each rank sends in a step within a NUMA domain, within a host, and across hosts.
    pub sent: [f64; 3],
    /// Time of a step.
    pub step_time: StepTime,
}

/// Mesh that does not fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TooLarge {
    /// Parallelism of the run.
    pub parallel: ParallelConfig,
    /// Bytes that each rank needs with one sample at a time.
    pub needed: f64,
}

/// All meshes, by step time or by memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Search {
    /// Number of meshes.
    pub considered: usize,
    /// Those that fit and divide the batch, the fastest first.
    #[serde(serialize_with = "first")]
    pub fitting: Vec<Candidate>,
    /// Those that do not fit, the smallest first.
    #[serde(serialize_with = "first")]
    pub too_large: Vec<TooLarge>,
    /// Number of meshes that fit, and do not divide the batch.
    pub indivisible: usize,
    /// Number of meshes that fit by the estimate, and of which no run was accepted.
    pub refused: usize,
    /// Reason of the first refusal.
    pub refusal: Option<String>,
}

impl Search {
    /// Evaluates all meshes for this number of samples per step, and this bucket size. Meshes that
    /// only a large model should have are considered if no other fits.
    pub fn new(shape: &ModelShape, hardware: &Hardware, samples: usize, bucket: f64) -> Self {
        let search = |allowed| Self::among(legal(shape, hardware, allowed), shape, hardware, samples, bucket);
        let usual = search(Allowed::Usual);
        match usual.fitting.is_empty() && usual.indivisible == 0 {
            true => search(Allowed::Needed),
            false => usual,
        }
    }

    fn among(
        meshes: Vec<ParallelConfig>,
        shape: &ModelShape,
        hardware: &Hardware,
        samples: usize,
        bucket: f64,
    ) -> Self {
        let mut search = Self { considered: meshes.len(), ..Self::default() };
        for parallel in meshes {
            let estimate = Estimate { shape, hardware, parallel };
            if !estimate.fits() {
                search.too_large.push(TooLarge { parallel, needed: estimate.needed(1) });
            } else if let Some(candidate) = Candidate::fastest(&estimate, samples, bucket) {
                search.fitting.push(candidate);
            } else {
                search.indivisible += 1;
            }
        }
        search.fitting.sort_by(|left, right| left.seconds().total_cmp(&right.seconds()));
        search.too_large.sort_by(|left, right| left.needed.total_cmp(&right.needed));
        search
    }

    /// Keeps the candidates for which `memory_of` returns at most `room` bytes, with these bytes.
    /// Counts the others as refused.
    pub(super) fn keep_runs(&mut self, memory_of: impl Fn(&Candidate) -> Result<usize>, room: f64) {
        let candidates = std::mem::take(&mut self.fitting);
        for mut candidate in candidates {
            match memory_of(&candidate) {
                Ok(bytes) if bytes as f64 <= room => {
                    candidate.needed = bytes as f64;
                    self.fitting.push(candidate);
                }
                other => {
                    self.refused += 1;
                    let why = other
                        .map_or_else(|error| error.to_string(), |bytes| format!("it needs {bytes} bytes"));
                    self.refusal.get_or_insert(why);
                }
            }
        }
    }

    /// Returns the candidate with this parallelism, with any value of `reduces_each`.
    pub fn find(&self, parallel: &ParallelConfig) -> Option<&Candidate> {
        let normalized = |parallel: ParallelConfig| ParallelConfig { reduces_each: false, ..parallel };
        self.fitting.iter().find(|candidate| normalized(candidate.parallel) == normalized(*parallel))
    }

    /// Returns the fastest candidates whose meshes differ from that of `chosen`, one of each mesh.
    pub(super) fn alternatives(&self, chosen: &ParallelConfig) -> Vec<&Candidate> {
        let mut meshes = vec![chosen.degrees()];
        let mut is_new = |candidate: &&Candidate| {
            let degrees = candidate.parallel.degrees();
            let is_new = !meshes.contains(&degrees);
            meshes.push(degrees);
            is_new
        };
        self.fitting.iter().filter(|candidate| is_new(candidate)).collect()
    }
}

/// Number of micro-batch sizes to try, from the largest.
const MICRO_BATCHES: usize = 8;

impl Candidate {
    /// Returns the batch with the shortest step that fits; `None` if ranks cannot have equal parts
    /// of it. Ranks that shard gradients keep whole ones during accumulation, or reduce each
    /// micro-batch.
    fn fastest(estimate: &Estimate<'_>, samples: usize, bucket: f64) -> Option<Self> {
        let ranks = estimate.parallel.batch_ranks();
        if samples == 0 || !samples.is_multiple_of(ranks) {
            return None;
        }
        let (rank_samples, largest) = (samples / ranks, estimate.max_micro_batch());
        let sizes = factors(rank_samples).into_iter().rev().filter(|&micro| micro <= largest);
        let room = estimate.hardware.usable_memory();
        let candidates = sizes.take(MICRO_BATCHES).flat_map(|micro| {
            let may_keep = estimate.parallel.kind.shards_gradients() && micro < rank_samples;
            let choices = if may_keep { &[false, true][..] } else { &[false] };
            choices.iter().map(move |&reduces_each| {
                let parallel = ParallelConfig { reduces_each, ..estimate.parallel };
                Self::new(&Estimate { parallel, ..*estimate }, micro, rank_samples / micro, bucket)
            })
        });
        let candidates = candidates.filter(|candidate| candidate.needed <= room);
        // Rounding does not decide: among equal times, the largest micro-batch stays, which comes
        // first.
        candidates
            .reduce(|best, other| if other.seconds() < best.seconds() * (1.0 - 1e-9) { other } else { best })
    }

    /// Returns the numbers of a batch.
    fn new(estimate: &Estimate<'_>, micro_batch: usize, accumulation: usize, bucket: f64) -> Self {
        let exchanges = estimate.exchanges(micro_batch, accumulation, bucket);
        let sent = [LinkClass::Domain, LinkClass::Host, LinkClass::Across].map(|class| {
            let of_class =
                exchanges.iter().filter(|exchange| exchange.link_class(estimate.hardware) == class);
            of_class.fold(0.0, |sum, exchange| sum + exchange.bytes)
        });
        Self {
            parallel: estimate.parallel,
            micro_batch,
            accumulation,
            needed: estimate.needed(micro_batch) + estimate.accumulated(accumulation),
            sent,
            step_time: StepTime::new(estimate, micro_batch, accumulation, bucket),
        }
    }

    /// Returns the time of a step.
    pub fn seconds(&self) -> f64 {
        self.step_time.overlapped()
    }
}

/// Number of meshes in JSON.
const SERIALIZED: usize = 32;

fn first<T: Serialize, S: Serializer>(items: &[T], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(items.iter().take(SERIALIZED))
}
