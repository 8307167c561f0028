//! Placement of ranks on GPUs. It says which ranks share a GPU, and how many blocks the GPU can
//! hold for them.

use crate::bootstrap::host_identity;
use crate::communicator::Communicator;
use crate::device::occupancy;
use crate::error::Result;
use crate::hash::fnv1a;
use unisono_cuda::device::{Gpu, GpuError};

/// The process and the GPU of a rank, in the form that it sends to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    /// Equal for all ranks of one host.
    pub(super) host: u64,
    pub(super) process: u64,
    /// UUID of the GPU. Numbers of GPUs differ between processes that see different ones.
    gpu: [u64; 2],
    /// Hardware queues of the GPU for the process.
    queues: usize,
    /// Blocks that can be resident on the GPU at once.
    room: usize,
    /// Blocks of the GPU that communicators of the process have reserved.
    reserved: usize,
    /// Channels of the settings.
    channels: usize,
}

/// The placements of all ranks, by rank.
pub(super) struct Placements {
    own: usize,
    all: Vec<Placement>,
}

impl Placement {
    /// Returns the placement of this rank on `gpu`, which has room for `room` blocks.
    pub(super) fn own(gpu: &Gpu, room: usize, channels: usize) -> Result<Self> {
        let uuid = u128::from_le_bytes(gpu.info().uuid()?);
        Ok(Self {
            host: host_hash(),
            process: u64::from(std::process::id()),
            gpu: [uuid as u64, (uuid >> 64) as u64],
            queues: gpu.hardware_queues(),
            room,
            reserved: occupancy::reserved_blocks(gpu),
            channels,
        })
    }

    fn to_words(self) -> [u64; WORDS] {
        let [queues, room, reserved, channels] =
            [self.queues, self.room, self.reserved, self.channels].map(|count| count as u64);
        [self.host, self.process, self.gpu[0], self.gpu[1], queues, room, reserved, channels]
    }

    fn from_words(words: &[u64; WORDS]) -> Self {
        let &[host, process, low, high, ref counts @ ..] = words;
        let [queues, room, reserved, channels] = counts.map(|count| count as usize);
        Self { host, process, gpu: [low, high], queues, room, reserved, channels }
    }

    pub(super) fn is_on_same_gpu(&self, other: &Placement) -> bool {
        (self.host, self.gpu) == (other.host, other.gpu)
    }

    fn is_in_same_process(&self, other: &Placement) -> bool {
        (self.host, self.process) == (other.host, other.process)
    }
}

impl Placements {
    /// Exchanges the placements of all ranks.
    pub(super) fn exchange(base: &Communicator, placement: &Placement) -> Result<Self> {
        let own_words = placement.to_words();
        let mut words = own_words.repeat(base.size());
        base.all_gather(&own_words, &mut words)?;
        Ok(Self::from_words(base.rank(), &words))
    }

    /// Returns the placements of all ranks, as they have told them.
    fn from_words(own_rank: usize, words: &[u64]) -> Self {
        let words = words.chunks_exact(WORDS).filter_map(|words| words.first_chunk());
        Self { own: own_rank, all: words.map(Placement::from_words).collect() }
    }

    /// Returns the placement of a rank.
    pub(super) fn of(&self, rank: usize) -> &Placement {
        &self.all[rank]
    }

    /// Returns true if all ranks are threads of one process. All ranks get the same answer.
    pub(super) fn are_in_one_process(&self) -> bool {
        self.all.iter().all(|placement| placement.is_in_same_process(self.of(self.own)))
    }

    /// Returns an error if ranks of a process have to share hardware queues. All ranks get the same
    /// error. If a kernel waited for another kernel in the same queue, it would wait forever.
    pub(super) fn check_queues(&self) -> std::result::Result<(), GpuError> {
        for placement in &self.all {
            let shares =
                |other: &&Placement| placement.is_on_same_gpu(other) && placement.is_in_same_process(other);
            let ranks = self.all.iter().filter(shares).count();
            // One queue must remain for the copies and fills of the library. If a process has a
            // single rank, that rank waits for no kernel of the process.
            if ranks > 1 && ranks >= placement.queues {
                return Err(GpuError::TooFewQueues { ranks, queues: placement.queues });
            }
        }
        Ok(())
    }

