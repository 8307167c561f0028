//! Programs for the kernels that execute schedules. They are checked before any kernel gets them.
//!
//! A kernel trusts its tables, so an index outside of them would access memory of others. Therefore
//! only checked programs are uploaded.

use crate::{Error, Result};
use std::collections::HashSet;
use unisono_cuda::device::{ChunkRef, Instr, LaneProgram, MemorySpace, Opcode, ScheduleArgs};

/// Tables of one rank's part of a schedule.
#[derive(Clone, Debug, Default)]
pub struct ProgramTables {
    /// Instructions, one lane program after another.
    pub instrs: Vec<Instr>,
    /// Operands of all instructions.
    pub chunks: Vec<ChunkRef>,
    /// Ranges of instructions that run in order. Lane programs run side by side.
    pub lane_programs: Vec<LaneProgram>,
}

impl ProgramTables {
    /// Returns the ranks to which messages are sent or from which some are received. A rank occurs
    /// once for each of its messages.
    pub fn message_peers(&self) -> impl Iterator<Item = usize> {
        let messages = self.instrs.iter().filter(|instr| is_message(instr.opcode));
        let peers = messages.flat_map(|instr| [instr.peer, instr.forward]);
        peers.filter(|&peer| peer != Instr::NO_PEER).map(|peer| peer as usize)
    }

    /// Returns true if the results stay the same when chunk i of the input and chunk i of the
    /// output are the same memory, provided that no peer accesses the buffers.
    ///
    /// Each chunk must be read before it is overwritten. Lane programs run side by side, so a chunk
    /// that one of them reads must not be overwritten by another one.
    pub fn runs_in_place(&self) -> bool {
        let lanes: Option<Vec<BufferAccesses>> =
            self.lane_programs.iter().map(|lane_program| self.buffer_accesses(lane_program)).collect();
        lanes.is_some_and(|lanes| {
            let is_free = |index: usize, lane: &BufferAccesses| {
                let mut others = lanes.iter().enumerate().filter(|(other, _)| *other != index);
                others.all(|(_, other)| lane.read.is_disjoint(&other.overwritten))
            };
            lanes.iter().enumerate().all(|(index, lane)| is_free(index, lane))
        })
    }

    /// Returns the chunks that a lane program reads and overwrites, or `None` if it reads a chunk
    /// after it has overwritten it.
    fn buffer_accesses(&self, lane_program: &LaneProgram) -> Option<BufferAccesses> {
        let (first, count) = (lane_program.first_instr, lane_program.instr_count as usize);
        let mut accesses = BufferAccesses::default();
        for instr in checked_slice(&self.instrs, first, count)? {
            accesses.add(instr, &self.chunks)?;
        }
        Some(accesses)
    }
}

/// The chunks of the input that a lane program reads, and those of the output that it writes.
#[derive(Default)]
struct BufferAccesses {
    read: HashSet<u32>,
    overwritten: HashSet<u32>,
}

impl BufferAccesses {
    /// Adds the next instruction. Returns `None` if the instruction reads a chunk of the input that
    /// may be overwritten by then.
    fn add(&mut self, instr: &Instr, chunks: &[ChunkRef]) -> Option<()> {
        let (reads, writes) = chunk_counts(instr);
        let (read, written) = checked_slice(chunks, instr.first_chunk, reads + writes)?.split_at(reads);
        let is_in = |chunk: &&ChunkRef, space: MemorySpace| chunk.space == space as u32;
        let inputs = || read.iter().filter(|chunk| is_in(chunk, MemorySpace::Input)).map(|chunk| chunk.index);
        let outputs =
            || written.iter().filter(|chunk| is_in(chunk, MemorySpace::Output)).map(|chunk| chunk.index);
        // A thread reads all operands of a pass before it writes there. The passes of a message do
        // not wait for each other.
        let overlaps =
            is_message(instr.opcode) && inputs().any(|input| outputs().any(|output| output == input));
        if overlaps || inputs().any(|index| self.overwritten.contains(&index)) {
            return None;
        }
        self.read.extend(inputs());
        self.overwritten.extend(outputs());
        Some(())
    }
}

