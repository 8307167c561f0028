//! Collectives under way, on the host or on a GPU.

use crate::bucket::{DeviceBuffer, FlatBuffer};
use crate::data_parallel::data_group::DataGroup;
use std::sync::Arc;
use std::time::{Duration, Instant};
use unisono::Work;
use unisono::device::Event;
use unisono_cuda::device::compute::Compute;
use unisono_nn::error::Result;
use unisono_nn::gpu_timeline::GpuTrack;
use unisono_nn::process_group::Comm;

/// Result of a collective under way. It is complete at once if the group has one rank.
pub(super) enum PendingCollective {
    Complete(FlatBuffer),
    Host(Work<FlatBuffer>),
    Device(EnqueuedCollective),
}

/// Buffer in GPU memory, valid after the event `done`.
pub(super) struct EnqueuedCollective {
    buffer: FlatBuffer,
    done: Event,
    /// Stream that used the buffer before, and continues afterwards.
    owner: Arc<Compute>,
}

impl PendingCollective {
    /// Starts `operation` with `numbers` on the group, or runs it directly if this rank is alone.
    /// In GPU memory, the operation waits for all work enqueued so far and overlaps with later
    /// work.
    pub(super) fn start(
        group: Option<&DataGroup>,
        numbers: FlatBuffer,
        operation: impl FnOnce(Option<Comm<'_>>, FlatBuffer) -> unisono::Result<FlatBuffer> + Send + 'static,
    ) -> Result<Self> {
        let Some(group) = group else { return Ok(Self::Complete(operation(None, numbers)?)) };
        if let Some(lane) = &group.lane {
            return EnqueuedCollective::enqueue(lane, group, numbers, operation).map(Self::Device);
        }
        // Another thread executes the operation, so that the caller computes meanwhile.
        let on_host = move |group: &unisono::Communicator| operation(Some(group.into()), numbers);
        Ok(Self::Host(group.process_group.host().spawn(on_host)))
    }

    /// Makes the host wait until a GPU operation is complete. The wait bounds how far the host runs
    /// ahead, and so the memory of pending operations. Kernels that wait for other ranks end by
    /// their timeout.
    pub(super) fn synchronize(&self) -> Result<()> {
        match self {
            PendingCollective::Device(enqueued) => Ok(enqueued.done.synchronize()?),
            PendingCollective::Complete(_) | PendingCollective::Host(_) => Ok(()),
        }
    }

    /// Returns the result, and adds the waiting time of the host to `waited`. On a GPU, only later
    /// enqueued work waits.
    pub(super) fn wait(self, waited: &mut Duration) -> Result<FlatBuffer> {
        let start = Instant::now();
        let result = match self {
            PendingCollective::Complete(result) => Ok(result),
            PendingCollective::Host(pending) => pending.wait(),
            PendingCollective::Device(enqueued) => enqueued.finish(),
        };
        *waited += start.elapsed();
        Ok(result?)
    }
}

impl EnqueuedCollective {
    fn enqueue(
        lane: &Arc<Compute>,
        group: &DataGroup,
        mut numbers: FlatBuffer,
        operation: impl FnOnce(Option<Comm<'_>>, FlatBuffer) -> unisono::Result<FlatBuffer>,
    ) -> Result<Self> {
        let home = Arc::clone(device_buffer(&mut numbers).lane());
        // The lane waits for this event and the host does not, so the collective follows the last
        // gradient of its bucket while backward goes on
        // (docs/decisions/0015-training-on-the-device.md).
        let last_use = home.stream().record()?;
        device_buffer(&mut numbers).move_to_lane(lane, &last_use)?;
        let start = group.timeline.as_ref().map(|timeline| timeline.begin(lane.stream())).transpose()?;
        let numbers = operation(Some(group.peers()), numbers)?;
        if let Some(timeline) = &group.timeline {
            let name = format!("collective of {} numbers", numbers.len());
            timeline.end(GpuTrack::Communication, name, lane.stream(), start.flatten())?;
        }
        Ok(Self { buffer: numbers, done: lane.stream().record()?, owner: home })
    }

    fn finish(mut self) -> unisono::Result<FlatBuffer> {
        // The buffer returns to the stream of the modules, because a buffer is recycled by the
        // stream that has it.
        device_buffer(&mut self.buffer).move_to_lane(&self.owner, &self.done)?;
        Ok(self.buffer)
    }
}

fn device_buffer(numbers: &mut FlatBuffer) -> &mut DeviceBuffer {
    numbers.as_device_mut().expect("numbers lie where the group is")
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono::Sum;
    use unisono_nn::allocator::{AllocClass, Allocator};
    use unisono_nn::parameter::Dtype;
    use unisono_nn::testing::{gpu, run_ranks};

    const COUNT: usize = 1000;

    fn ones(memory: &Allocator) -> FlatBuffer {
        let mut numbers = FlatBuffer::zeros(memory, AllocClass::Gradients, Dtype::F32, COUNT).unwrap();
        numbers.narrow(0..COUNT, &[1.0; COUNT]).unwrap();
        numbers
    }

    #[test]
    fn later_device_work_does_not_wait_for_collective() {
        let sums = run_ranks(2, |world| {
            let gpu = gpu();
            let lane = Arc::new(Compute::without_cublas(gpu.stream().unwrap()).unwrap());
            let memory = Allocator::default().with_lane(&lane);
            let group = DataGroup::new(world.clone(), &memory).unwrap();
            let (numbers, mut later, first) = (ones(&memory), ones(&memory), world.rank() == 0);
            if !first {
                world.barrier().unwrap();
            }
            let sum = |peers: Option<Comm<'_>>, mut numbers: FlatBuffer| {
                numbers.all_reduce(peers.expect("a group"), Sum)?;
                Ok(numbers)
            };
            let flight = PendingCollective::start(Some(&group), numbers, sum).unwrap();
            if first {
                // The collective waits for the other rank, which waits for this call.
                later.divide(2).unwrap();
                lane.stream().synchronize().unwrap();
                let PendingCollective::Device(enqueued) = &flight else { panic!("on a GPU") };
                assert!(!enqueued.done.is_done().unwrap());
                world.barrier().unwrap();
            }
            let sum = flight.wait(&mut Duration::default()).unwrap();
            [&sum, &later].map(|numbers| numbers.view(&memory, 0..COUNT).unwrap().to_vec())
        });
        assert_eq!(sums[0], [vec![2.0; COUNT], vec![0.5; COUNT]]);
        assert_eq!(sums[1][0], vec![2.0; COUNT]);
    }
}
