//! Collectives of objects that serde encodes, with the feature `serde`.
//!
//! Ranks exchange the lengths of the encoded objects first, and the bytes after that. Both are one
//! call in the order of calls. A rank that cannot encode its object says so in place of a length,
//! so that no other rank waits for it.
//!
//! A length is the word of another rank, and memory is not reserved on it: long objects travel in
//! parts, each no longer than what has come before it.

use super::Communicator;
use super::counts::displacements;
use super::object_decoder;
use crate::engine::{Buffers, Job};
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::OpKind;
use crate::schedule::{Collective, Rank};
use serde::{Serialize, de::DeserializeOwned};
use std::ops::Range;
use unisono_cuda::{DType, as_bytes, as_bytes_mut};

impl Communicator {
    /// Copies the root's object to every rank. Only the root gives one, and gets it back.
    ///
    /// A rank refuses objects whose options, sequences, maps and enumerations are nested more than
    /// 128 deep, and ones that have more elements than their bytes hold.
    ///
    /// # Errors
    /// [`ErrorKind::Object`] if the root cannot encode the object, on every rank; if a rank cannot
    /// decode it, on that rank. Neither poisons. Otherwise as [`Communicator::all_reduce`].
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let settings = (comm.rank() == 0).then(|| vec!["depth".to_owned(), "width".to_owned()]);
    /// let settings: Vec<String> = comm.broadcast_object(settings, 0).unwrap();
    /// assert_eq!(settings, ["depth", "width"]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn broadcast_object<T: Serialize + DeserializeOwned>(
        &self,
        object: Option<T>,
        root: Rank,
    ) -> Result<T> {
        let args = self.arg_check(OpKind::BroadcastObject);
        args.require_rank("root", root)?;
        args.require_at_root("object", root, object.is_some())?;
        let object = object.filter(|_| self.rank() == root);
        let encoded = object.as_ref().map(|object| self.encode(object));
        let bytes = self.in_one_turn(|comm| comm.broadcast_encoded(encoded, root))?;
        object.map_or_else(|| self.decode(root, &bytes), Ok)
    }

    /// Returns the objects of all ranks, by rank, on every rank.
    ///
    /// # Errors
    /// [`ErrorKind::Object`] if a rank cannot encode its object, on every rank; if a rank cannot
    /// decode one, on that rank. Neither poisons. Otherwise as [`Communicator::all_reduce`].
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let names = comm.all_gather_object(&format!("rank {}", comm.rank())).unwrap();
    /// assert_eq!(names, ["rank 0", "rank 1"]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn all_gather_object<T: Serialize + DeserializeOwned>(&self, object: &T) -> Result<Vec<T>> {
        let encoded = self.encode(object);
        self.decode_all(&self.in_one_turn(|comm| comm.all_gather_encoded(encoded))?)
    }

    /// Returns the objects of all ranks, by rank, at the root. Other ranks get `None`.
    ///
    /// # Errors
    /// [`ErrorKind::Object`] if a rank cannot encode its object, on that rank and at the root; if
    /// the root cannot decode one, at the root. Neither poisons. Otherwise as
    /// [`Communicator::all_reduce`].
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let losses = comm.gather_object(&(comm.rank(), 0.5), 0).unwrap();
    /// assert_eq!(losses, (comm.rank() == 0).then(|| vec![(0, 0.5), (1, 0.5)]));
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn gather_object<T: Serialize + DeserializeOwned>(
        &self,
        object: &T,
        root: Rank,
    ) -> Result<Option<Vec<T>>> {
        self.arg_check(OpKind::GatherObject).require_rank("root", root)?;
        let encoded = self.encode(object);
        let gathered = self.in_one_turn(|comm| comm.gather_encoded(encoded, root))?;
        gathered.map(|objects| self.decode_all(&objects)).transpose()
    }

    /// Returns the root's object for this rank. Only the root gives objects, one for each rank.
    ///
    /// # Errors
    /// [`ErrorKind::Object`] if the root cannot encode one of the objects, on every rank; if a rank
    /// cannot decode its object, on that rank. Neither poisons. Otherwise as
    /// [`Communicator::all_reduce`].
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let tasks = ["even".to_owned(), "odd".to_owned()];
    /// let given = (comm.rank() == 1).then_some(&tasks[..]);
    /// let task: String = comm.scatter_object(given, 1).unwrap();
    /// assert_eq!(task, tasks[comm.rank()]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn scatter_object<T: Serialize + DeserializeOwned>(
        &self,
        objects: Option<&[T]>,
        root: Rank,
    ) -> Result<T> {
        let args = self.arg_check(OpKind::ScatterObject);
        args.require_rank("root", root)?;
        let objects = args.root_input("list of objects", root, objects)?;
        args.require_length_if(self.rank() == root, "list of objects", objects.len(), self.size())?;
        let encoded = objects.iter().map(|object| self.encode(object)).collect::<Result<Vec<_>>>();
        let bytes = self.in_one_turn(|comm| comm.scatter_encoded(encoded, root))?;
        self.decode(root, &bytes)
    }

    /// Broadcasts what the root encoded. Other ranks give `None`.
    fn broadcast_encoded(&self, encoded: Option<Result<Vec<u8>>>, root: Rank) -> Result<Vec<u8>> {
        let kind = OpKind::BroadcastObject;
        let mut length = [encoded.as_ref().map_or(0, length_word)];
        let buffers = Buffers::in_place(as_bytes_mut(&mut length), 0, 0);
        let job = Job::even::<u64>(Collective::Broadcast, None, root, 1, buffers);
        self.run(Job { kind, ..job })?;
        let encoded = encoded.transpose()?;
        let [count] = self.counts(&length, root)?[..] else { return Err(self.not_encoded(root)) };
        let mut bytes = encoded.unwrap_or_default();
        for part in parts(count, 1) {
            self.lengthen(&mut bytes, part.end)?;
            let buffers = Buffers::in_place(&mut bytes[part.clone()], 0, 0);
            let job = Job::even::<u8>(Collective::Broadcast, None, root, part.len(), buffers);
            self.run(Job { kind, ..job })?;
        }
        Ok(bytes)
    }

    /// Gathers what all ranks encoded, by rank.
    fn all_gather_encoded(&self, encoded: Result<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        let kind = OpKind::AllGatherObject;
        let mut lengths = vec![0; self.size()];
        let own = [length_word(&encoded)];
        let buffers = Buffers::separate(as_bytes(&own), as_bytes_mut(&mut lengths));
        self.run(Job { kind, ..Job::even::<u64>(Collective::AllGather, None, 0, 1, buffers) })?;
        let (encoded, counts) = (encoded?, self.counts(&lengths, 0)?);
        let mut objects = vec![Vec::new(); self.size()];
        for part in parts(longest(&counts), self.size()) {
            let sizes: Vec<usize> = counts.iter().map(|&count| within(&part, count).len()).collect();
            let mut bytes = self.zeros(self.arg_check(kind).total_count(&sizes)?)?;
            let (places, total) = (displacements(&sizes, 1), bytes.len() as u64);
            let buffers = Buffers::separate(&encoded[within(&part, encoded.len())], &mut bytes);
            let shape = (kind, Collective::AllGather);
            self.run(Job::uneven(shape, (DType::U8, None), &places, (self.rank(), total), buffers))?;
            for (object, (offset, length)) in objects.iter_mut().zip(places) {
                object.extend_from_slice(&bytes[offset..offset + length]);
            }
        }
        Ok(objects)
    }

    /// Gathers what all ranks encoded at the root, by rank.
    fn gather_encoded(&self, encoded: Result<Vec<u8>>, root: Rank) -> Result<Option<Vec<Vec<u8>>>> {
        let kind = OpKind::GatherObject;
        let at_root = self.rank() == root;
        let mut lengths = vec![0; if at_root { self.size() } else { 0 }];
        let own = [length_word(&encoded)];
        let buffers = Buffers::separate(as_bytes(&own), as_bytes_mut(&mut lengths));
        self.run(Job { kind, ..Job::even::<u64>(Collective::Gather, None, root, 1, buffers) })?;
        // The root expects nothing of a rank that has nothing, and the others know of no such rank.
        let sizes: Vec<u64> =
            lengths.iter().map(|&word| if word == NOT_ENCODED { 0 } else { word }).collect();
        let counts = self.counts(&sizes, 0)?;
        let input = encoded.as_deref().unwrap_or(&[]);
        let first = 0..first_part(self.size());
        let sizes: Vec<usize> = counts.iter().map(|&count| within(&first, count).len()).collect();
        let mut bytes = self.zeros(self.arg_check(kind).total_count(&sizes)?)?;
        self.gather_bytes::<u8>(kind, &input[within(&first, input.len())], (&mut bytes, &sizes), root)?;
        let mut rest = &bytes[..];
        let mut objects: Vec<Vec<u8>> =
            sizes.iter().filter_map(|&size| rest.split_off(..size)).map(<[u8]>::to_vec).collect();
        self.gather_later_parts(input, (&mut objects, &counts), root)?;
        encoded?;
        self.counts(&lengths, 0)?;
        Ok(at_root.then_some(objects))
    }

    /// Gathers the parts of long objects after the first one. Only the root knows which ranks have
    /// more, so these parts are messages between it and each of them.
    fn gather_later_parts(
        &self,
        input: &[u8],
        (objects, counts): (&mut [Vec<u8>], &[usize]),
        root: Rank,
    ) -> Result<()> {
        if self.rank() != root {
            let mut later = parts(input.len(), self.size()).skip(1);
            return later.try_for_each(|part| self.send(&input[part], root));
        }
        for part in parts(longest(counts), self.size()).skip(1) {
            let mut receives = Vec::new();
            for (rank, object) in objects.iter_mut().enumerate() {
                let here = within(&part, counts[rank]);
                if rank == root {
                    object.extend_from_slice(&input[here]);
                } else if !here.is_empty() {
                    self.lengthen(object, here.end)?;
                    receives.push((rank, &mut object[here]));
                }
            }
            self.group(|group| receives.into_iter().for_each(|(rank, place)| _ = group.recv(place, rank)))?;
        }
        Ok(())
    }

    /// Scatters what the root encoded for each rank.
    fn scatter_encoded(&self, encoded: Result<Vec<Vec<u8>>>, root: Rank) -> Result<Vec<u8>> {
        let kind = OpKind::ScatterObject;
        let at_root = self.rank() == root;
        let lengths: Vec<u64> = match &encoded {
            Ok(encoded) => encoded.iter().map(|bytes| bytes.len() as u64).collect(),
            Err(_) => vec![NOT_ENCODED; self.size()],
        };
        let mut own = [0];
        let buffers = Buffers::separate(as_bytes(&lengths), as_bytes_mut(&mut own));
        self.run(Job { kind, ..Job::even::<u64>(Collective::Scatter, None, root, 1, buffers) })?;
        let mut encoded = encoded?;
        let [count] = self.counts(&own, root)?[..] else { return Err(self.not_encoded(root)) };
        let first = 0..first_part(self.size());
        let heads: Vec<&[u8]> = encoded.iter().map(|bytes| &bytes[within(&first, bytes.len())]).collect();
        let sizes: Vec<usize> = heads.iter().map(|head| head.len()).collect();
        let mut bytes = self.zeros(within(&first, count).len())?;
        self.scatter_bytes::<u8>(kind, (&heads.concat(), &sizes), &mut bytes, root)?;
        if at_root {
            self.scatter_later_parts(&encoded)?;
            return Ok(encoded.swap_remove(root));
        }
        for part in parts(count, self.size()).skip(1) {
            self.lengthen(&mut bytes, part.end)?;
            self.recv(&mut bytes[part], root)?;
        }
        Ok(bytes)
    }

    /// Sends the parts of long objects after the first one to the ranks that have more.
    fn scatter_later_parts(&self, encoded: &[Vec<u8>]) -> Result<()> {
        let counts: Vec<usize> = encoded.iter().map(Vec::len).collect();
        for part in parts(longest(&counts), self.size()).skip(1) {
            let has_more =
                |&(rank, bytes): &(Rank, &Vec<u8>)| rank != self.rank() && bytes.len() > part.start;
            self.group(|group| {
                for (rank, bytes) in encoded.iter().enumerate().filter(has_more) {
                    group.send(&bytes[within(&part, bytes.len())], rank);
                }
            })?;
        }
        Ok(())
    }

    /// Returns the lengths of objects, of which the first is that of rank `first`.
    fn counts(&self, lengths: &[u64], first: Rank) -> Result<Vec<usize>> {
        match lengths.iter().position(|&length| length == NOT_ENCODED) {
            Some(index) => Err(self.not_encoded(first + index)),
            None => Ok(lengths.iter().map(|&length| length as usize).collect()),
        }
    }

    fn encode<T: Serialize>(&self, object: &T) -> Result<Vec<u8>> {
        postcard::to_allocvec(object).map_err(|error| {
            let what = format!("{} cannot be encoded: {error}", std::any::type_name::<T>());
            self.object_error(self.rank(), what)
        })
    }

    fn decode_all<T: DeserializeOwned>(&self, objects: &[Vec<u8>]) -> Result<Vec<T>> {
        objects.iter().enumerate().map(|(rank, bytes)| self.decode(rank, bytes)).collect()
    }

    /// Decodes an object of rank `from`.
    fn decode<T: DeserializeOwned>(&self, from: Rank, bytes: &[u8]) -> Result<T> {
        object_decoder::decode(bytes).map_err(|why| {
            let (length, name) = (bytes.len(), std::any::type_name::<T>());
            self.object_error(from, format!("its {length} bytes cannot be decoded as {name}: {why}"))
        })
    }

    fn not_encoded(&self, rank: Rank) -> Error {
        self.object_error(rank, "that rank could not encode it; its own error says why".to_owned())
    }

    fn object_error(&self, rank: Rank, what: String) -> Error {
        self.attach_rank(Error::new(ErrorKind::Object { rank, what }))
    }
}

