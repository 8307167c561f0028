//! Reads the XML of MSCCL, which its compiler and solvers write.
//!
//! In MSCCL, a thread block sends to one peer and receives from one peer, and thread blocks wait
//! for each other's steps. Here a rank has one list of steps. So the programs of all ranks run
//! once, on sets of ranks instead of numbers, and each rank's steps are listed in the order in
//! which they ran. The run also shows which sums are complete, because the file does not say it.
//!
//! Source: Cowan, Maleki, Musuvathi, Saarikivi, Xiong, "MSCCLang: Microsoft collective
//! communication language", ASPLOS 2023.

use super::msccl_buffers::{Buffers, Cell, Contributions, Shape, Space};
use roxmltree::{Document, Node};
use std::collections::{HashMap, VecDeque};
use unisono::schedule::{
    Chunk, Collective, GroupSpec, PeerAccess, ProgramBuilder, Rank, Schedule, chunk_at, output,
};

/// The parts of a step, which a file names together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    receives: bool,
    reduces: bool,
    stores: bool,
    sends: bool,
}

impl Kind {
    fn parse(name: &str) -> Option<Self> {
        let kind = |receives, reduces, stores, sends| Some(Self { receives, reduces, stores, sends });
        match name {
            "s" => kind(false, false, false, true),
            "r" => kind(true, false, true, false),
            "rcs" => kind(true, false, true, true),
            "rrc" => kind(true, true, true, false),
            "rrs" => kind(true, true, false, true),
            "rrcs" => kind(true, true, true, true),
            "cpy" => kind(false, false, true, false),
            "re" => kind(false, true, true, false),
            "nop" => kind(false, false, false, false),
            _ => None,
        }
    }
}

struct BlockStep {
    kind: Kind,
    source: Vec<Cell>,
    target: Vec<Cell>,
    /// The thread block and its step that must have ended.
    waits_for: Option<(usize, usize)>,
}

struct Block {
    send_to: Option<Rank>,
    receive_from: Option<Rank>,
    channel: usize,
    steps: Vec<BlockStep>,
    /// Steps that have ended.
    ended: usize,
}

struct Gpu {
    blocks: Vec<Block>,
    buffers: Buffers,
    program: ProgramBuilder,
}

/// Messages of one rank to another: the channel and the values of each, in the order of sending.
type Queue = VecDeque<(usize, Vec<Contributions>)>;

/// Returns the schedule of a file.
pub(super) fn parse(text: &str) -> Result<Schedule, String> {
    let document = Document::parse(text).map_err(|error| error.to_string())?;
    let algo = document.root_element();
    if algo.tag_name().name() != "algo" {
        return Err("its root element is no `algo`".to_owned());
    }
    let shape = shape(&algo)?;
    let mut gpus = gpus(&algo, shape)?;
    run(&mut gpus, shape)?;
    let name = algo.attribute("name").unwrap_or_default();
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "_-.".contains(*letter);
    let mut programs = Vec::new();
    for mut gpu in gpus {
        // An output that no step has written is the rank's own input.
        for (number, place) in gpu.buffers.outputs_in_inputs() {
            gpu.program.copy(place, output(number));
        }
        programs.push(gpu.program.finish(gpu.buffers.scratch_chunks(), 0));
    }
    Ok(Schedule {
        algorithm: name.chars().filter(is_plain).collect(),
        collective: shape.collective,
        spec: GroupSpec::new(shape.ranks).with_root(shape.root),
        chunks_per_share: shape.parts,
        peer_access: PeerAccess::TwoSided,
        programs,
    })
}

