//! Runs plans: small operations whose data travels behind the flag.

use crate::engine::exec::eager_step::{EagerExec, no_window, poll_context, send_acks};
use crate::engine::exec::step::OPERANDS_MAX;
use crate::engine::plan::eager::{EagerPlan, Instr, PlanKey, SlotFit};
use crate::engine::plan::window_chunks;
use crate::engine::store_tuner::{Decision, StoreTuner, Timed};
use crate::engine::tuner_table::{EAGER_K16, OpClass};
use crate::engine::{Engine, Job};
use crate::error::Result;
use crate::op_desc::{AlgorithmDigest, OpDesc};
use crate::reduce_op::ReduceOp;
use crate::schedule::{Algorithm, Collective, PeerAccess, Rank};
use unisono_cuda::{PostOp, Store, copy_to};
use unisono_transports::{SlotClass, Tag};

/// What the engine keeps for small operations.
#[derive(Default)]
pub(in crate::engine) struct EagerPath {
    /// Posts so far, on all ranks: those that this rank only read included.
    next_sequence: u64,
    /// Those of them in slots of four pages.
    k16_published: u64,
    /// For each rank, how many posts it has surely seen; and the least of these.
    peer_acked: Vec<u64>,
    acked_by_all: u64,
    /// How many this rank has shown to have seen; so many at most it keeps to itself.
    acked: u64,
    ack_batch: u64,
    plans: Vec<(EagerPlan, &'static Algorithm)>,
    /// The keys for which there are none, a ring of as many.
    negative_cache: Vec<PlanKey>,
    oldest_negative: usize,
    /// The plan found last: mostly the one that is looked for.
    last: usize,
    /// Which plan is replaced next when there are too many.
    oldest: usize,
}

impl EagerPath {
    pub(in crate::engine) fn new(ranks: usize) -> Self {
        let unshown_max = SlotClass::Inline.slots(ranks) / ACKS_PER_PERIOD;
        Self { peer_acked: vec![0; ranks], ack_batch: unshown_max, ..Self::default() }
    }

    /// Bytes of all plans.
    pub(in crate::engine) fn bytes(&self) -> usize {
        let entry = size_of::<(EagerPlan, &'static Algorithm)>();
        let lists = self.plans.capacity() * entry + self.negative_cache.capacity() * size_of::<PlanKey>();
        lists + self.plans.iter().map(|(plan, _)| plan.bytes()).sum::<usize>()
    }

    /// Forgets all plans: another algorithm may be wanted now.
    pub(in crate::engine) fn clear(&mut self) {
        self.plans.clear();
        self.negative_cache.clear();
    }

    #[inline]
    fn find(&mut self, key: &PlanKey) -> Option<usize> {
        match self.plans.get(self.last) {
            Some((plan, _)) if plan.key == *key => Some(self.last),
            _ => self.search(key),
        }
    }

    fn search(&mut self, key: &PlanKey) -> Option<usize> {
        let found = self.plans.iter().position(|(plan, _)| plan.key == *key)?;
        self.last = found;
        Some(found)
    }

    fn insert(&mut self, plan: EagerPlan, algorithm: &'static Algorithm) -> usize {
        let entry = (plan, algorithm);
        if self.plans.len() < EAGER_PLANS_MAX {
            self.plans.push(entry);
            return self.plans.len() - 1;
        }
        self.oldest = (self.oldest + 1) % EAGER_PLANS_MAX;
        self.plans[self.oldest] = entry;
        self.oldest
    }

    fn insert_negative(&mut self, key: PlanKey) {
        if self.negative_cache.len() < EAGER_PLANS_MAX {
            return self.negative_cache.push(key);
        }
        self.oldest_negative = (self.oldest_negative + 1) % EAGER_PLANS_MAX;
        self.negative_cache[self.oldest_negative] = key;
    }
}

impl Engine {
    /// The plan for `job`, if it can be done with one. All ranks find the same.
    pub(in crate::engine) fn eager_plan(&mut self, job: &Job<'_>) -> Result<Option<usize>> {
        let Some(key) = self.fabric.window.as_ref().and_then(|_| PlanKey::of(job)) else {
            return Ok(None);
        };
        match self.eager.find(&key) {
            Some(index) => Ok(Some(index)),
            None if self.eager.negative_cache.contains(&key) => Ok(None),
            None => self.build_eager_plan(key, job),
        }
    }