/// Limits of the chunks that a program may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramBounds {
    /// Rank that the program belongs to.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Chunks of the send buffer.
    pub input: usize,
    /// Chunks of the receive buffer.
    pub output: usize,
    /// Chunks of scratch.
    pub scratch: usize,
    /// Chunks of each rank's window.
    pub window: usize,
    /// Chunks of each peer's send buffer and receive buffer that are accessed in place, or 0 for
    /// none.
    pub peer_chunks: [usize; 2],
    /// True if all ranks use windows.
    pub uses_window: bool,
}

/// Tables that name nothing outside their bounds.
#[derive(Clone, Debug)]
pub struct Program {
    tables: ProgramTables,
    bounds: ProgramBounds,
    chunks_per_message: usize,
}

impl Program {
    /// Checks every index in `tables`, and finds instructions that can run together.
    ///
    /// # Errors
    /// Returns an error that names the index outside its bounds.
    pub fn new(mut tables: ProgramTables, bounds: ProgramBounds) -> Result<Self> {
        let refused =
            |what: String| Error::InvalidUsage(format!("a program for rank {}: {what}", bounds.rank));
        let lane_programs = tables.lane_programs.len();
        if lane_programs == 0
            || bounds.uses_window && lane_programs > 1
            || bounds.window > 0 && !bounds.uses_window
        {
            return Err(refused(format!("{lane_programs} lane programs within {bounds:?}")));
        }
        for lane_program in &tables.lane_programs {
            let acts =
                checked_slice(&tables.instrs, lane_program.first_instr, lane_program.instr_count as usize);
            let acts = acts.ok_or_else(|| refused(format!("{lane_program:?} without acts")))?;
            for act in acts {
                check_instr(act, &tables.chunks, &bounds).ok_or_else(|| refused(format!("{act:?}")))?;
            }
            let acts = lane_program.first_instr as usize
                ..lane_program.first_instr as usize + lane_program.instr_count as usize;
            Instr::mark_groups(&mut tables.instrs[acts], &tables.chunks);
        }
        let messages = tables.instrs.iter().filter(|act| is_message(act.opcode)).map(|act| act.operands);
        let blocks_per_message = messages.max().unwrap_or(0).into();
        Ok(Self { tables, bounds, chunks_per_message: blocks_per_message })
    }

    /// Returns the tables that were checked.
    pub fn tables(&self) -> &ProgramTables {
        &self.tables
    }

    /// Returns the bounds of the program.
    pub fn bounds(&self) -> &ProgramBounds {
        &self.bounds
    }

    /// Returns the chunks of the longest message, sent or received.
    pub fn blocks_per_message(&self) -> usize {
        self.chunks_per_message
    }

    /// Returns the largest lane of the lane programs.
    pub fn max_lane(&self) -> usize {
        self.tables.lane_programs.iter().map(|lane_program| lane_program.lane as usize).max().unwrap_or(0)
    }

    /// Returns the ranks to which the program sends messages or from which it receives some.
    pub fn message_peers(&self) -> impl Iterator<Item = usize> {
        self.tables.message_peers()
    }

    /// Returns the thread blocks of a launch on this many channels.
    pub fn thread_blocks(&self, channels: usize) -> usize {
        self.tables.lane_programs.len() * channels
    }
}

/// Lanes of the schedules. The next lane after them serves sends and receives.
pub(crate) const LANES: usize = ScheduleArgs::LANES;

const fn is_message(verb: u8) -> bool {
    verb == Opcode::Send as u8 || verb == Opcode::Recv as u8 || verb == Opcode::RecvReduce as u8
}

fn checked_slice<T>(table: &[T], first: u32, count: usize) -> Option<&[T]> {
    table.get(first as usize..(first as usize).checked_add(count)?)
}

/// Returns the numbers of chunks that an instruction reads and writes. The chunks follow each other
/// in their table.
fn chunk_counts(act: &Instr) -> (usize, usize) {
    let (operands, targets) = (usize::from(act.operands), usize::from(act.targets));
    match act.opcode {
        verb if verb == Opcode::Send as u8 => (operands, 0),
        verb if verb == Opcode::Recv as u8 => (0, operands),
        verb if verb == Opcode::RecvReduce as u8 => (operands, operands),
        verb if verb == Opcode::Copy as u8 || verb == Opcode::Reduce as u8 => (operands, targets),
        _ => (0, 0),
    }
}

