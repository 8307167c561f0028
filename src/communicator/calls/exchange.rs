//! The exchange of shares, such as vectors and encoded objects, of which each rank knows only the
//! length of its own.
//!
//! Ranks exchange the lengths first, and the elements after that. The two steps are one call in the
//! order of calls, see [`Communicator::in_one_turn`]. A rank that has no share to give sends a
//! special value as the length, so that no other rank waits for it.
//!
//! No memory is reserved for a length that another rank only announces. So long shares travel in
//! parts, and each part is at most as long as all parts before it.

use crate::communicator::Communicator;
use crate::communicator::calls::counts::displacements;
use crate::engine::{Buffers, Job, UnevenCall};
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::OpKind;
use crate::schedule::{Collective, Rank};
use std::ops::Range;
use unisono_reducers::{Element, as_bytes, as_bytes_mut};

impl Communicator {
    /// Broadcasts the root's share. Other ranks give `None`.
    #[cfg(feature = "serde")]
    pub(in crate::communicator) fn broadcast_share<T: Element>(
        &self,
        kind: OpKind,
        own_share: Option<Result<Vec<T>>>,
        root: Rank,
    ) -> Result<Vec<T>> {
        let mut length = [own_share.as_ref().map_or(0, |own_share| length_word(own_share.as_deref()))];
        let buffers = Buffers::in_place(as_bytes_mut(&mut length), 0, 0);
        let job = Job::even::<u64>(Collective::Broadcast, None, root, 1, buffers);
        self.run(Job { kind, ..job })?;
        // The error of this rank comes after the exchange of lengths, so that no other rank waits
        // for its share.
        let own_share = own_share.transpose()?;
        let [count] = self.counts(&length, root)?[..] else { return Err(self.not_given(root)) };
        let mut share = own_share.unwrap_or_default();
        for part in parts::<T>(count, 1) {
            self.lengthen(&mut share, part.end)?;
            let buffers = Buffers::in_place(as_bytes_mut(&mut share[part.clone()]), 0, 0);
            let job = Job::even::<T>(Collective::Broadcast, None, root, part.len(), buffers);
            self.run(Job { kind, ..job })?;
        }
        Ok(share)
    }

    /// Gathers the shares of all ranks, by rank, on every rank.
    pub(in crate::communicator) fn all_gather_shares<T: Element>(
        &self,
        kind: OpKind,
        own_share: Result<&[T]>,
    ) -> Result<Vec<Vec<T>>> {
        let mut lengths = vec![0; self.size()];
        let length = [length_word(own_share.as_deref())];
        let buffers = Buffers::separate(as_bytes(&length), as_bytes_mut(&mut lengths));
        self.run(Job { kind, ..Job::even::<u64>(Collective::AllGather, None, 0, 1, buffers) })?;
        let (own_share, counts) = (own_share?, self.counts(&lengths, 0)?);
        let mut shares = vec![Vec::new(); self.size()];
        for part in parts::<T>(longest(&counts), self.size()) {
            let sizes: Vec<usize> = counts.iter().map(|&count| within(&part, count).len()).collect();
            let mut elements = self.zeros(self.arg_check(kind).total_count(&sizes)?)?;
            let places = displacements(&sizes, size_of::<T>());
            let call = UnevenCall {
                kind,
                collective: Collective::AllGather,
                dtype: T::DTYPE,
                reduction: None,
                places: &places,
                rank: self.rank(),
                digest: elements.len() as u64,
            };
            let input = as_bytes(&own_share[within(&part, own_share.len())]);
            let buffers = Buffers::separate(input, as_bytes_mut(&mut elements));
            self.run(Job::uneven(call, buffers))?;
            append(&mut shares, &elements, &sizes);
        }
        Ok(shares)
    }

