//! Collectives of objects, which are encoded with serde. They need the feature `serde`, which is
//! enabled by default.
//!
//! Each rank knows only the length of its own encoded object. `exchange.rs` says how such shares
//! travel. A rank that cannot encode its object sends no share.

use crate::communicator::Communicator;
use crate::communicator::api::object_decoder;
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::OpKind;
use crate::schedule::Rank;
use serde::{Serialize, de::DeserializeOwned};

impl Communicator {
    /// Copies the root's object to every rank. Only the root gives an object, and gets it back.
    ///
    /// A rank refuses objects whose options, sequences, maps and enumerations are nested more than
    /// 128 levels deep. It also refuses objects that claim more elements than their bytes can hold.
    ///
    /// # Errors
    /// If the root cannot encode the object, every rank gets [`ErrorKind::Object`]. If a rank
    /// cannot decode it, only that rank gets this error. Such an error does not poison the
    /// communicator. Other errors are those of [`Communicator::all_reduce`].
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
        let kind = OpKind::BroadcastObject;
        let args = self.arg_check(kind);
        args.require_rank("root", root)?;
        args.require_at_root("object", root, object.is_some())?;
        let object = object.filter(|_| self.rank() == root);
        let encoded = object.as_ref().map(|object| self.encode(object));
        let bytes = self.in_one_turn(|comm| comm.broadcast_share(kind, encoded, root))?;
        object.map_or_else(|| self.decode(root, &bytes), Ok)
    }

    /// Returns the objects of all ranks, by rank, on every rank.
    ///
    /// # Errors
    /// If a rank cannot encode its object, every rank gets [`ErrorKind::Object`]. If a rank cannot
    /// decode an object, only that rank gets this error. Such an error does not poison the
    /// communicator. Other errors are those of [`Communicator::all_reduce`].
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
        let encoded = encoded.as_deref().map_err(Error::clone);
        let gathered = self.in_one_turn(|comm| comm.all_gather_shares(OpKind::AllGatherObject, encoded))?;
        self.decode_all(&gathered)
    }

    /// Returns the objects of all ranks, by rank, at the root. Other ranks get `None`.
    ///
    /// # Errors
    /// If a rank cannot encode its object, that rank and the root get [`ErrorKind::Object`]. If the
    /// root cannot decode an object, only the root gets this error. Such an error does not poison
    /// the communicator. Other errors are those of [`Communicator::all_reduce`].
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
        let kind = OpKind::GatherObject;
        self.arg_check(kind).require_rank("root", root)?;
        let encoded = self.encode(object);
        let encoded = encoded.as_deref().map_err(Error::clone);
        let gathered = self.in_one_turn(|comm| comm.gather_shares(kind, encoded, root))?;
        gathered.map(|objects| self.decode_all(&objects)).transpose()
    }

    /// Returns the root's object for this rank. Only the root gives objects, one for each rank.
    ///
    /// # Errors
    /// If the root cannot encode one of the objects, every rank gets [`ErrorKind::Object`]. If a
    /// rank cannot decode its object, only that rank gets this error. Such an error does not poison
    /// the communicator. Other errors are those of [`Communicator::all_reduce`].
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
        let kind = OpKind::ScatterObject;
        let args = self.arg_check(kind);
        args.require_rank("root", root)?;
        let objects = args.root_input("list of objects", root, objects)?;
        args.require_length_if(self.rank() == root, "list of objects", objects.len(), self.size())?;
        let encoded = objects.iter().map(|object| self.encode(object)).collect::<Result<Vec<_>>>();
        let shares = encoded.as_deref().map_err(Error::clone);
        let share = self.in_one_turn(|comm| comm.scatter_shares(kind, shares, root))?;
        match share {
            Some(bytes) => self.decode(root, &bytes),
            None => self.decode(root, &encoded?[root]),
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

    /// Decodes an object of rank `source`.
    fn decode<T: DeserializeOwned>(&self, source: Rank, bytes: &[u8]) -> Result<T> {
        object_decoder::decode(bytes).map_err(|why| {
            let (length, name) = (bytes.len(), std::any::type_name::<T>());
            self.object_error(source, format!("its {length} bytes cannot be decoded as {name}: {why}"))
        })
    }

    fn object_error(&self, rank: Rank, what: String) -> Error {
        self.attach_rank(Error::new(ErrorKind::Object { rank, what }))
    }
}

/// Decodes bytes as objects of a peer, and as the lengths that ranks announce.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    object_decoder::fuzzing::fuzz(bytes);
    crate::communicator::calls::exchange::fuzz(bytes);
}
