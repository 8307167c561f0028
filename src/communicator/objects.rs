//! Collectives of objects that serde encodes, with the feature `serde`.
//!
//! Ranks exchange the lengths of the encoded objects first, and the bytes after that. Both are one
//! call in the order of calls. A rank that cannot encode its object says so in place of a length,
//! so that no other rank waits for it.

use super::Communicator;
use super::counts::displacements;
use crate::engine::{Buffers, Job};
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::OpKind;
use crate::schedule::{Collective, Rank};
use serde::{Serialize, de::DeserializeOwned};
use unisono_cuda::{DType, as_bytes, as_bytes_mut};

impl Communicator {
    /// Copies the root's object to every rank. Only the root gives one, and gets it back.
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
        let (bytes, counts) = self.in_one_turn(|comm| comm.all_gather_encoded(encoded))?;
        self.decode_all(&bytes, &counts)
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
        gathered.map(|(bytes, counts)| self.decode_all(&bytes, &counts)).transpose()
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
        let mut bytes = encoded.map_or_else(|| self.zeros(count), Ok)?;
        let buffers = Buffers::in_place(&mut bytes, 0, 0);
        self.run(Job { kind, ..Job::even::<u8>(Collective::Broadcast, None, root, count, buffers) })?;
        Ok(bytes)
    }

    /// Gathers what all ranks encoded, one after the other, and the lengths.
    fn all_gather_encoded(&self, encoded: Result<Vec<u8>>) -> Result<(Vec<u8>, Vec<usize>)> {
        let kind = OpKind::AllGatherObject;
        let mut lengths = vec![0; self.size()];
        let own = [length_word(&encoded)];
        let buffers = Buffers::separate(as_bytes(&own), as_bytes_mut(&mut lengths));
        self.run(Job { kind, ..Job::even::<u64>(Collective::AllGather, None, 0, 1, buffers) })?;
        let (encoded, counts) = (encoded?, self.counts(&lengths, 0)?);
        let mut bytes = self.zeros(self.arg_check(kind).total_count(&counts)?)?;
        let (places, total) = (displacements(&counts, 1), bytes.len() as u64);
        let buffers = Buffers::separate(&encoded, &mut bytes);
        let shape = (kind, Collective::AllGather);
        self.run(Job::uneven(shape, (DType::U8, None), &places, (self.rank(), total), buffers))?;
        Ok((bytes, counts))
    }

    /// Gathers what all ranks encoded at the root.
    fn gather_encoded(&self, encoded: Result<Vec<u8>>, root: Rank) -> Result<Option<(Vec<u8>, Vec<usize>)>> {
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
        let mut bytes = self.zeros(self.arg_check(kind).total_count(&counts)?)?;
        let input = encoded.as_deref().unwrap_or(&[]);
        self.gather_bytes::<u8>(kind, input, (&mut bytes, &counts), root)?;
        encoded?;
        self.counts(&lengths, 0)?;
        Ok(at_root.then_some((bytes, counts)))
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
        let encoded = encoded?;
        let [count] = self.counts(&own, root)?[..] else { return Err(self.not_encoded(root)) };
        let counts = if at_root { self.counts(&lengths, root)? } else { Vec::new() };
        let mut bytes = self.zeros(count)?;
        self.scatter_bytes::<u8>(kind, (&encoded.concat(), &counts), &mut bytes, root)?;
        Ok(bytes)
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

    fn decode_all<T: DeserializeOwned>(&self, bytes: &[u8], counts: &[usize]) -> Result<Vec<T>> {
        let places = displacements(counts, 1).into_iter().enumerate();
        places.map(|(rank, (offset, length))| self.decode(rank, &bytes[offset..offset + length])).collect()
    }

    /// Decodes an object of rank `from`. No byte may be left over.
    fn decode<T: DeserializeOwned>(&self, from: Rank, bytes: &[u8]) -> Result<T> {
        let why = match postcard::take_from_bytes(bytes) {
            Ok((object, [])) => return Ok(object),
            Ok((_, rest)) => format!("{} bytes are left over", rest.len()),
            Err(error) => error.to_string(),
        };
        let (length, name) = (bytes.len(), std::any::type_name::<T>());
        Err(self.object_error(from, format!("its {length} bytes cannot be decoded as {name}: {why}")))
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

/// A length that no object has.
const NOT_ENCODED: u64 = u64::MAX;
