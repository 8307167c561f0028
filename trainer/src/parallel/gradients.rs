//! Gradients from the moment a bucket of them is complete until the step is taken: reduced in order, and kept whole
//! or in shares.

use super::base::Base;
use super::flight::Flight;
use super::norm::Squares;
use super::shares::{From, Shares};
use super::{Form, Mean, ReduceEach};
use crate::error::Result;
use crate::flat::{BucketId, Numbers, Peers};
use crate::parameter::ParameterId;
use std::collections::VecDeque;

/// What a rank has of the mean gradients, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// All of them, in whole buckets.
    All,
    /// Its share, in its place in whole buckets that stay.
    ShareInPlace,
    /// Its share; whole buckets are freed when they are reduced.
    Share,
}

/// The reductions of one rank's gradients, and their results.
pub(super) struct Gradients {
    keeps: Keeps,
    /// With [`Keeps::Share`], this rank's shares of the mean gradients, by bucket.
    shares: Vec<Option<Numbers>>,
    reductions: VecDeque<(BucketId, Flight)>,
}

impl Gradients {
    pub(super) fn new(keeps: Keeps, base: &Base) -> Self {
        let shares = base.store.layout.ids().map(|_| None).collect();
        Self { keeps, shares, reductions: VecDeque::new() }
    }

    /// A use of a parameter was added; starts the reductions that become due.
    pub(super) fn ready(&mut self, base: &mut Base, id: ParameterId) -> Result<()> {
        base.ready(id)?;
        while self.reduces_now(base) {
            let Some(bucket) = base.complete() else { break };
            self.launch(base, bucket)?;
        }
        Ok(())
    }

    /// Backward has ended: reduces what is left, and waits for all.
    pub(super) fn finish(&mut self, base: &mut Base) -> Result<()> {
        while let Some(bucket) = base.rest()? {
            self.launch(base, bucket)?;
            if self.is_naive(base) {
                self.land_all(base)?;
            }
        }
        self.land_all(base)
    }

    fn is_naive(&self, base: &Base) -> bool {
        self.keeps == Keeps::All && base.settings.form == Form::Naive
    }

    /// Whether buckets are reduced as they become complete in this backward pass.
    fn reduces_now(&self, base: &Base) -> bool {
        let each = base.settings.reduce_each == ReduceEach::MicroBatch && self.keeps == Keeps::Share;
        (base.is_last() || each) && !self.is_naive(base)
    }