fn shape(algo: &Node) -> Result<Shape, String> {
    let ranks = number(algo, "ngpus")?;
    let chunks = number(algo, "nchunksperloop")?;
    let (collective, chunks_of_all) = match algo.attribute("coll").unwrap_or_default() {
        "allreduce" => (Collective::AllReduce, false),
        "broadcast" => (Collective::Broadcast, false),
        "reduce" => (Collective::Reduce, false),
        "allgather" => (Collective::AllGather, true),
        "reduce_scatter" | "reducescatter" => (Collective::ReduceScatter, true),
        "alltoall" => (Collective::AllToAll, true),
        other => return Err(format!("`coll` is `{}`, which has no schedule here", other.escape_debug())),
    };
    if !(2..=RANKS_MAX).contains(&ranks) || !(1..=CHUNKS_MAX).contains(&chunks) {
        return Err(format!(
            "it has {ranks} GPUs and {chunks} chunks; there can be 2 to {RANKS_MAX} GPUs and 1 to {CHUNKS_MAX} chunks"
        ));
    }
    if chunks_of_all && !chunks.is_multiple_of(ranks) {
        return Err(format!("{chunks} chunks (nchunksperloop) are no multiple of {ranks} GPUs"));
    }
    let in_place = algo.attribute("inplace") == Some("1");
    if in_place && collective == Collective::AllToAll {
        return Err("it is an alltoall in place, which has no schedule here".to_owned());
    }
    let root = if algo.has_attribute("root") { number(algo, "root")? } else { 0 };
    let parts = if chunks_of_all { chunks / ranks } else { chunks };
    Ok(Shape { collective, ranks, root, parts, in_place })
}

fn gpus(algo: &Node, shape: Shape) -> Result<Vec<Gpu>, String> {
    let mut gpus: Vec<Option<Gpu>> = (0..shape.ranks).map(|_| None).collect();
    let mut cells = 0;
    for gpu in elements(algo, "gpu") {
        let id = number(&gpu, "id")?;
        let place = gpus.get_mut(id).ok_or_else(|| format!("GPU {id} of {} GPUs", shape.ranks))?;
        let mut blocks = Vec::new();
        for (index, block) in elements(&gpu, "tb").enumerate() {
            // Steps name the thread blocks for which they wait by these numbers, which are indexes
            // here.
            if number(&block, "id")? != index {
                return Err(format!("the thread blocks of GPU {id} are not numbered from 0 in order"));
            }
            blocks.push(block_of(&block, shape, &mut cells).map_err(|why| format!("GPU {id}: {why}"))?);
        }
        let new = Gpu { blocks, buffers: Buffers::new(shape, id), program: ProgramBuilder::new(id) };
        if place.replace(new).is_some() {
            return Err(format!("GPU {id} is there twice"));
        }
    }
    let numbered_gpus = gpus.into_iter().enumerate();
    numbered_gpus.map(|(id, gpu)| gpu.ok_or_else(|| format!("GPU {id} is missing"))).collect()
}

fn block_of(block: &Node, shape: Shape, cells: &mut usize) -> Result<Block, String> {
    let peer = |name: &str| match block.attribute(name) {
        None | Some("-1") => Ok(None),
        Some(_) => number(block, name).and_then(|peer| match peer < shape.ranks {
            true => Ok(Some(peer)),
            false => Err(format!("{name} is GPU {peer} of {} GPUs", shape.ranks)),
        }),
    };
    let steps = elements(block, "step").map(|step| {
        let name = step.attribute("type").unwrap_or_default();
        let kind =
            Kind::parse(name).ok_or_else(|| format!("no step has the type `{}`", name.escape_debug()))?;
        let count = number(&step, "cnt")?;
        // A few bytes of text can name many chunks, so the sum is limited before the chunks are
        // listed.
        *cells = cells.saturating_add(count);
        if *cells > CELLS_MAX {
            return Err(format!("its steps name more than {CELLS_MAX} chunks"));
        }
        let range = |buffer: &str, offset: &str| {
            let name = step.attribute(buffer).unwrap_or_default();
            let space =
                Space::parse(name).ok_or_else(|| format!("`{}` is no buffer", name.escape_debug()))?;
            let first = number(&step, offset)?;
            if first > CHUNKS_MAX || count > CHUNKS_MAX {
                return Err(format!("chunk {first} and {count} more are beyond {CHUNKS_MAX}"));
            }
            Ok((first..first + count).map(|index| Cell { space, index }).collect::<Vec<_>>())
        };
        let waits_for = match step.attribute("depid") {
            None | Some("-1") => None,
            Some(_) => Some((number(&step, "depid")?, number(&step, "deps")?)),
        };
        let (source, target) = (range("srcbuf", "srcoff")?, range("dstbuf", "dstoff")?);
        Ok(BlockStep { kind, source, target, waits_for })
    });
    Ok(Block {
        send_to: peer("send")?,
        receive_from: peer("recv")?,
        channel: if block.has_attribute("chan") { number(block, "chan")? } else { 0 },
        steps: steps.collect::<Result<_, String>>()?,
        ended: 0,
    })
}