    fn build_eager_plan(&mut self, key: PlanKey, job: &Job<'_>) -> Result<Option<usize>> {
        let algorithm =
            self.select_algorithm(job.collective, job.root, job.share_bytes_max, job.is_narrow())?;
        let Some(plan) = self.lower_eager(key, job, algorithm) else {
            self.eager.insert_negative(key);
            return Ok(None);
        };
        let shown_after = plan.slot_class.slots(self.fabric.ranks) / ACKS_PER_PERIOD;
        self.eager.ack_batch = self.eager.ack_batch.min(shown_after);
        if let Some(window) = &mut self.fabric.window {
            match plan.instrs.contains(&Instr::Publish) {
                true => window.prepare_slots(plan.slot_class)?,
                false => window.map_slots(plan.slot_class)?,
            }
        }
        Ok(Some(self.eager.insert(plan, algorithm)))
    }

    fn lower_eager(&self, key: PlanKey, job: &Job<'_>, algorithm: &'static Algorithm) -> Option<EagerPlan> {
        let spec = self.group_spec(job.collective, job.root, job.share_bytes_max);
        if algorithm.peer_access != PeerAccess::Window
            || (algorithm.chunks_per_share)(&spec) != 1
            || spec.ranks > OPERANDS_MAX
        {
            return None;
        }
        let chunks = window_chunks(algorithm, &spec);
        let is_plain = job.reduction.and_then(ReduceOp::factor).is_none();
        let fit = SlotFit::new(chunks, job.share_bytes_max, !is_plain, spec.ranks)?;
        let program = (algorithm.build)(&spec, self.fabric.rank);
        EagerPlan::new(
            (key, key.op.with_algorithm(AlgorithmDigest::of(algorithm))),
            &program,
            fit,
            is_plain,
            self.fabric.rank,
        )
    }

    /// Describes `job`, whose plan has this index.
    pub(in crate::engine) fn describe_eager(&mut self, index: usize) -> OpDesc {
        let sequence = self.take_sequence();
        let (plan, algorithm) = &self.eager.plans[index];
        self.last_algorithm = Some(algorithm);
        plan.op.with_sequence(sequence)
    }

    /// Carries out `job` with the plan of this index.
    pub(in crate::engine) fn run_eager(
        &mut self,
        index: usize,
        job: &mut Job<'_>,
        call: OpDesc,
    ) -> Result<()> {
        self.watchdog.begin_op(call);
        let EagerPlan { slot_class: slot, remote_bytes: foreign_bytes, .. } = self.eager.plans[index].0;
        self.wait_free_slot(slot)?;
        let account = self.eager_tuner(index, job.collective, job.share_bytes_max);
        let (store, timed) = match account {
            Some((account, choice)) => self.store_decision(account, choice, foreign_bytes == 0),
            None => (Store::Cached, Timed::No),
        };
        let (number, tag, ranks) = (self.eager.next_sequence, call.tag(0), self.fabric.ranks);
        let EagerPath { plans, peer_acked: seen, acked: shown, .. } = &mut self.eager;
        let plan = &plans[index].0;
        let (window, poll) = poll_context(&mut self.fabric, &mut self.watchdog, seen, shown)?;
        let mut exec = EagerExec {
            window,
            slot_class: slot,
            sequence: number,
            payload_offset: plan.payload_rotation.offset(number),
            flag_value: flag_value(number, &tag),
            tag,
            dtype: job.dtype,
            reduction: job.reduction,
            finish: job.reduction.map_or(PostOp::Identity, |reduction| reduction.post_op(ranks)),
            own_operand: plan.own_operand,
            store,
            poll,
        };
        match account {
            Some((account, _)) if timed != Timed::No => {
                let trial = exec.run_timed(&plan.instrs, &plan.operands, &mut job.buffers)?;
                let hint = self.tuners.tuner_mut(account).record(timed, store, trial);
                hint.into_iter().for_each(|hint| exec.window.set_hint(hint));
            }
            _ => {
                for act in &plan.instrs {
                    exec.step(act, &plan.operands, &mut job.buffers)?;
                }
            }
        }
        self.finish_publish(number);
        self.traffic.add_bytes(foreign_bytes);
        self.eager.k16_published += u64::from(slot == SlotClass::K16);
        Ok(())
    }

    /// Where is kept what the two ways into the slots of this plan cost, and what is chosen now; `None`: they are too short for
    /// a choice.
    fn eager_tuner(
        &mut self,
        index: usize,
        collective: Collective,
        share_bytes: usize,
    ) -> Option<(usize, Decision)> {
        let (plan, algorithm) = &self.eager.plans[index];
        let count = plan.slot_class.slots(self.fabric.ranks);
        match plan.slot_class {
            SlotClass::Inline | SlotClass::HalfPage => None,
            SlotClass::K16 => {
                Some((EAGER_K16, StoreTuner::explore_in_turn(self.eager.k16_published % count)))
            }
            SlotClass::K32 | SlotClass::K64 | SlotClass::K128 => {
                let kind = OpClass::new(collective, AlgorithmDigest::of(algorithm), share_bytes)
                    .in_slots(plan.slot_class);
                let place = self.tuners.entry(kind);
                Some((place, self.tuners.tuner_mut(place).next_decision(0, count)))
            }
        }
    }