    /// Gathers the shares of all ranks, by rank, at the root. Other ranks get `None`.
    pub(in crate::communicator) fn gather_shares<T: Element>(
        &self,
        kind: OpKind,
        own_share: Result<&[T]>,
        root: Rank,
    ) -> Result<Option<Vec<Vec<T>>>> {
        let at_root = self.rank() == root;
        let mut lengths = vec![0; if at_root { self.size() } else { 0 }];
        let length = [length_word(own_share.as_deref())];
        let buffers = Buffers::separate(as_bytes(&length), as_bytes_mut(&mut lengths));
        self.run(Job { kind, ..Job::even::<u64>(Collective::Gather, None, root, 1, buffers) })?;
        // The root expects no message of a rank without a share. The other ranks do not know which
        // ranks have none.
        let sizes: Vec<u64> = lengths.iter().map(|&word| if word == NOT_GIVEN { 0 } else { word }).collect();
        let counts = self.counts(&sizes, 0)?;
        let input = own_share.as_deref().unwrap_or(&[]);
        let first = 0..first_part::<T>(self.size());
        let sizes: Vec<usize> = counts.iter().map(|&count| within(&first, count).len()).collect();
        let mut elements = self.zeros::<T>(self.arg_check(kind).total_count(&sizes)?)?;
        let head = as_bytes(&input[within(&first, input.len())]);
        self.gather_bytes::<T>(kind, head, (as_bytes_mut(&mut elements), &sizes), root)?;
        let mut shares = vec![Vec::new(); sizes.len()];
        append(&mut shares, &elements, &sizes);
        self.gather_later_parts(input, (&mut shares, &counts), root)?;
        // All messages of this call are through, so no rank waits for this one any more.
        own_share?;
        self.counts(&lengths, 0)?;
        Ok(at_root.then_some(shares))
    }

    /// Gathers the parts of long shares after the first one. Only the root knows which ranks have
    /// more, so these parts are messages between it and each of them.
    fn gather_later_parts<T: Element>(
        &self,
        input: &[T],
        (shares, counts): (&mut [Vec<T>], &[usize]),
        root: Rank,
    ) -> Result<()> {
        if self.rank() != root {
            let mut later = parts::<T>(input.len(), self.size()).skip(1);
            return later.try_for_each(|part| self.send(&input[part], root));
        }
        for part in parts::<T>(longest(counts), self.size()).skip(1) {
            let mut receives = Vec::new();
            for (rank, share) in shares.iter_mut().enumerate() {
                let here = within(&part, counts[rank]);
                if rank == root {
                    share.extend_from_slice(&input[here]);
                } else if !here.is_empty() {
                    self.lengthen(share, here.end)?;
                    receives.push((rank, &mut share[here]));
                }
            }
            self.group(|group| receives.into_iter().for_each(|(rank, place)| _ = group.recv(place, rank)))?;
        }
        Ok(())
    }

    /// Sends each rank its share, and returns the share of this rank. Ranks other than the root
    /// give an empty list. At the root, which has its share already, returns `None`.
    pub(in crate::communicator) fn scatter_shares<T: Element>(
        &self,
        kind: OpKind,
        own_shares: Result<&[Vec<T>]>,
        root: Rank,
    ) -> Result<Option<Vec<T>>> {
        let lengths: Vec<u64> = match &own_shares {
            Ok(shares) => shares.iter().map(|share| share.len() as u64).collect(),
            Err(_) => vec![NOT_GIVEN; self.size()],
        };
        let mut length = [0];
        let buffers = Buffers::separate(as_bytes(&lengths), as_bytes_mut(&mut length));
        self.run(Job { kind, ..Job::even::<u64>(Collective::Scatter, None, root, 1, buffers) })?;
        let shares = own_shares?;
        let [count] = self.counts(&length, root)?[..] else { return Err(self.not_given(root)) };
        let first = 0..first_part::<T>(self.size());
        let (call, heads) = ((kind, Collective::Scatter), heads(shares, &first));
        if self.rank() == root {
            // Its own share is among the heads only to be checked, and no buffer receives it.
            self.move_shares(call, (T::DTYPE, root), &heads, Vec::new())?;
            self.scatter_later_parts(shares)?;
            return Ok(None);
        }
        let mut share = self.zeros::<T>(within(&first, count).len())?;
        self.move_shares(call, (T::DTYPE, root), &heads, vec![as_bytes_mut(&mut share)])?;
        for part in parts::<T>(count, self.size()).skip(1) {
            self.lengthen(&mut share, part.end)?;
            self.recv(&mut share[part], root)?;
        }
        Ok(Some(share))
    }