fn elements<'a>(node: &Node<'a, 'a>, name: &'static str) -> impl Iterator<Item = Node<'a, 'a>> + use<'a> {
    node.children().filter(move |child| child.has_tag_name(name))
}

fn number(node: &Node, name: &str) -> Result<usize, String> {
    let element = node.tag_name().name();
    let text = node.attribute(name).ok_or_else(|| format!("`{element}` has no `{name}`"))?;
    let shown = || text.chars().take(20).collect::<String>().escape_debug().to_string();
    text.parse().map_err(|_| format!("`{name}` of `{element}` is `{}`, and no whole number", shown()))
}

/// Runs all thread blocks to their ends, one step at a time, and lists the steps of each rank.
fn run(gpus: &mut [Gpu], shape: Shape) -> Result<(), String> {
    let mut queues: HashMap<(Rank, Rank), Queue> = HashMap::new();
    // A step may wait for a step of any other rank. A round in which nothing moves is the end of
    // the run, and steps that are left then wait for each other.
    loop {
        let mut has_moved = false;
        for (rank, gpu) in gpus.iter_mut().enumerate() {
            for block in 0..gpu.blocks.len() {
                while step(gpu, (rank, block), shape, &mut queues)? {
                    has_moved = true;
                }
            }
        }
        if !has_moved {
            break;
        }
    }
    for (rank, gpu) in gpus.iter().enumerate() {
        let waiting = gpu.blocks.iter().position(|block| block.ended < block.steps.len());
        if let Some(block) = waiting {
            let step = gpu.blocks[block].ended;
            return Err(format!("GPU {rank} waits forever in step {step} of thread block {block}"));
        }
    }
    Ok(())
}

/// Carries out the next step of a thread block. Returns false if it has none, or has to wait.
fn step(
    gpu: &mut Gpu,
    (rank, index): (Rank, usize),
    shape: Shape,
    queues: &mut HashMap<(Rank, Rank), Queue>,
) -> Result<bool, String> {
    let block = &gpu.blocks[index];
    let Some(step) = block.steps.get(block.ended) else { return Ok(false) };
    let failed = |why: &str| format!("GPU {rank}, step {} of thread block {index} {why}", block.ended);
    let peers = peers(step, block, rank).map_err(&failed)?;
    let has_ended =
        |&(other, step): &(usize, usize)| gpu.blocks.get(other).is_some_and(|other| other.ended > step);
    if step.waits_for.as_ref().is_some_and(|earlier| !has_ended(earlier)) {
        return Ok(false);
    }
    let Peers { from: sender, to: receiver } = peers;
    let queued = sender.map(|peer| queues.get(&(peer, rank)).and_then(VecDeque::front));
    let arrived = match queued {
        None => None,
        Some(Some((channel, values))) if *channel == block.channel => Some(values.clone()),
        // Here all messages between two ranks keep one order, so a message waits until it is the
        // first.
        Some(_) => return Ok(false),
    };
    let is_full = |peer: Rank| queues.get(&(rank, peer)).is_some_and(|queue| queue.len() >= MESSAGES_MAX);
    if receiver.is_some_and(is_full) {
        return Ok(false);
    }
    if arrived.as_ref().is_some_and(|values| values.len() != step.target.len()) {
        return Err(failed("receives a message of another length"));
    }
    let moved = Moved::new(step, &gpu.buffers, arrived, shape.ranks).map_err(|why| failed(&why))?;
    // Nothing has changed so far, because a step that has to wait is tried again. From here on it
    // takes place.
    let places = write_steps(step, peers, &moved, (&mut gpu.buffers, &mut gpu.program));
    if let Some(peer) = sender {
        queues.entry((peer, rank)).or_default().pop_front();
    }
    if let Some(peer) = receiver {
        gpu.program.send(peer, places);
        queues.entry((rank, peer)).or_default().push_back((block.channel, moved.values));
    }
    gpu.blocks[index].ended += 1;
    Ok(true)
}

