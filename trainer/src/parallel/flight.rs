//! Communication under way.

use super::group::Group;
use crate::error::Result;
use crate::flat::{Numbers, OnDevice, Peers};
use std::sync::Arc;
use std::time::{Duration, Instant};
use unisono::Pending;
use unisono::device::Event;
use unisono_cuda::device::compute::Compute;

/// Numbers that a collective will bring, or has brought where there is nobody to talk to.
pub(super) enum Flight {
    Landed(Numbers),
    Pending(Pending<Numbers>),
    Enqueued(Enqueued),
}

/// Numbers of a GPU that are there when `done` has come.
pub(super) struct Enqueued {
    numbers: Numbers,
    done: Event,
    /// What worked on them before, and will again.
    home: Arc<Compute>,
}

impl Flight {
    /// Starts `operation` with `numbers` on the group, or runs it at once where this rank is alone. In memory of a GPU it begins when all
    /// is done that has been enqueued so far, and goes on beside what is enqueued from now on.
    pub(super) fn start(
        group: Option<&Group>,
        numbers: Numbers,
        operation: impl FnOnce(Option<Peers<'_>>, Numbers) -> unisono::Result<Numbers> + Send + 'static,
    ) -> Result<Self> {
        let Some(group) = group else { return Ok(Self::Landed(operation(None, numbers)?)) };
        if let Some(lane) = &group.lane {
            return Enqueued::start(lane, group.peers(), numbers, operation).map(Self::Enqueued);
        }
        let on_host = move |group: &unisono::Communicator| operation(Some(group.into()), numbers);
        Ok(Self::Pending(group.ranks.host().start(on_host)))
    }

    /// Lets the host wait until what is on its way on a GPU is there: who lands only then is not so far ahead that memory is taken for
    /// more than is meant to be under way. Kernels that wait for other ranks end by their timeout.
    pub(super) fn arrive(&self) -> Result<()> {
        match self {
            Flight::Enqueued(enqueued) => Ok(enqueued.done.synchronize()?),
            Flight::Landed(_) | Flight::Pending(_) => Ok(()),
        }
    }

    /// What it brought; `waited` grows by how long the host waited for it. What is enqueued later on a GPU waits there.
    pub(super) fn land(self, waited: &mut Duration) -> Result<Numbers> {
        let start = Instant::now();
        let result = match self {
            Flight::Landed(result) => Ok(result),
            Flight::Pending(pending) => pending.wait(),
            Flight::Enqueued(enqueued) => enqueued.land(),
        };
        *waited += start.elapsed();
        Ok(result?)
    }
}

impl Enqueued {
    fn start(
        lane: &Arc<Compute>,
        peers: Peers<'_>,
        mut numbers: Numbers,
        operation: impl FnOnce(Option<Peers<'_>>, Numbers) -> unisono::Result<Numbers>,
    ) -> Result<Self> {
        let home = Arc::clone(there(&mut numbers).lane());
        let before = home.stream().record()?;
        there(&mut numbers).hand_over(lane, &before)?;
        let numbers = operation(Some(peers), numbers)?;
        Ok(Self { numbers, done: lane.stream().record()?, home })
    }

    fn land(mut self) -> unisono::Result<Numbers> {
        there(&mut self.numbers).hand_over(&self.home, &self.done)?;
        Ok(self.numbers)
    }
}

fn there(numbers: &mut Numbers) -> &mut OnDevice {
    numbers.on_device_mut().expect("numbers lie where the group is")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flat::Dtype;
    use crate::memory::{Class, Memory};
    use crate::testing::{gpu, on};
    use unisono::Sum;

    const COUNT: usize = 1000;

    fn ones(memory: &Memory) -> Numbers {
        let mut numbers = Numbers::zeros(memory, Class::Gradients, Dtype::F32, COUNT).unwrap();
        numbers.narrow(0..COUNT, &[1.0; COUNT]).unwrap();
        numbers
    }

    #[test]
    fn what_is_enqueued_later_does_not_wait_for_a_collective() {
        let sums = on(2, |world| {
            let gpu = gpu();
            let lane = Arc::new(Compute::without_library(gpu.stream().unwrap()).unwrap());
            let memory = Memory::default().on(&lane);
            let group = Group::new(world.clone(), &memory).unwrap();
            let (numbers, mut later, first) = (ones(&memory), ones(&memory), world.rank() == 0);
            if !first {
                world.barrier().unwrap();
            }
            let sum = |peers: Option<Peers<'_>>, mut numbers: Numbers| {
                numbers.all_reduce(peers.expect("a group"), Sum)?;
                Ok(numbers)
            };
            let flight = Flight::start(Some(&group), numbers, sum).unwrap();
            if first {
                // The collective waits for the other rank, which waits for this.
                later.average(2).unwrap();
                lane.stream().synchronize().unwrap();
                let Flight::Enqueued(enqueued) = &flight else { panic!("on a GPU") };
                assert!(!enqueued.done.is_done().unwrap());
                world.barrier().unwrap();
            }
            let sum = flight.land(&mut Duration::default()).unwrap();
            [&sum, &later].map(|numbers| numbers.view(&memory, 0..COUNT).unwrap().to_vec())
        });
        assert_eq!(sums[0], [vec![2.0; COUNT], vec![0.5; COUNT]]);
        assert_eq!(sums[1][0], vec![2.0; COUNT]);
    }
}