    /// Sends the parts of long shares after the first one to the ranks that have more.
    fn scatter_later_parts<T: Element>(&self, shares: &[Vec<T>]) -> Result<()> {
        let counts: Vec<usize> = shares.iter().map(Vec::len).collect();
        for part in parts::<T>(longest(&counts), self.size()).skip(1) {
            let has_more = |&(rank, share): &(Rank, &Vec<T>)| rank != self.rank() && share.len() > part.start;
            self.group(|group| {
                for (rank, share) in shares.iter().enumerate().filter(has_more) {
                    group.send(&share[within(&part, share.len())], rank);
                }
            })?;
        }
        Ok(())
    }

    /// Returns the lengths of shares. The first length is that of rank `first`.
    fn counts(&self, lengths: &[u64], first: Rank) -> Result<Vec<usize>> {
        match lengths.iter().position(|&length| length == NOT_GIVEN) {
            Some(index) => Err(self.not_given(first + index)),
            None => Ok(lengths.iter().map(|&length| length as usize).collect()),
        }
    }

    fn not_given(&self, rank: Rank) -> Error {
        let what = "that rank could not give it; its own error says why".to_owned();
        self.attach_rank(Error::new(ErrorKind::Object { rank, what }))
    }
}

/// Returns the value that a rank announces as the length of its share.
fn length_word<T>(share: std::result::Result<&[T], &Error>) -> u64 {
    share.map_or(NOT_GIVEN, |share| share.len() as u64)
}

/// Returns the elements of each share that belong to the first part, behind the number of elements
/// in the heads before.
fn heads<'a, T: Element>(shares: &'a [Vec<T>], first: &Range<usize>) -> Vec<(usize, &'a [u8])> {
    let mut offset = 0;
    let head = |share: &'a Vec<T>| {
        let head = &share[within(first, share.len())];
        offset += head.len();
        (offset - head.len(), as_bytes(head))
    };
    shares.iter().map(head).collect()
}

/// Appends the next `sizes[i]` elements to share i.
fn append<T: Element>(shares: &mut [Vec<T>], mut elements: &[T], sizes: &[usize]) {
    for (share, &size) in shares.iter_mut().zip(sizes) {
        share.extend_from_slice(elements.split_off(..size).unwrap_or(&[]));
    }
}

/// Returns the parts in which shares travel. The longest share has `longest` elements. Each part is
/// at most as long as all parts before it, so that memory grows with the elements that arrive.
fn parts<T>(longest: usize, ranks: usize) -> impl Iterator<Item = Range<usize>> {
    let mut end = 0usize;
    std::iter::from_fn(move || {
        let start = end;
        end = longest.min(start.saturating_add(start.max(first_part::<T>(ranks))));
        (start < longest).then_some(start..end)
    })
}

/// Returns the elements of the first part if `ranks` shares travel at once.
fn first_part<T>(ranks: usize) -> usize {
    (FIRST_PARTS_BYTES / ranks).max(FIRST_PART_BYTES_MIN) / size_of::<T>()
}

/// Returns the range of a part within a share of `length` elements.
fn within(part: &Range<usize>, length: usize) -> Range<usize> {
    part.start.min(length)..part.end.min(length)
}

fn longest(counts: &[usize]) -> usize {
    counts.iter().copied().max().unwrap_or(0)
}

/// Total size in bytes of the first parts of all shares that travel at once.
const FIRST_PARTS_BYTES: usize = 16 << 20;
const FIRST_PART_BYTES_MIN: usize = 64 << 10;
/// A length that no share has.
const NOT_GIVEN: u64 = u64::MAX;