/// The ranks with which a step exchanges messages.
#[derive(Clone, Copy)]
struct Peers {
    from: Option<Rank>,
    to: Option<Rank>,
}

fn peers(step: &BlockStep, block: &Block, rank: Rank) -> Result<Peers, &'static str> {
    let sender = match step.kind.receives {
        true => Some(block.receive_from.ok_or("receives from no GPU")?),
        false => None,
    };
    let receiver = if step.kind.sends { Some(block.send_to.ok_or("sends to no GPU")?) } else { None };
    match sender == Some(rank) || receiver == Some(rank) {
        true => Err("exchanges a message with its own GPU"),
        false => Ok(Peers { from: sender, to: receiver }),
    }
}

/// The values that a step sends or stores, and the chunks that it reads.
struct Moved {
    values: Vec<Contributions>,
    read: Vec<Chunk>,
    /// The target before a reduction within the rank.
    accumulated: Vec<Chunk>,
    /// True if the values are complete sums.
    finish: bool,
}

impl Moved {
    fn new(
        step: &BlockStep,
        buffers: &Buffers,
        arrived: Option<Vec<Contributions>>,
        ranks: usize,
    ) -> Result<Self, String> {
        let Kind { receives, reduces, .. } = step.kind;
        let (read, source_values) =
            if receives && !reduces { Default::default() } else { buffers.read(&step.source)? };
        let (accumulated, stored) =
            if reduces && !receives { buffers.read(&step.target)? } else { Default::default() };
        let values = match (reduces, arrived) {
            (false, Some(arrived)) => arrived,
            (false, None) => source_values,
            (true, arrived) => {
                let augends = arrived.unwrap_or(stored);
                source_values.iter().zip(&augends).map(|(value, augend)| value.with(augend)).collect()
            }
        };
        // A step of a schedule has one flag for all its chunks, which says that their sums are
        // complete.
        let complete = values.iter().filter(|value| value.is_complete(ranks)).count();
        let finish = reduces && complete > 0;
        match finish && complete < values.len() {
            true => Err("adds complete and incomplete sums at once".to_owned()),
            false => Ok(Self { values, read, accumulated, finish }),
        }
    }
}

/// Writes the steps of the rank that do what a step of the file does, up to its send. Returns the
/// chunks that are sent.
fn write_steps(
    step: &BlockStep,
    peers: Peers,
    moved: &Moved,
    (buffers, program): (&mut Buffers, &mut ProgramBuilder),
) -> Vec<Chunk> {
    let Kind { receives, reduces, stores, .. } = step.kind;
    if !receives && !stores {
        return moved.read.clone();
    }
    let stored = if stores { step.target.clone() } else { Cell::relays(step.target.len()) };
    let places = buffers.write(&stored, &moved.values);
    match (peers.from, reduces) {
        (Some(peer), false) => _ = program.recv(peer, places.clone()),
        (Some(peer), true) => _ = program.recv_reduce(peer, moved.read.clone(), places.clone(), moved.finish),
        (None, false) => {
            // In place, a chunk can already be where it is wanted.
            let copies = moved.read.iter().zip(&places).filter(|(source, target)| source != target);
            copies.for_each(|(&source, &target)| _ = program.copy(source, target));
        }
        (None, true) => {
            let place = |&chunk: &Chunk| chunk_at(buffers.rank(), chunk);
            for ((augend, read), &target) in moved.accumulated.iter().zip(&moved.read).zip(&places) {
                program.reduce(vec![place(augend), place(read)], target, moved.finish);
            }
        }
    }
    places
}

/// Number of messages by which a sender may be ahead of the receiver. Every link can hold so many.
const MESSAGES_MAX: usize = 2;
const RANKS_MAX: usize = 4096;
/// Most chunks of a buffer, and most chunks that all steps name together.
const CHUNKS_MAX: usize = 1 << 20;
const CELLS_MAX: usize = 1 << 24;