    /// Returns the number of channels with which all blocks of all ranks run at once, at least 1.
    ///
    /// The first communicator of a GPU gets the requested channels, as far as the blocks are free.
    /// Each later one gets at most half of the free blocks, so that some remain for others.
    pub(super) fn channels(&self) -> usize {
        let channels = self.all.iter().map(|placement| {
            let ranks = self.on_gpu_of(placement).count();
            let taken = self.reserved_on_gpu_of(placement);
            let free = placement.room.saturating_sub(taken);
            let share = if taken == 0 { free } else { free / 2 };
            (share / (ranks * BLOCKS_PER_CHANNEL)).min(placement.channels)
        });
        // Too few free blocks are reported when the blocks are reserved.
        channels.min().unwrap_or(1).max(1)
    }

    /// Returns the number of blocks of this rank's GPU that other processes have not reserved.
    pub(super) fn room(&self) -> usize {
        let own_placement = self.of(self.own);
        let others =
            self.first_of_processes(own_placement).filter(|other| !other.is_in_same_process(own_placement));
        own_placement.room.saturating_sub(reserved_sum(others))
    }

    /// Returns the number of processes on this rank's GPU, if this rank is the first of them.
    /// One rank of each GPU reports what concerns all.
    pub(super) fn processes_to_report(&self) -> Option<usize> {
        let own_placement = self.of(self.own);
        let is_first = self.all[..self.own].iter().all(|other| !other.is_on_same_gpu(own_placement));
        is_first.then(|| self.first_of_processes(own_placement).count())
    }

    fn on_gpu_of(&self, placement: &Placement) -> impl Iterator<Item = &Placement> {
        self.all.iter().filter(move |other| other.is_on_same_gpu(placement))
    }

    /// Returns the placement of one rank of each process on the GPU.
    fn first_of_processes(&self, placement: &Placement) -> impl Iterator<Item = &Placement> {
        let earlier = |rank: usize, other: &Placement| {
            let same = |known: &Placement| known.is_on_same_gpu(other) && known.is_in_same_process(other);
            self.all[..rank].iter().any(same)
        };
        let ranked = self.all.iter().enumerate();
        ranked
            .filter(move |(rank, other)| other.is_on_same_gpu(placement) && !earlier(*rank, other))
            .map(|(_, other)| other)
    }

    /// Returns the blocks of the GPU that all communicators have reserved, as far as ranks of this
    /// communicator know.
    fn reserved_on_gpu_of(&self, placement: &Placement) -> usize {
        reserved_sum(self.first_of_processes(placement))
    }
}

/// Returns the sum of the reserved blocks of several processes, which may report any number.
fn reserved_sum<'p>(placements: impl Iterator<Item = &'p Placement>) -> usize {
    placements.fold(0, |sum, other| sum.saturating_add(other.reserved))
}

/// Plans with placements that are parsed from bytes.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(bytes: &[u8]) {
    // Small numbers are equal more often, so that ranks share hosts, processes and GPUs.
    let word =
        |bytes: &[u8; 8]| if bytes[0] < 128 { u64::from(bytes[0] % 4) } else { u64::from_le_bytes(*bytes) };
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(word).take(WORDS * 16).collect();
    let mut placements = Placements::from_words(0, &words);
    for rank in 0..placements.all.len() {
        placements.own = rank;
        assert!(placements.room() <= placements.of(rank).room);
        assert!(placements.processes_to_report().is_none_or(|processes| processes <= words.len() / WORDS));
    }
    assert!(placements.channels() >= 1);
    let _ = placements.check_queues();
}

/// Returns the warning for a user whose processes share a GPU without MPS.
pub(super) fn time_slice_warning(gpu: &impl std::fmt::Debug, processes: usize) -> String {
    format!(
        "{processes} processes share {gpu:?}, and MPS does not run: the driver lets the kernels of one process \
         run at a time. Ranks that wait for each other lose a time slice, some milliseconds, at every message. \
         Start MPS before the programs (`nvidia-cuda-mps-control -d`), or run the ranks as threads of one process"
    )
}

/// Returns a value that is equal for all ranks of one host.
fn host_hash() -> u64 {
    fnv1a(host_identity().bytes().map(u64::from))
}