/// Uses bytes as the lengths that ranks announce.
#[cfg(all(feature = "serde", any(test, feature = "fuzzing")))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let counts: Vec<usize> =
        bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word) as usize).collect();
    let (ranks, mut arrived) = (counts.len().max(1), 0);
    for (number, part) in parts::<u64>(longest(&counts), ranks).enumerate() {
        assert!(number < 64 && part.start == arrived && part.end > part.start);
        assert!(part.len() <= arrived.max(first_part::<u64>(ranks)), "memory grows with what has arrived");
        assert!(counts.iter().all(|&count| within(&part, count).len() <= part.len()));
        arrived = part.end;
    }
    assert_eq!(arrived, longest(&counts));
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// Returns the largest number of bytes that rank 0 reserves in a call in which rank 1 only
    /// `announces` shares.
    fn reserved_bytes(
        call: impl Fn(&Communicator) -> Result<()> + Sync,
        announces: impl Fn(&Communicator) -> Result<()> + Sync,
    ) -> u64 {
        let [honest, peer] = <[Communicator; 2]>::try_from(Communicator::local(2).unwrap()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                peer.in_one_turn(&announces).unwrap();
                peer.abort("nothing follows");
            });
            let reserved = allocation_counter::measure(|| {
                let error = call(&honest).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Aborted { by: 1, .. }), "{error}");
            });
            reserved.bytes_max
        })
    }

    /// The root's share for itself is copied only into the result.
    #[test]
    fn scatter_copies_the_share_of_the_root_once() {
        const COUNT: usize = FIRST_PARTS_BYTES / 2 / size_of::<f64>();
        let [root, peer] = <[Communicator; 2]>::try_from(Communicator::local(2).unwrap()).unwrap();
        let (inputs, mut share) = ([vec![1.0f64; COUNT], vec![2.0; COUNT]], Vec::new());
        let reserved = std::thread::scope(|scope| {
            scope.spawn(|| assert!(peer.scatter_vec::<f64>(None, 0).unwrap() == vec![2.0; COUNT]));
            allocation_counter::measure(|| share = root.scatter_vec(Some(&inputs[..]), 0).unwrap())
        });
        assert!(share == inputs[0]);
        let share_bytes = (COUNT * size_of::<f64>()) as u64;
        assert!((share_bytes..share_bytes * 2).contains(&reserved.bytes_total), "{}", reserved.bytes_total);
    }

    /// Memory grows with the bytes that arrive, and not with the bytes that a peer announces.
    #[test]
    fn announced_lengths_reserve_little_memory() {
        const MANY: u64 = 1 << 40;
        let words = [MANY; 2];
        let all_gather = |kind| {
            move |comm: &Communicator| {
                let mut gathered = [0u64; 2];
                let buffers = Buffers::separate(as_bytes(&words[..1]), as_bytes_mut(&mut gathered));
                comm.run(Job { kind, ..Job::even::<u64>(Collective::AllGather, None, 0, 1, buffers) })
            }
        };
        let gather = |kind| {
            move |comm: &Communicator| {
                let buffers = Buffers::separate(as_bytes(&words[..1]), &mut []);
                comm.run(Job { kind, ..Job::even::<u64>(Collective::Gather, None, 0, 1, buffers) })
            }
        };
        let scatter = |kind| {
            move |comm: &Communicator| {
                let mut share = [0u64];
                let buffers = Buffers::separate(as_bytes(&words), as_bytes_mut(&mut share));
                comm.run(Job { kind, ..Job::even::<u64>(Collective::Scatter, None, 1, 1, buffers) })
            }
        };
        let few = [1.0f64];
        let mut reserved = vec![
            reserved_bytes(|comm| comm.all_gather_vec(&few).map(drop), all_gather(OpKind::AllGatherVec)),
            reserved_bytes(|comm| comm.gather_vec(&few, 0).map(drop), gather(OpKind::GatherVec)),
            reserved_bytes(|comm| comm.scatter_vec::<f64>(None, 1).map(drop), scatter(OpKind::ScatterVec)),
        ];
        #[cfg(feature = "serde")]
        {
            let broadcast = |comm: &Communicator| {
                let (kind, mut word) = (OpKind::BroadcastObject, [MANY]);
                let buffers = Buffers::in_place(as_bytes_mut(&mut word), 0, 0);
                comm.run(Job { kind, ..Job::even::<u64>(Collective::Broadcast, None, 1, 1, buffers) })
            };
            let [all_gather, gather, scatter] = [
                reserved_bytes(
                    |comm| comm.all_gather_object(&String::new()).map(drop),
                    all_gather(OpKind::AllGatherObject),
                ),
                reserved_bytes(
                    |comm| comm.gather_object(&String::new(), 0).map(drop),
                    gather(OpKind::GatherObject),
                ),
                reserved_bytes(
                    |comm| comm.scatter_object::<String>(None, 1).map(drop),
                    scatter(OpKind::ScatterObject),
                ),
            ];
            let broadcast =
                reserved_bytes(|comm| comm.broadcast_object::<String>(None, 1).map(drop), broadcast);
            reserved.extend([all_gather, gather, scatter, broadcast]);
        }
        assert!(reserved.iter().all(|&bytes| bytes < 4 * FIRST_PARTS_BYTES as u64), "{reserved:?}");
    }
}
