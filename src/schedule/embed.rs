//! Algorithms that are embedded as parts of a larger program.

use super::{
    Algorithm, Chunk, ChunkRef, GroupSpec, PeerAccess, ProgramBuilder, Rank, Space, Step, chunk_at, input,
    output, scratch, window,
};

type Places<'a> = Box<dyn Fn(usize) -> Chunk + 'a>;

/// The place of an algorithm in a larger program, which maps its ranks and chunks to those of the
/// larger program.
///
/// The inner algorithm numbers its own ranks and chunks from 0. Each of its chunks consists of
/// several chunks of the larger program, which are its *pieces*. [`Embedding::with_pieces`] sets
/// their number, and chunk `chunk` has the pieces `chunk * pieces + i`, for `i` below `pieces`.
/// Functions map the number of a piece to its place.
pub struct Embedding<'a> {
    members: &'a [Rank],
    root: Rank,
    aggregation: usize,
    pieces: usize,
    input: Places<'a>,
    output: Places<'a>,
    finishes: bool,
}

impl<'a> Embedding<'a> {
    /// Returns an embedding in which the algorithm runs among `members`, which are ranks of the
    /// larger program, in this order. By default, its chunks are the chunks of the caller's buffers
    /// with the same numbers. The first member is the root, and sums are complete.
    pub fn new(members: &'a [Rank]) -> Self {
        Self {
            members,
            root: 0,
            aggregation: 1,
            pieces: 1,
            input: Box::new(input),
            output: Box::new(output),
            finishes: true,
        }
    }

    /// Makes the member at `position` the root.
    pub fn with_root(self, position: usize) -> Self {
        Self { root: position, ..self }
    }

    /// Sets the number of chunks that the algorithm packs into one message, if it aggregates
    /// chunks.
    pub fn with_aggregation(self, aggregation: usize) -> Self {
        Self { aggregation, ..self }
    }

    /// Sets the number of chunks of the larger program in each chunk of the algorithm. Messages
    /// carry these pieces together.
    pub fn with_pieces(self, pieces: usize) -> Self {
        Self { pieces, ..self }
    }

    /// Sets the place of each piece that the algorithm reads as its input.
    pub fn with_input(self, place: impl Fn(usize) -> Chunk + 'a) -> Self {
        Self { input: Box::new(place), ..self }
    }

    /// Sets the place of each piece that the algorithm writes as its output.
    pub fn with_output(self, place: impl Fn(usize) -> Chunk + 'a) -> Self {
        Self { output: Box::new(place), ..self }
    }

    /// Says that the sums are not complete, because a later part adds to them. Only the part that
    /// completes an average divides it.
    pub fn unfinished(self) -> Self {
        Self { finishes: false, ..self }
    }
}

impl std::fmt::Debug for Embedding<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { members, root, aggregation, pieces, finishes, .. } = self;
        write!(f, "Embedding {{ members: {members:?}, root: {root}, aggregation: {aggregation}, ")?;
        write!(f, "pieces: {pieces}, finishes: {finishes} }}")
    }
}

/// Translates the steps of an inner program.
struct Translation<'a> {
    embedding: &'a Embedding<'a>,
    scratch_before: usize,
    window_before: usize,
    signals_before: u32,
}