    fn launch(&mut self, base: &mut Base, bucket: BucketId) -> Result<()> {
        let most = if self.keeps == Keeps::Share { base.settings.reductions_max.max(1) } else { usize::MAX };
        while self.reductions.len() >= most {
            self.reductions.front().map_or(Ok(()), |(_, flight)| flight.arrive())?;
            self.land_first(base)?;
        }
        let reduce = match self.keeps {
            Keeps::All => Mean::all_reduce,
            Keeps::ShareInPlace => Mean::reduce_scatter_in_place,
            Keeps::Share => Mean::reduce_scatter,
        };
        let whole = base.store.take_gradients(bucket)?;
        let (mean, partial) = (base.mean.clone(), base.partial(bucket));
        let reduction = move |peers: Option<Peers<'_>>, mut whole: Numbers| {
            partial.sum(&mut whole)?;
            reduce(&mean, peers, whole)
        };
        let flight = Flight::start(base.group.as_ref(), whole, reduction)?;
        self.reductions.push_back((bucket, flight));
        Ok(())
    }

    fn land_all(&mut self, base: &mut Base) -> Result<()> {
        while !self.reductions.is_empty() {
            self.land_first(base)?;
        }
        Ok(())
    }

    /// Waits for the oldest reduction. A share adds to what there is of it from earlier micro-batches.
    fn land_first(&mut self, base: &mut Base) -> Result<()> {
        let Some((bucket, flight)) = self.reductions.pop_front() else { return Ok(()) };
        let reduced = flight.land(&mut base.waited)?;
        match &mut self.shares[bucket.0] {
            _ if self.keeps != Keeps::Share => base.store.put_gradients(bucket, reduced),
            Some(sum) => sum.add(&reduced)?,
            none => *none = Some(reduced),
        }
        Ok(())
    }

    /// Takes out what has this rank's gradients of a bucket; zeros where nothing came.
    pub(super) fn take(&mut self, base: &mut Base, bucket: BucketId) -> Result<From<Numbers>> {
        if self.keeps != Keeps::Share {
            return Ok(From { numbers: base.store.take_gradients(bucket)?, start: 0 });
        }
        let share = base.store.layout.share(bucket, base.rank());
        let numbers = self.shares[bucket.0].take().map(Ok);
        let numbers = numbers.unwrap_or_else(|| base.store.no_gradients(bucket, share.len()))?;
        Ok(From { numbers, start: share.start })
    }

    fn put(&mut self, base: &mut Base, bucket: BucketId, gradients: Numbers) {
        match self.keeps {
            Keeps::Share => self.shares[bucket.0] = Some(gradients),
            Keeps::All | Keeps::ShareInPlace => base.store.put_gradients(bucket, gradients),
        }
    }

    /// The step was taken with `gradients`: buckets that stay are cleared, shares are freed.
    pub(super) fn spend(&mut self, base: &mut Base, bucket: BucketId, mut gradients: Numbers) -> Result<()> {
        if self.keeps != Keeps::Share {
            gradients.clear()?;
            base.store.put_gradients(bucket, gradients);
        }
        Ok(())
    }

    /// The norm of the whole model's gradient.
    pub(super) fn norm(&mut self, base: &mut Base, shares: &Shares) -> Result<f64> {
        let (mut squares, layout) = (Squares::new(&base.store.memory), base.layout());
        for bucket in base.trainable() {
            let own = match self.keeps {
                Keeps::All => 0..layout[bucket].count,
                Keeps::ShareInPlace | Keeps::Share => layout.share(bucket, base.rank()),
            };
            let gradients = self.take(base, bucket)?;
            shares.add_squares(bucket, own, gradients.view(), |id| base.counts(id), &mut squares)?;
            self.put(base, bucket, gradients.numbers);
        }
        base.norm(squares, self.keeps != Keeps::All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::memory::Memory;
    use crate::parallel::{Kind, Settings, Team};
    use crate::parameter::{Init, Parameter, Registry};
    use crate::testing::{gpu, on};
    use std::sync::Arc;

    /// How many collectives have been enqueued on a GPU when each of three gradients is ready, the last first.
    fn enqueued(form: Form, bucket_bytes: usize) -> Vec<usize> {
        let mut registry = Registry::default();
        for name in ["one", "two", "three"] {
            registry.unit(name, |r| r.add(Parameter::new("weight", &[8, 8], Init::Normal(0.5))));
        }
        let inventory = Arc::new(registry.finish());
        let counts = on(2, |group| {
            let memory = Memory::default();
            let device = Device::new(&gpu(), &memory).unwrap();
            let settings = Settings { form, bucket_bytes, ..Settings::default() };
            let (team, memory) = (Team::of_data(Some(group)), memory.on(device.compute()));
            let mut base = Base::new(Kind::Replicated, &inventory, team, &settings, &memory).unwrap();
            let mut gradients = Gradients::new(Keeps::All, &base);
            base.begin(true);
            let ready = |id| {
                gradients.ready(&mut base, ParameterId(id)).unwrap();
                gradients.reductions.len()
            };
            let counts: Vec<_> = [2, 1, 0].map(ready).to_vec();
            gradients.finish(&mut base).unwrap();
            device.compute().stream().synchronize().unwrap();
            counts
        });
        assert_eq!(counts[0], counts[1]);
        counts[0].clone()
    }

    #[test]
    fn collectives_on_a_gpu_are_enqueued_before_backward_ends() {
        let one = 4 * 64;
        assert_eq!(enqueued(Form::Overlapped, one), [1, 2, 3]);
        assert_eq!(enqueued(Form::Bucketed, 2 * one), [0, 1, 2]);
        assert_eq!(enqueued(Form::Naive, one), [0, 0, 0]);
    }
}
