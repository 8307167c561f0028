//! Caches of plans. The plan used last is found first, without hashing.

use crate::engine::plan::Plan;
use crate::engine::plan::eager::{self, EagerPlan, PlanKey, SlotInstr};
use crate::engine::{Engine, Job};
use crate::error::Result;
use crate::schedule::lower::stores_complete_sums;
use crate::schedule::{Algorithm, GroupSpec, Rank};
use std::collections::HashMap;
use std::sync::Arc;
use unisono_transports::Geometry;

/// The plans of the pipelined and zero-copy executors, by algorithm and group.
#[derive(Default)]
pub(crate) struct PlanCache {
    plans: HashMap<(usize, GroupSpec), Arc<Plan>>,
    last: Option<(usize, GroupSpec, Arc<Plan>)>,
}

impl PlanCache {
    /// Returns all plans.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Plan> {
        self.plans.values().map(|plan| &**plan)
    }

    /// Returns the plan of `algorithm` for `spec` at `rank`, and builds it at the first call.
    pub(crate) fn get(
        &mut self,
        algorithm: &'static Algorithm,
        spec: GroupSpec,
        rank: Rank,
        geometry: &Geometry,
        half_window_bytes: usize,
    ) -> Result<Arc<Plan>> {
        let key = std::ptr::from_ref(algorithm) as usize;
        if let Some((last_key, last_spec, plan)) = &self.last
            && *last_key == key
            && *last_spec == spec
        {
            return Ok(plan.clone());
        }
        let plan = match self.plans.get(&(key, spec)) {
            Some(plan) => plan.clone(),
            None => {
                let plan = Arc::new(Plan::build(algorithm, &spec, rank, geometry, half_window_bytes)?);
                self.plans.insert((key, spec), plan.clone());
                plan
            }
        };
        self.last = Some((key, spec, plan.clone()));
        Ok(plan)
    }
}

impl Engine {
    /// Returns the index of the eager plan for `job`, or `None` if the operation cannot be eager.
    ///
    /// The result is the same on all ranks, because it depends only on values that are equal on
    /// all.
    #[inline]
    pub(in crate::engine) fn eager_plan(&mut self, job: &Job<'_>) -> Result<Option<usize>> {
        if self.fabric.window.is_none() {
            return Ok(None);
        }
        let Some(key) = PlanKey::of(job) else {
            return Ok(None);
        };
        match self.eager.plans.find(&key) {
            Lookup::Found(index) => Ok(Some(index)),
            Lookup::NotEager => Ok(None),
            Lookup::Unknown => self.build_eager_plan(key, job),
        }
    }

    #[cold]
    fn build_eager_plan(&mut self, key: PlanKey, job: &Job<'_>) -> Result<Option<usize>> {
        let (algorithm, spec) = self.select_for(job)?;
        let (rounds_once, rank) = (stores_complete_sums(algorithm, spec.ranks), self.fabric.rank);
        let arithmetic = self.arithmetic(job, false, rounds_once);
        let plan = match self.zero_copy_algorithm(job) {
            // An operation that may be zero-copy begins with an exchange of offsets. The result
            // depends on the buffers, which are no part of the key.
            Some(_) => None,
            None => eager::plan_for(key, job, algorithm, &spec, arithmetic, rank),
        };
        let Some(plan) = plan else {
            self.eager.plans.insert_not_eager(key);
            return Ok(None);
        };
        self.eager.limit_ack_batch(plan.slots);
        if let Some(window) = &mut self.fabric.window {
            // Only the owner of slots may touch their memory first, because it makes huge pages of
            // it. So a rank that only reads maps the slots and does not write to its own.
            match plan.instrs.contains(&SlotInstr::Publish) {
                true => window.prepare_slots(plan.slot_class)?,
                false => window.map_slots(plan.slot_class)?,
            }
        }
        Ok(Some(self.eager.plans.insert(plan, algorithm)))
    }
}

/// The plans of the eager executor, and the keys of operations that have none.
#[derive(Default)]
pub(crate) struct EagerPlans {
    plans: Vec<(EagerPlan, &'static Algorithm)>,
    /// Index of the plan found last, mostly the one looked up next.
    last: usize,
    /// Index of the plan to replace next when there are [`CACHE_ENTRIES_MAX`].
    oldest: usize,
    /// Keys of operations that cannot be eager, so that nobody tries to plan them again.
    not_eager: Vec<PlanKey>,
    oldest_not_eager: usize,
}

/// The result of a lookup in [`EagerPlans`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The plan has this index.
    Found(usize),
    /// The operation cannot be eager.
    NotEager,
    /// The key is new.
    Unknown,
}

impl EagerPlans {
    /// Looks up the plan of `key`.
    #[inline]
    pub(crate) fn find(&mut self, key: &PlanKey) -> Lookup {
        match self.plans.get(self.last) {
            Some((plan, _)) if plan.key == *key => Lookup::Found(self.last),
            _ => self.search(key),
        }
    }

    fn search(&mut self, key: &PlanKey) -> Lookup {
        if let Some(found) = self.plans.iter().position(|(plan, _)| plan.key == *key) {
            self.last = found;
            return Lookup::Found(found);
        }
        if self.not_eager.contains(key) { Lookup::NotEager } else { Lookup::Unknown }
    }

    /// Returns the plan at `index`.
    #[inline]
    pub(crate) fn plan(&self, index: usize) -> &EagerPlan {
        &self.plans[index].0
    }

    /// Returns the algorithm that the plan at `index` was lowered from.
    #[inline]
    pub(crate) fn algorithm(&self, index: usize) -> &'static Algorithm {
        self.plans[index].1
    }

    /// Adds a plan and returns its index. The oldest plan is replaced when there are too many.
    pub(crate) fn insert(&mut self, plan: EagerPlan, algorithm: &'static Algorithm) -> usize {
        insert_bounded(&mut self.plans, &mut self.oldest, (plan, algorithm))
    }

    /// Records that the operation of `key` cannot be eager.
    pub(crate) fn insert_not_eager(&mut self, key: PlanKey) {
        insert_bounded(&mut self.not_eager, &mut self.oldest_not_eager, key);
    }

    /// Drops all entries, because the selection may change.
    pub(crate) fn clear(&mut self) {
        self.plans.clear();
        self.not_eager.clear();
    }

    /// Returns the size of all plans in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let entry = size_of::<(EagerPlan, &'static Algorithm)>();
        let lists = self.plans.capacity() * entry + self.not_eager.capacity() * size_of::<PlanKey>();
        lists + self.plans.iter().map(|(plan, _)| plan.bytes()).sum::<usize>()
    }
}

/// Entries of a cache; more than the distinct operations of a training step. A program that
/// alternates between more operations selects and plans them again.
pub(in crate::engine) const CACHE_ENTRIES_MAX: usize = 64;

/// Adds `entry` and returns its index. With [`CACHE_ENTRIES_MAX`] entries it replaces the oldest.
pub(in crate::engine) fn insert_bounded<T>(entries: &mut Vec<T>, oldest: &mut usize, entry: T) -> usize {
    if entries.len() < CACHE_ENTRIES_MAX {
        entries.push(entry);
        return entries.len() - 1;
    }
    let replaced = *oldest;
    entries[replaced] = entry;
    *oldest = (replaced + 1) % CACHE_ENTRIES_MAX;
    replaced
}
