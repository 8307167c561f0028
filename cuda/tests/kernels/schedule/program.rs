//! Programs written by hand, as tables for the device.

use unisono_cuda::device::{Act, Place, Space, Strand, Verb};

/// A block of this rank: which memory, and which block of it.
pub(crate) type Block = (Space, u32);

/// One rank's program.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) acts: Vec<Act>,
    pub(crate) places: Vec<Place>,
    pub(crate) strands: Vec<Strand>,
    pub(crate) scratch: u32,
    pub(crate) uses_window: bool,
    rank: u32,
}

pub(crate) fn input(index: usize) -> Block {
    (Space::Input, index as u32)
}

pub(crate) fn output(index: usize) -> Block {
    (Space::Output, index as u32)
}

pub(crate) fn scratch(index: usize) -> Block {
    (Space::Scratch, index as u32)
}

pub(crate) fn window(index: usize) -> Block {
    (Space::Window, index as u32)
}

impl Program {
    /// An empty program with one strand on lane 0.
    pub(crate) fn new(rank: usize) -> Self {
        Self { rank: rank as u32, ..Self::default() }.strand(0)
    }

    /// What follows goes to a new strand.
    pub(crate) fn strand(mut self, lane: u32) -> Self {
        self.strands.push(Strand { lane, first_act: self.acts.len() as u32, acts: 0 });
        self
    }

    fn place(&mut self, rank: u32, (space, index): Block) {
        self.scratch = if space == Space::Scratch { self.scratch.max(index + 1) } else { self.scratch };
        self.uses_window |= space == Space::Window;
        self.places.push(Place { rank, space: space as u32, index });
    }

    /// Adds an act without places, which the caller adds.
    fn act(&mut self, verb: Verb, peer: usize, operands: usize) -> &mut Act {
        self.strands.last_mut().expect("a program has a strand").acts += 1;
        self.acts.push(Act {
            verb: verb as u8,
            finish: 0,
            operands: operands as u16,
            targets: 0,
            unused: 0,
            peer: peer as u32,
            forward: Act::NOBODY,
            signals: 0,
            first_place: self.places.len() as u32,
        });
        self.acts.last_mut().expect("just added")
    }

    fn own(&mut self, blocks: &[Block]) {
        blocks.iter().for_each(|&block| self.place(self.rank, block));
    }

    pub(crate) fn send(mut self, peer: usize, blocks: &[Block]) -> Self {
        self.act(Verb::Send, peer, blocks.len());
        self.own(blocks);
        self
    }

    pub(crate) fn recv(mut self, peer: usize, into: &[Block]) -> Self {
        self.act(Verb::Recv, peer, into.len());
        self.own(into);
        self
    }

    pub(crate) fn recv_reduce(mut self, peer: usize, with: &[Block], into: &[Block], finish: bool) -> Self {
        self.act(Verb::RecvReduce, peer, with.len()).finish = finish.into();
        self.own(with);
        self.own(into);
        self
    }

    /// What the last act received, and combined, goes on to `peer`.
    pub(crate) fn forward(mut self, peer: usize) -> Self {
        self.acts.last_mut().expect("an act before").forward = peer as u32;
        self
    }

    pub(crate) fn copy(mut self, from: Block, into: Block) -> Self {
        self.act(Verb::Copy, 0, 1).targets = 1;
        self.own(&[from, into]);
        self
    }

    /// From a block of a peer's window.
    pub(crate) fn get(mut self, peer: usize, from: Block, into: Block) -> Self {
        self.act(Verb::Copy, peer, 1).targets = 1;
        self.place(peer as u32, from);
        self.own(&[into]);
        self
    }

    /// Combines blocks of ranks into blocks of this one.
    pub(crate) fn reduce(mut self, from: &[(usize, Block)], into: &[Block]) -> Self {
        let act = self.act(Verb::Reduce, 0, from.len());
        (act.targets, act.finish) = (into.len() as u16, 1);
        from.iter().for_each(|&(rank, block)| self.place(rank as u32, block));
        self.own(into);
        self
    }

    pub(crate) fn signal(mut self) -> Self {
        self.act(Verb::Signal, 0, 0);
        self
    }

    pub(crate) fn wait(mut self, peer: usize, signals: u32) -> Self {
        self.act(Verb::Wait, peer, 0).signals = signals;
        self
    }
}