/// Returns `None` if the kernel could not execute the instruction.
fn check_instr(act: &Instr, places: &[ChunkRef], bounds: &ProgramBounds) -> Option<()> {
    let (operands, targets) = (usize::from(act.operands), usize::from(act.targets));
    let other = |rank: u32| (rank as usize) < bounds.ranks && rank as usize != bounds.rank;
    let sound = match act.opcode {
        verb if is_message(verb) => other(act.peer),
        verb if verb == Opcode::Copy as u8 => operands == 1 && targets >= 1,
        verb if verb == Opcode::Reduce as u8 => operands >= 1 && targets >= 1,
        verb if verb == Opcode::Signal as u8 => bounds.uses_window,
        verb if verb == Opcode::Wait as u8 => bounds.uses_window && other(act.peer),
        _ => return None,
    };
    let (reads, writes) = chunk_counts(act);
    let forwards = act.forward == Instr::NO_PEER || is_message(act.opcode) && other(act.forward);
    let places = checked_slice(places, act.first_chunk, reads + writes)?;
    let fits = is_message(act.opcode) || operands.max(targets) <= Instr::OPERANDS_MAX;
    let (read, written) = places.split_at(reads);
    let at_home = !is_message(act.opcode)
        || places
            .iter()
            .all(|place| place.rank as usize == bounds.rank && place.space != MemorySpace::Window as u32);
    let is_inside = read.iter().all(|place| is_in_bounds(place, bounds))
        && written
            .iter()
            .all(|place| place.space != MemorySpace::Input as u32 && is_in_bounds(place, bounds));
    (sound && forwards && fits && at_home && is_inside).then_some(())
}