impl ProgramBuilder {
    /// Adds the steps of `algorithm` for this rank among the members of `embedding` to the current
    /// lane program. A rank that is no member gets no steps.
    ///
    /// The scratch of the algorithm follows the scratch that [`ProgramBuilder::reserve_scratch`]
    /// has reserved. Parts that follow one another use the same scratch. Every part has separate
    /// chunks of the window, because peers may still read those of the part before. All members
    /// must have added the same parts before, so that their windows and signals have the same
    /// numbers. The checker finds violations of this.
    ///
    /// # Panics
    /// Panics if the algorithm cannot run with so many ranks, has several lane programs at once or
    /// reaches the buffers of peers.
    ///
    /// This example is an all_reduce in two levels, for hosts with `local` ranks each. Only its
    /// middle part sends data between hosts.
    ///
    /// ```
    /// use unisono::schedule::algorithms::ring;
    /// use unisono::schedule::check::{cases, sweep};
    /// use unisono::schedule::{Algorithm, Collective, Embedding, ProgramBuilder, Rank, output};
    ///
    /// let two_level = |local: usize| {
    ///     Algorithm::new(format!("two_level_{local}"), Collective::AllReduce, move |spec, rank| {
    ///         let (hosts, own) = (spec.ranks / local, rank % local);
    ///         let host: Vec<Rank> = (rank - own..rank - own + local).collect();
    ///         let across: Vec<Rank> = (own..spec.ranks).step_by(local).collect();
    ///         // A share has a part for each rank of a host, which has a piece for each host.
    ///         let own_part = move |piece| output(own * hosts + piece);
    ///         let inside = || Embedding::new(&host).with_pieces(hosts);
    ///         let mut program = ProgramBuilder::new(rank);
    ///         program.embed(&ring::REDUCE_SCATTER, &inside().with_output(own_part).unfinished());
    ///         program.embed(
    ///             &ring::ALL_REDUCE,
    ///             &Embedding::new(&across).with_input(own_part).with_output(own_part),
    ///         );
    ///         program.embed(&ring::ALL_GATHER, &inside().with_input(own_part));
    ///         program.finish(0, 0)
    ///     })
    ///     .with_supports(move |spec| spec.ranks % local == 0)
    ///     .with_chunks_per_share(|spec| spec.ranks)
    /// };
    /// for local in [1, 2, 4] {
    ///     let algorithm = two_level(local);
    ///     assert!(sweep(&algorithm, &cases(&algorithm, 16, false)).violation.is_none());
    /// }
    /// ```
    pub fn embed(&mut self, algorithm: &Algorithm, embedding: &Embedding<'_>) -> &mut Self {
        let Embedding { members, root, aggregation, .. } = *embedding;
        let Some(position) = members.iter().position(|&member| member == self.rank()) else { return self };
        let spec = GroupSpec { ranks: members.len(), root, aggregation };
        assert!((algorithm.supports)(&spec), "{algorithm:?} cannot run with {spec:?}");
        assert!(algorithm.peer_access < PeerAccess::ZeroCopy, "{algorithm:?} reaches the buffers of peers");
        let inner = (algorithm.build)(&spec, position);
        assert!(inner.lane_programs.len() <= 1, "{algorithm:?} has several lane programs at once");
        let pieces = embedding.pieces;
        let translation = Translation {
            embedding,
            scratch_before: self.reserved_scratch(),
            window_before: self.use_window(inner.window * pieces),
            signals_before: self.signals(),
        };
        self.use_scratch(inner.scratch * pieces);
        for step in inner.lane_programs.into_iter().flat_map(|lane_program| lane_program.steps) {
            translation.steps(step).into_iter().for_each(|step| _ = self.step(step));
        }
        self
    }
}

impl Translation<'_> {
    /// Returns the steps of the larger program that do what an inner step does.
    fn steps(&self, step: Step) -> Vec<Step> {
        let peer_of = |peer: Rank| self.embedding.members[peer];
        match step {
            Step::Send { peer, chunks } => {
                vec![Step::Send { peer: peer_of(peer), chunks: self.all(&chunks) }]
            }
            Step::Recv { peer, into } => vec![Step::Recv { peer: peer_of(peer), into: self.all(&into) }],
            Step::RecvReduce { peer, with, into, finish } => {
                let (operands, targets) = (self.all(&with), self.all(&into));
                let finish = finish && self.embedding.finishes;
                vec![Step::RecvReduce { peer: peer_of(peer), with: operands, into: targets, finish }]
            }
            Step::Copy { from, into } => {
                let copies = (0..self.embedding.pieces)
                    .map(|piece| (self.place(&from, piece), self.place(&into, piece)));
                // If a part reads its input where the part before has stored it, there is nothing
                // to copy.
                let moves = copies.filter(|(source, target)| source != target);
                moves.map(|(source, target)| Step::Copy { from: source, into: target }).collect()
            }
            Step::Reduce { from, into, finish } => {
                let finish = finish && self.embedding.finishes;
                let reduce = |piece| Step::Reduce {
                    from: from.iter().map(|place| self.place(place, piece)).collect(),
                    into: self.place(&into, piece),
                    finish,
                };
                (0..self.embedding.pieces).map(reduce).collect()
            }
            Step::Signal => vec![Step::Signal],
            Step::Wait { peer, signals } => {
                vec![Step::Wait { peer: peer_of(peer), signals: self.signals_before + signals }]
            }
        }
    }

    /// Returns all pieces of some chunks.
    fn all(&self, chunks: &[Chunk]) -> Vec<Chunk> {
        let pieces = |&chunk: &Chunk| (0..self.embedding.pieces).map(move |piece| self.piece(chunk, piece));
        chunks.iter().flat_map(pieces).collect()
    }

    fn place(&self, place: &ChunkRef, piece: usize) -> ChunkRef {
        chunk_at(self.embedding.members[place.rank], self.piece(place.chunk, piece))
    }

    fn piece(&self, chunk: Chunk, piece: usize) -> Chunk {
        let number = chunk.index as usize * self.embedding.pieces + piece;
        match chunk.space {
            Space::Input => (self.embedding.input)(number),
            Space::Output => (self.embedding.output)(number),
            Space::Scratch => scratch(self.scratch_before + number),
            Space::Window => window(self.window_before + number),
        }
    }
}
