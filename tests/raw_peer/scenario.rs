//! The calls of a conversation, and the results that a rank may get.

use crate::conversation::fault_of;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::time::Duration;
use unisono::{Communicator, ErrorKind, MessageInfo, RecvBuffer, Result, SendBuffer, Sum, UniqueId};
use unisono_transports::rng::Rng;
use unisono_transports::testing::guarded::Guarded;

/// A call of all ranks, with the number of elements of each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    AllReduce(usize),
    Symmetric(usize),
    Broadcast { count: usize, root: usize },
    AllGather(usize),
    ReduceScatter(usize),
    AllToAll(usize),
    SendRecv(usize),
    Barrier,
    Messages { count: usize, times: usize, any_source: bool },
    Objects { count: usize, root: usize },
    Split { apart: bool },
    Grow,
}

impl Step {
    /// Kinds of steps: all, messages with tags, and those with lengths and addresses as data.
    pub(crate) const ALL: Range<usize> = 0..16;
    pub(crate) const MESSAGES: Range<usize> = 9..12;
    pub(crate) const OBJECTS_AND_GROUPS: Range<usize> = 12..16;

    pub(crate) fn random(random: &mut Rng, kinds: Range<usize>, ranks: usize) -> Self {
        let count = random.choose(&[1, 7, 20, 600, 3_000, 20_000]);
        let root = random.below(ranks);
        match kinds.start + random.below(kinds.len()) {
            0 | 1 => Self::AllReduce(count),
            2 => Self::Symmetric(2 * count),
            3 => Self::Broadcast { count, root },
            4 => Self::AllGather(count),
            5 => Self::ReduceScatter(count),
            6 => Self::AllToAll(count),
            7 => Self::SendRecv(count),
            8 => Self::Barrier,
            9..12 => {
                // Some messages are longer than any that is sent without a grant.
                let count = if random.one_in(4) { 40_000 } else { count };
                Self::Messages { count, times: 1 + random.below(3), any_source: random.one_in(3) }
            }
            12 | 13 => Self::Objects { count, root },
            14 => Self::Split { apart: random.one_in(2) },
            _ => Self::Grow,
        }
    }
}

/// A rank among the others.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) raw: usize,
    pub(crate) seed: u64,
    /// The raw rank may change what it contributes and what it passes on.
    pub(crate) changes: bool,
    /// The raw rank may also change what two others send to each other.
    pub(crate) changes_all: bool,
}

/// The calls of one rank, and what is wrong about them.
pub(crate) struct Calls {
    place: Place,
    pub(crate) wrong: Vec<String>,
    pub(crate) calls: usize,
    pub(crate) errors: usize,
    /// An error has ended the communicator.
    pub(crate) has_ended: bool,
}

/// An object with lengths in its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Object {
    rank: usize,
    values: Vec<u32>,
    name: String,
}

/// A message between guard pages.
struct Message(Guarded);