    /// Posts `words`, up to seven, to everybody under `tag`; the number of the post.
    pub(in crate::engine) fn publish(&mut self, tag: &Tag, words: &[u64]) -> Result<u64> {
        self.wait_free_slot(SlotClass::Inline)?;
        let number = self.eager.next_sequence;
        let window = self.fabric.window.as_mut().ok_or_else(no_window)?;
        for (index, word) in words.iter().enumerate() {
            let target = window.own_slot(SlotClass::Inline, number, index * 8, 8);
            copy_to(Store::Cached, target, word.to_ne_bytes()[..].into());
        }
        window.publish(SlotClass::Inline, number, flag_value(number, tag), tag);
        Ok(number)
    }

    /// Waits for post `number` of `peer`; the words in it.
    pub(in crate::engine) fn wait_published<const WORDS: usize>(
        &mut self,
        peer: Rank,
        number: u64,
        tag: &Tag,
    ) -> Result<[u64; WORDS]> {
        let EagerPath { peer_acked: seen, acked: shown, .. } = &mut self.eager;
        let (window, mut poll) = poll_context(&mut self.fabric, &mut self.watchdog, seen, shown)?;
        poll.wait(window, peer, SlotClass::Inline, number, flag_value(number, tag), tag)?;
        let mut words = [0; WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            copy_to(
                Store::Cached,
                bytes[..].as_mut().into(),
                window.slot(peer, SlotClass::Inline, number, index * 8, 8),
            );
            *word = u64::from_ne_bytes(bytes);
        }
        Ok(words)
    }

    /// This rank is through with post `number`. It does not show that each time: whoever writes faster than this rank reads would
    /// look at the count as often as it changes.
    #[inline]
    pub(in crate::engine) fn finish_publish(&mut self, number: u64) {
        self.eager.next_sequence = number + 1;
        if number + 1 - self.eager.acked >= self.eager.ack_batch {
            self.send_acks();
        }
    }

    /// Shows all posts that this rank has seen, before it waits, for whatever it is.
    pub(in crate::engine) fn send_acks(&mut self) {
        if let Some(window) = self.fabric.window.as_mut() {
            send_acks(window, &mut self.eager.acked, self.eager.next_sequence);
        }
    }

    /// Waits until everybody has seen what this rank's next slot of this kind holds.
    #[inline(always)]
    fn wait_free_slot(&mut self, slot: SlotClass) -> Result<()> {
        let slots = slot.slots(self.fabric.ranks);
        let free = self.eager.acked_by_all + slots > self.eager.next_sequence;
        if free { Ok(()) } else { self.wait_for_acks(slots) }
    }

    fn wait_for_acks(&mut self, slots: u64) -> Result<()> {
        self.send_acks();
        let number = self.eager.next_sequence;
        for peer in (0..self.fabric.ranks).filter(|&peer| peer != self.fabric.rank) {
            while self.eager.peer_acked[peer].saturating_add(slots) <= number {
                let seen = self.fabric.window.as_ref().map_or(u64::MAX, |window| window.acked(peer));
                self.eager.peer_acked[peer] = seen.max(self.eager.peer_acked[peer]);
                if seen.saturating_add(slots) <= number {
                    self.watchdog.wait_round(
                        &mut *self.fabric.control,
                        &mut *self.fabric.wait,
                        std::iter::once(peer),
                    )?;
                }
            }
        }
        self.eager.peer_acked[self.fabric.rank] = number;
        self.eager.acked_by_all = self.eager.peer_acked.iter().copied().min().unwrap_or(number);
        self.watchdog.progressed();
        Ok(())
    }
}

/// Number of the post above, a digest of the operation below: equal when both ranks do the same.
fn flag_value(number: u64, tag: &Tag) -> u64 {
    let [sequence, what, count, _] = tag.0;
    let mixed = (sequence ^ what.rotate_left(32)).wrapping_mul(HASH_MULTIPLIER) ^ count;
    ((number + 1) << DIGEST_BITS) | mixed.wrapping_mul(HASH_MULTIPLIER) >> DIGEST_BITS
}

/// How often a rank shows what it has seen while it reads all slots once, of the kind in use that has the fewest.
const ACKS_PER_PERIOD: u64 = 4;
/// A large odd number without a pattern: the golden ratio in 64 bits.
const HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
pub(in crate::engine) const DIGEST_BITS: u32 = 32;
/// Sheets kept; a program that alternates between more operations than that translates anew.
const EAGER_PLANS_MAX: usize = 64;