/// Returns true if there is such a chunk, and this rank reaches it.
fn is_in_bounds(place: &ChunkRef, bounds: &ProgramBounds) -> bool {
    let is_own = place.rank as usize == bounds.rank;
    let blocks = match place.space {
        space if space == MemorySpace::Input as u32 => {
            if is_own {
                bounds.input
            } else {
                bounds.peer_chunks[0]
            }
        }
        space if space == MemorySpace::Output as u32 => {
            if is_own {
                bounds.output
            } else {
                bounds.peer_chunks[1]
            }
        }
        space if space == MemorySpace::Scratch as u32 && is_own => bounds.scratch,
        space if space == MemorySpace::Window as u32 => bounds.window,
        _ => return false,
    };
    (place.rank as usize) < bounds.ranks && (place.index as usize) < blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: ProgramBounds = ProgramBounds {
        rank: 1,
        ranks: 3,
        input: 2,
        output: 4,
        scratch: 1,
        window: 2,
        peer_chunks: [0, 1],
        uses_window: true,
    };

    fn instr(verb: Opcode, operands: u16, targets: u16) -> Instr {
        let (finish, together, peer, forward, signals, first_place) = (0, 0, 2, Instr::NO_PEER, 0, 0);
        Instr {
            opcode: verb as u8,
            post_op: finish,
            operands,
            targets,
            group_size: together,
            peer,
            forward,
            signals,
            first_chunk: first_place,
        }
    }

    fn chunk(rank: u32, space: MemorySpace, index: u32) -> ChunkRef {
        ChunkRef { rank, space: space as u32, index }
    }

    fn accepts(act: Instr, places: &[ChunkRef]) -> bool {
        let lane_programs = vec![LaneProgram { lane: 0, first_instr: 0, instr_count: 1 }];
        Program::new(ProgramTables { instrs: vec![act], chunks: places.to_vec(), lane_programs }, BOUNDS)
            .is_ok()
    }

    #[test]
    fn program_in_bounds_is_accepted() {
        let input = chunk(1, MemorySpace::Input, 1);
        assert!(accepts(instr(Opcode::Send, 1, 0), std::slice::from_ref(&input)));
        assert!(accepts(instr(Opcode::RecvReduce, 1, 0), &[input.clone(), chunk(1, MemorySpace::Output, 3)]));
        assert!(accepts(
            instr(Opcode::Copy, 1, 1),
            &[chunk(2, MemorySpace::Window, 1), chunk(1, MemorySpace::Scratch, 0)]
        ));
        assert!(accepts(instr(Opcode::Wait, 0, 0), &[]));
        assert!(
            accepts(
                instr(Opcode::Copy, 1, 1),
                &[chunk(1, MemorySpace::Input, 1), chunk(2, MemorySpace::Output, 0)]
            ),
            "peers export it"
        );
    }

    #[test]
    fn program_out_of_bounds_is_refused() {
        let output = chunk(1, MemorySpace::Output, 0);
        let accepts_source = |source: ChunkRef| accepts(instr(Opcode::Copy, 1, 1), &[source, output.clone()]);
        assert!(!accepts_source(chunk(1, MemorySpace::Input, 2)), "no such block");
        assert!(!accepts_source(chunk(2, MemorySpace::Input, 0)), "another rank's buffer");
        assert!(!accepts_source(chunk(2, MemorySpace::Output, 1)), "beyond the exported chunks");
        assert!(!accepts_source(chunk(3, MemorySpace::Window, 0)), "no such rank");
        assert!(!accepts_source(ChunkRef { rank: 1, space: 4, index: 0 }), "no such memory");
        assert!(
            !accepts(instr(Opcode::Recv, 1, 0), &[chunk(1, MemorySpace::Input, 0)]),
            "the input is never written"
        );
        assert!(
            !accepts(instr(Opcode::Recv, 1, 0), &[chunk(1, MemorySpace::Window, 0)]),
            "messages go to no window"
        );
        assert!(!accepts(instr(Opcode::Send, 2, 0), std::slice::from_ref(&output)), "too few places");
        assert!(!accepts(Instr { peer: 1, ..instr(Opcode::Send, 0, 0) }, &[]), "to itself");
        assert!(!accepts(Instr { forward: 3, ..instr(Opcode::Recv, 0, 0) }, &[]), "to nobody");
        assert!(!accepts(Instr { opcode: 7, ..instr(Opcode::Send, 0, 0) }, &[]), "no such verb");
        assert!(
            !accepts(Instr { first_chunk: u32::MAX, ..instr(Opcode::Send, 1, 0) }, &[output]),
            "far outside"
        );
    }

    #[test]
    fn in_place_needs_reads_before_writes() {
        let (input, output) = (chunk(1, MemorySpace::Input, 0), chunk(1, MemorySpace::Output, 0));
        let window = chunk(1, MemorySpace::Window, 0);
        let copy = |first_chunk| Instr { first_chunk, ..instr(Opcode::Copy, 1, 1) };
        let chunks = vec![input.clone(), window.clone(), window, output.clone(), input, output];
        let in_place = |instrs: Vec<Instr>, instr_counts: &[u32]| {
            let mut first_instr = 0;
            let lane_program = |&instr_count: &u32| {
                first_instr += instr_count;
                LaneProgram { lane: 0, first_instr: first_instr - instr_count, instr_count }
            };
            let lane_programs = instr_counts.iter().map(lane_program).collect();
            ProgramTables { instrs, chunks: chunks.clone(), lane_programs }.runs_in_place()
        };
        assert!(in_place(vec![copy(0), copy(2)], &[2]), "the input is read first");
        assert!(!in_place(vec![copy(2), copy(0)], &[2]), "the input is overwritten first");
        assert!(!in_place(vec![copy(0), copy(2)], &[1, 1]), "lane programs are not ordered");
        assert!(in_place(vec![copy(4), copy(2)], &[2]), "a chunk that stays where it is");
        let message = Instr { first_chunk: 4, ..instr(Opcode::RecvReduce, 1, 0) };
        assert!(!in_place(vec![message], &[1]), "the passes of a message are not ordered");
        assert!(!in_place(vec![copy(0)], &[2]), "there is no such instruction");
    }

    #[test]
    fn lane_programs_must_have_instrs() {
        let program = |lane_programs: Vec<LaneProgram>| {
            Program::new(
                ProgramTables { instrs: vec![instr(Opcode::Wait, 0, 0)], chunks: Vec::new(), lane_programs },
                BOUNDS,
            )
        };
        assert!(program(vec![]).is_err());
        assert!(program(vec![LaneProgram { lane: 0, first_instr: 1, instr_count: 1 }]).is_err());
        assert!(
            program(vec![LaneProgram { lane: 0, first_instr: u32::MAX, instr_count: u32::MAX }]).is_err()
        );
    }
}