impl SendBuffer for Message {
    fn message(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl RecvBuffer for Message {
    fn message_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

/// Returns the contribution of a rank to a step.
fn values(step: usize, rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| ((step * 5 + rank * 3 + index) % 7) as f32).collect()
}

impl Calls {
    pub(crate) fn new(place: Place) -> Self {
        Self { place, wrong: Vec::new(), calls: 0, errors: 0, has_ended: false }
    }

    /// Returns the communicator or the fabric of ranks that have met. On a machine that stands
    /// still for seconds, they may not meet.
    pub(crate) fn met<T>(&mut self, met: Result<T>) -> Option<T> {
        let is_typed = met.as_ref().err().is_none_or(|error| matches!(error.kind(), ErrorKind::Bootstrap(_)));
        if let Err(error) = &met {
            eprintln!("seed {}: {error}", self.place.seed);
        }
        self.check("join", is_typed, "an error of another kind");
        met.ok()
    }

    /// Notes the end of a call. Returns true if it succeeded.
    fn ended<T>(&mut self, name: &str, result: &Result<T>) -> bool {
        self.calls += 1;
        let Err(error) = result else { return true };
        self.errors += 1;
        self.has_ended |= error.is_poisoning();
        if let Some(fault) = fault_of(error) {
            self.wrong.push(format!("rank {}, {name}: {fault}", self.place.rank));
        }
        false
    }

    fn check(&mut self, name: &str, is_right: bool, what: &str) {
        if !is_right {
            self.wrong.push(format!("rank {}, {name}: {what}", self.place.rank));
        }
    }

    /// Makes the call of a step.
    pub(crate) fn play(&mut self, comm: &Communicator, number: usize, step: &Step) {
        match *step {
            Step::Messages { count, times, any_source } => {
                self.messages(comm, number, (count, times, any_source))
            }
            Step::Objects { count, root } => self.objects(comm, count, root),
            Step::Split { apart } => self.split(comm, apart),
            Step::Grow => self.grow(comm),
            Step::Barrier => {
                let ended = comm.barrier();
                self.ended("barrier", &ended);
            }
            Step::Symmetric(count) => self.symmetric(comm, number, count),
            step => self.collective(comm, number, step),
        }
    }

    fn collective(&mut self, comm: &Communicator, number: usize, step: Step) {
        let Place { rank, ranks, raw, changes, changes_all, .. } = self.place;
        let at_end = !(number + rank).is_multiple_of(2);
        let guarded = |count| Guarded::of(&values(number, rank, count), at_end);
        let values_of = |rank, count| values(number, rank, count);
        let output = |count: usize| Guarded::new(4 * count, at_end, 0);
        let sums = |count: usize| -> Vec<f32> {
            let inputs: Vec<_> = (0..ranks).map(|rank| values_of(rank, count)).collect();
            (0..count).map(|index| inputs.iter().map(|values| values[index]).sum()).collect()
        };
        let previous = (rank + ranks - 1) % ranks;
        // The parts of the output that a rank must get: where they begin, and what they are.
        let (input, output, ended, expected, is_certain) = match step {
            Step::AllReduce(count) => {
                let (input, mut output) = (guarded(count), guarded(count));
                let ended = comm.all_reduce(output.elements_mut(), Sum);
                (input, output, ended, (0, sums(count)), !changes)
            }
            Step::Broadcast { count, root } => {
                let (input, mut output) = (guarded(count), guarded(count));
                let ended = comm.broadcast(output.elements_mut(), root);
                (input, output, ended, (0, values_of(root, count)), !changes || rank == root)
            }
            Step::AllGather(count) => {
                let (input, mut output) = (guarded(count), output(ranks * count));
                let ended = comm.all_gather(input.elements(), output.elements_mut());
                let gathered = (0, (0..ranks).flat_map(|rank| values_of(rank, count)).collect());
                let expected = if changes { (rank * count, values_of(rank, count)) } else { gathered };
                (input, output, ended, expected, true)
            }
            Step::ReduceScatter(count) => {
                let (input, mut output) = (guarded(ranks * count), output(count));
                let ended = comm.reduce_scatter(input.elements(), output.elements_mut(), Sum);
                let expected = sums(ranks * count)[rank * count..][..count].to_vec();
                (input, output, ended, (0, expected), !changes)
            }
            Step::AllToAll(count) => {
                let (input, mut output) = (guarded(ranks * count), output(ranks * count));
                let ended = comm.all_to_all(input.elements(), output.elements_mut());
                let part = |sender: usize| values_of(sender, ranks * count)[rank * count..][..count].to_vec();
                let exchanged = (0, (0..ranks).flat_map(part).collect());
                let expected = if changes { (rank * count, part(rank)) } else { exchanged };
                (input, output, ended, expected, true)
            }
            Step::SendRecv(count) => {
                let (input, mut output) = (guarded(count), output(count));
                let next = (rank + 1) % ranks;
                let ended = comm.send_recv(input.elements(), next, output.elements_mut(), previous);
                let is_certain = !changes || (previous != raw && !changes_all);
                (input, output, ended, (0, values_of(previous, count)), is_certain)
            }
            step => unreachable!("{step:?} is no collective"),
        };
        let name = format!("{step:?}");
        let (start, expected) = expected;
        let is_right = output.elements()[start..][..expected.len()] == expected;
        if self.ended(&name, &ended) && is_certain && !changes_all {
            self.check(&name, is_right, "a wrong result");
        }
        let is_input_kept = input.elements() == values_of(rank, input.elements().len());
        self.check(&name, is_input_kept, "the input changed");
        self.check(&name, input.is_intact() && output.is_intact(), "bytes beside a buffer changed");
    }

    /// Reduces memory that peers of the host reach. A raw rank may change it at any time.
    fn symmetric(&mut self, comm: &Communicator, number: usize, count: usize) {
        let Place { rank, ranks, changes, .. } = self.place;
        let name = format!("symmetric all_reduce of {count}");
        let buffer = comm.alloc_symmetric::<f32>(count);
        if self.ended(&name, &buffer)
            && let Ok(mut buffer) = buffer
        {
            buffer.copy_from_slice(&values(number, rank, count));
            let ended = comm.all_reduce(&mut buffer[..], Sum);
            if self.ended(&name, &ended) && !changes {
                let last = (0..ranks).map(|rank| values(number, rank, count)[count - 1]).sum::<f32>();
                self.check(&name, buffer[count - 1] == last, "a wrong result");
            }
        }
    }

    /// Sends messages to all ranks and receives theirs.
    fn messages(
        &mut self,
        comm: &Communicator,
        number: usize,
        (count, times, any_source): (usize, usize, bool),
    ) {
        let Place { rank, ranks, .. } = self.place;
        let peers = (0..ranks).filter(|&peer| peer != rank);
        let tag = number as u64;
        let receive = |peer| {
            let buffer = Message(Guarded::new(4 * count + 8, peer % 2 == 0, UNTOUCHED));
            comm.irecv(buffer, (!any_source).then_some(peer), tag)
        };
        let posts_first = rank.is_multiple_of(2);
        let mut receives = Vec::new();
        if posts_first {
            receives.extend((0..times).flat_map(|_| peers.clone()).map(receive));
        }
        let send =
            |peer| comm.isend(Message(Guarded::of(&values(number, rank, count), peer % 2 == 0)), peer, tag);
        let sends: Vec<_> = (0..times).flat_map(|_| peers.clone()).map(send).collect();
        for _ in 0..4 {
            let found = comm.probe(None, None);
            if self.ended("probe", &found)
                && let Ok(Some(info)) = found
            {
                self.check("probe", info.source < ranks && info.source != rank, "a source that is no peer");
                self.check("probe", isize::try_from(info.bytes).is_ok(), "an impossible length");
            }
        }
        if !posts_first {
            receives.extend((0..times).flat_map(|_| peers.clone()).map(receive));
        }
        for receive in receives {
            let received = receive.wait();
            if self.ended("irecv", &received)
                && let Ok((Message(buffer), info)) = received
            {
                self.check_message(&buffer, info, number, count);
            }
        }
        for send in sends {
            let sent = send.wait();
            if self.ended("isend", &sent)
                && let Ok(Message(buffer)) = sent
            {
                self.check("isend", buffer.is_intact(), "bytes beside the buffer changed");
                self.check("isend", buffer.elements() == values(number, rank, count), "the message changed");
            }
        }
    }

    fn check_message(&mut self, buffer: &Guarded, info: MessageInfo, number: usize, count: usize) {
        let Place { ranks, rank, raw, changes, changes_all, .. } = self.place;
        let is_possible = info.source < ranks && info.source != rank && info.tag == number as u64;
        self.check("irecv", is_possible, &format!("an impossible message: {info:?}"));
        self.check("irecv", buffer.is_intact(), "bytes beside the buffer changed");
        let Some((message, tail)) = buffer.bytes().split_at_checked(info.bytes) else {
            return self.check("irecv", false, &format!("longer than the buffer: {info:?}"));
        };
        self.check("irecv", tail.iter().all(|&byte| byte == UNTOUCHED), "bytes behind the message changed");
        if !changes_all && (!changes || info.source != raw) {
            let expected = Guarded::of(&values(number, info.source, count), true);
            self.check("irecv", message == expected.bytes(), "a wrong message");
        }
    }

    fn objects(&mut self, comm: &Communicator, count: usize, root: usize) {
        let Place { rank, ranks, changes, .. } = self.place;
        let object = |rank: usize| {
            let values = (0..count.min(3_000) + rank).map(|index| index as u32).collect();
            Object { rank, values, name: "name".repeat(rank) }
        };
        let objects: Vec<Object> = (0..ranks).map(object).collect();
        let gathered = comm.all_gather_object(&objects[rank]);
        if self.ended("all_gather_object", &gathered)
            && let Ok(gathered) = gathered
        {
            let is_right = if changes { gathered.len() == ranks } else { gathered == objects };
            self.check("all_gather_object", is_right, "a wrong result");
        }
        if self.has_ended {
            return;
        }
        let got = comm.broadcast_object((rank == root).then(|| objects[root].clone()), root);
        if self.ended("broadcast_object", &got)
            && let Ok(got) = got
        {
            self.check("broadcast_object", got == objects[root] || changes, "a wrong result");
        }
        if self.has_ended {
            return;
        }
        let got = comm.scatter_object((rank == root).then_some(&objects[..]), root);
        if self.ended("scatter_object", &got)
            && let Ok(got) = got
        {
            self.check("scatter_object", got == objects[rank] || changes, "a wrong result");
        }
    }

    /// Splits the communicator. The raw rank offers a group that nobody can join.
    fn split(&mut self, comm: &Communicator, apart: bool) {
        let Place { rank, raw, seed, .. } = self.place;
        let config = comm.config().clone().with_join_timeout(SPLIT_TIMEOUT);
        let color = u32::from(rank == raw && apart);
        let mut random = Rng::new(seed, 4);
        let key = if rank == raw { random.choose(&[-1, 1, i32::MIN]) } else { 0 };
        let group = comm.child().config(&config).split(Some(color), key);
        if self.ended("split", &group)
            && let Ok(Some(group)) = group
        {
            self.sum_of_group("split", &group);
        }
    }

    /// Sums a one of every rank of a group in which the raw rank is no member.
    fn sum_of_group(&mut self, name: &str, group: &Communicator) {
        let mut sum = [1.0f32];
        let ended = group.all_reduce(&mut sum, Sum);
        // An error of a group ends the group only.
        let has_ended = self.has_ended;
        if self.ended(name, &ended) {
            self.check(name, sum[0] == group.size() as f32, "a wrong result in the group");
        }
        self.has_ended = has_ended;
    }

    /// Begins to grow; the raw rank proposes another group.
    fn grow(&mut self, comm: &Communicator) {
        if self.place.rank == self.place.raw {
            let mut proposals = vec![0u64; 2 * comm.size()];
            let proposed = comm.all_gather(&[self.place.seed, 1], &mut proposals);
            self.ended("grow", &proposed);
            return;
        }
        match UniqueId::new(IpAddr::V4(Ipv4Addr::LOCALHOST)) {
            Ok(id) => {
                let grown = comm.grow(&id, 1);
                self.ended("grow", &grown);
                self.check("grow", grown.is_err(), "a group with a rank that has not come");
            }
            Err(error) => self.check("grow", false, &error.to_string()),
        }
    }

    /// Continues without the raw rank, if it can be left out.
    pub(crate) fn shrink(&mut self, comm: &Communicator) {
        let left = comm.shrink();
        if self.ended("shrink", &left)
            && let Ok(left) = left
        {
            self.sum_of_group("shrink", &left);
        }
    }
}

/// Bytes of a buffer that nothing has been received into.
const UNTOUCHED: u8 = 0x5c;
/// Time within which the members of a group come.
const SPLIT_TIMEOUT: Duration = Duration::from_millis(300);