/// Blocks that a rank reserves for each channel. A program has at most as many lane programs, and a
/// group of sends and receives has one for each direction and channel.
pub(super) const BLOCKS_PER_CHANNEL: usize = 2;
const WORDS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(process: u64, gpu: u64) -> Placement {
        Placement { host: 7, process, gpu: [gpu, 0], queues: 32, room: 132, reserved: 0, channels: 8 }
    }

    fn on_one_gpu(ranks: usize, process: impl Fn(usize) -> u64) -> Placements {
        Placements { own: 0, all: (0..ranks).map(|rank| placement(process(rank), 1)).collect() }
    }

    #[test]
    fn placement_survives_the_exchange() {
        let sent = Placement { reserved: 5, gpu: [u64::MAX, 3], queues: 9, ..placement(4, 1) };
        assert_eq!(Placement::from_words(&sent.to_words()), sent);
    }

    #[test]
    fn ranks_beyond_hardware_queues_are_refused() {
        let checked = |ranks, queues| {
            let mut places = on_one_gpu(ranks, |_| 1);
            places.all.iter_mut().for_each(|place| place.queues = queues);
            places.check_queues()
        };
        assert_eq!(checked(7, 8), Ok(()));
        let refused = checked(8, 8).unwrap_err();
        assert_eq!(refused, GpuError::TooFewQueues { ranks: 8, queues: 8 });
        let text = refused.to_string();
        assert!(text.contains("8 ranks") && text.contains("8 hardware queues"), "{text}");
        assert!(text.contains("CUDA_DEVICE_MAX_CONNECTIONS=32"), "{text}");
        assert_eq!([checked(1, 1), checked(8, 32), checked(31, 32)], [const { Ok(()) }; 3]);
        let text = checked(32, 32).unwrap_err().to_string();
        assert!(text.contains("several processes, with at most 31 ranks each"), "{text}");
        let mut elsewhere = on_one_gpu(8, |rank| rank as u64 % 2);
        elsewhere.all.iter_mut().for_each(|place| place.queues = 8);
        assert_eq!(elsewhere.check_queues(), Ok(()), "each process has its own queues");
    }

    /// Blocks of each communicator of `ranks` ranks on one GPU, until there is no room.
    fn channels_of_each(ranks: usize) -> Vec<usize> {
        let (mut found, mut reserved) = (Vec::new(), 0);
        loop {
            let mut places = on_one_gpu(ranks, |_| 1);
            places.all.iter_mut().for_each(|place| place.reserved = reserved);
            let channels = places.channels();
            reserved += ranks * channels * BLOCKS_PER_CHANNEL;
            if reserved > 132 {
                return found;
            }
            found.push(channels);
        }
    }

    #[test]
    fn later_communicators_get_fewer_channels() {
        assert_eq!(channels_of_each(1), [8, 8, 8, 8, 8, 8, 8, 5, 2, 1, 1, 1]);
        assert_eq!(channels_of_each(2), [8, 8, 8, 4, 2, 1, 1, 1]);
        assert_eq!(channels_of_each(8), [8]);
        assert_eq!(channels_of_each(16), [4]);
        assert_eq!(channels_of_each(66), [1]);
        assert!(channels_of_each(67).is_empty(), "on one GPU");
    }

    #[test]
    fn blocks_do_not_depend_on_ranks_elsewhere() {
        for ranks in [2, 8, 66, 1024] {
            let places = (0..ranks).map(|rank| placement(rank as u64, rank as u64)).collect();
            assert_eq!(Placements { own: 0, all: places }.channels(), 8, "{ranks} ranks, each with a GPU");
        }
    }

    #[test]
    fn processes_on_one_gpu_count_together() {
        let mut places = on_one_gpu(4, |rank| rank as u64 / 2);
        assert_eq!(places.channels(), 8, "64 blocks");
        places.all[..2].iter_mut().for_each(|place| place.reserved = 40);
        places.all[2..].iter_mut().for_each(|place| place.reserved = 60);
        assert_eq!(places.channels(), 2, "half of 32 free blocks for four ranks");
        assert_eq!(places.room(), 72, "beside the 60 of the other process");
        assert_eq!(places.processes_to_report(), Some(2));
        assert!(!places.are_in_one_process() && on_one_gpu(4, |_| 1).are_in_one_process());
        places.own = 3;
        assert_eq!((places.room(), places.processes_to_report()), (92, None));
        places.all[3].gpu = [2, 0];
        assert_eq!(places.processes_to_report(), Some(1), "another GPU");
    }

    /// Ranks report these numbers to each other, and no number may cause a panic.
    #[test]
    fn reserved_blocks_of_any_number_add_up() {
        let mut places = on_one_gpu(4, |rank| rank as u64);
        places.all[1..3].iter_mut().for_each(|place| place.reserved = 1 << 63);
        assert_eq!((places.room(), places.channels()), (0, 1));
    }

    #[test]
    fn time_slice_warning_says_cost_and_remedy() {
        let text = time_slice_warning(&"GPU 0", 2);
        for part in ["2 processes", "milliseconds", "nvidia-cuda-mps-control -d", "one process"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