/// Returns what a rank tells the others of its encoded object.
fn length_word(encoded: &Result<Vec<u8>>) -> u64 {
    encoded.as_ref().map_or(NOT_ENCODED, |bytes| bytes.len() as u64)
}

/// Returns the parts in which objects travel, of which the longest has `longest` bytes. A part is
/// no longer than what came before it, so that memory grows with the bytes that arrive.
fn parts(longest: usize, ranks: usize) -> impl Iterator<Item = Range<usize>> {
    let mut end = 0usize;
    std::iter::from_fn(move || {
        let start = end;
        end = longest.min(start.saturating_add(start.max(first_part(ranks))));
        (start < longest).then_some(start..end)
    })
}

/// Decodes bytes as objects of a peer, and as the lengths that ranks announce.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    object_decoder::fuzzing::fuzz(bytes);
    let counts: Vec<usize> =
        bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word) as usize).collect();
    let (ranks, mut arrived) = (counts.len().max(1), 0);
    for (number, part) in parts(longest(&counts), ranks).enumerate() {
        assert!(number < 64 && part.start == arrived && part.end > part.start);
        assert!(part.len() <= arrived.max(first_part(ranks)), "memory grows with what has arrived");
        assert!(counts.iter().all(|&count| within(&part, count).len() <= part.len()));
        arrived = part.end;
    }
    assert_eq!(arrived, longest(&counts));
}

/// Returns the length of the first part if `ranks` objects travel at once.
fn first_part(ranks: usize) -> usize {
    (FIRST_PARTS_BYTES / ranks).max(FIRST_PART_BYTES_MIN)
}

/// Returns what a part has of an object of `length` bytes.
fn within(part: &Range<usize>, length: usize) -> Range<usize> {
    part.start.min(length)..part.end.min(length)
}

fn longest(counts: &[usize]) -> usize {
    counts.iter().copied().max().unwrap_or(0)
}

/// Bytes of the first parts of all objects that travel at once.
const FIRST_PARTS_BYTES: usize = 16 << 20;
const FIRST_PART_BYTES_MIN: usize = 64 << 10;
/// A length that no object has.
const NOT_ENCODED: u64 = u64::MAX;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// Returns the most bytes that rank 0 had reserved in a call for which rank 1 only `announces`
    /// objects.
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

    /// Memory grows with the bytes that arrive, and not by the word of a peer.
    #[test]
    fn announced_lengths_reserve_little_memory() {
        const TEBIBYTE: u64 = 1 << 40;
        let words = [TEBIBYTE; 2];
        let all_gather = |comm: &Communicator| {
            let (kind, mut all) = (OpKind::AllGatherObject, [0u64; 2]);
            let buffers = Buffers::separate(as_bytes(&words[..1]), as_bytes_mut(&mut all));
            comm.run(Job { kind, ..Job::even::<u64>(Collective::AllGather, None, 0, 1, buffers) })
        };
        let broadcast = |comm: &Communicator| {
            let (kind, mut word) = (OpKind::BroadcastObject, [TEBIBYTE]);
            let buffers = Buffers::in_place(as_bytes_mut(&mut word), 0, 0);
            comm.run(Job { kind, ..Job::even::<u64>(Collective::Broadcast, None, 1, 1, buffers) })
        };
        let gather = |comm: &Communicator| {
            let (kind, buffers) = (OpKind::GatherObject, Buffers::separate(as_bytes(&words[..1]), &mut []));
            comm.run(Job { kind, ..Job::even::<u64>(Collective::Gather, None, 0, 1, buffers) })
        };
        let scatter = |comm: &Communicator| {
            let (kind, mut own) = (OpKind::ScatterObject, [0u64]);
            let buffers = Buffers::separate(as_bytes(&words), as_bytes_mut(&mut own));
            comm.run(Job { kind, ..Job::even::<u64>(Collective::Scatter, None, 1, 1, buffers) })
        };
        let reserved = [
            reserved_bytes(|comm| comm.all_gather_object(&String::new()).map(drop), all_gather),
            reserved_bytes(|comm| comm.broadcast_object::<String>(None, 1).map(drop), broadcast),
            reserved_bytes(|comm| comm.gather_object(&String::new(), 0).map(drop), gather),
            reserved_bytes(|comm| comm.scatter_object::<String>(None, 1).map(drop), scatter),
        ];
        assert!(reserved.iter().all(|&bytes| bytes < 4 * FIRST_PARTS_BYTES as u64), "{reserved:?}");
    }
}
