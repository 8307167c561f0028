//! Carries out the acts of a sheet: what is done for every post, in as few instructions as can be.

use super::express::DIGEST_BITS;
use super::memory::Buffers;
use super::sheet::{Act, Operand};
use super::stage::{OPERANDS_MAX, disagreement};
use super::staging::Trial;
use super::watch::Watch;
use crate::error::{Error, ErrorKind, Result};
use crate::reduction::Reduction;
use crate::schedule::Rank;
use std::ops::Range;
use std::time::Instant;
use unisono_cuda::{
    DType, Finish, Op, Scalar, Source, Store, Target, copy_into, copy_to, reduce_among, scale,
};
use unisono_transports::{Cell, Control, Mesh, Pace, Tag, Window};

/// What the acts of one operation share.
pub(super) struct Ride<'e> {
    pub(super) window: &'e mut Window,
    pub(super) cell: Cell,
    pub(super) number: u64,
    /// Where in the cells the data begins.
    pub(super) spot: usize,
    pub(super) stamp: u64,
    pub(super) tag: Tag,
    pub(super) dtype: DType,
    pub(super) reduction: Option<Reduction>,
    pub(super) finish: Finish,
    /// Which operand the output has already.
    pub(super) own: Option<usize>,
    /// How the own cell is written.
    pub(super) store: Store,
    pub(super) vigil: Vigil<'e>,
}

/// How posts of peers are waited for.
pub(super) struct Vigil<'e> {
    rank: Rank,
    control: &'e mut Box<dyn Control>,
    pace: &'e mut Box<dyn Pace>,
    watch: &'e mut Watch,
    seen: &'e mut [u64],
    shown: &'e mut u64,
}

impl Ride<'_> {
    /// Carries out `acts`, and counts what they take.
    #[cold]
    pub(super) fn try_out(
        &mut self,
        acts: &[Act],
        operands: &[Operand],
        buffers: &mut Buffers<'_>,
    ) -> Result<Trial> {
        let mut trial = Trial::default();
        for act in acts {
            let begun = Instant::now();
            self.act(act, operands, buffers)?;
            if let Some((written, gotten, read)) = act.moves(self.vigil.rank) {
                trial.add(written, gotten, read, begun.elapsed());
            }
        }
        Ok(trial)
    }

    /// Carries out one act.
    #[inline]
    pub(super) fn act(&mut self, act: &Act, operands: &[Operand], buffers: &mut Buffers<'_>) -> Result<()> {
        match act {
            Act::Post => self.window.post(self.cell, self.number, self.stamp, &self.tag),
            &Act::Wait { peer } => {
                self.vigil.wait(self.window, peer, self.cell, self.number, self.stamp, &self.tag)?;
            }
            Act::Lay { from, at } => {
                let target = self.window.own_cell(self.cell, self.number, self.spot + *at, from.len());
                self.read(self.store, buffers.input(from.clone()).into(), target);
            }
            Act::Spread { from, at, into } => {
                let target = self.window.own_cell(self.cell, self.number, self.spot + *at, from.len());
                let (input, output) = buffers.apart(into.clone());
                copy_into(
                    &mut [(self.store, target), (Store::Cached, output.into())],
                    input[from.clone()].into(),
                );
            }
            Act::Keep { from, into } => self.keep(from, into, buffers),
            Act::Get { from, at, into } => {
                let source = self.window.cell(*from, self.cell, self.number, self.spot + *at, into.len());
                copy_to(Store::Cached, buffers.output(into.clone()).into(), source);
            }
            Act::Reduce { into, finish } => {
                let finish = if *finish { self.finish } else { Finish::Keep };
                let buffers = buffers.apart(into.clone());
                match operands {
                    [one, other] => self.reduce([one, other], buffers, finish),
                    _ => self.reduce_many(operands, buffers, finish),
                }
            }
        }
        Ok(())
    }

    fn keep(&self, from: &Range<usize>, into: &Range<usize>, buffers: &mut Buffers<'_>) {
        match buffers.input_and_output(from.clone(), into.clone()) {
            Some((input, output)) => self.read(Store::Cached, input.into(), output.into()),
            None => {
                buffers.keep(from.clone(), into.clone());
                if let Some(factor) = self.factor() {
                    scale(self.dtype, factor, buffers.output(into.clone()).into(), None);
                }
            }
        }
    }

    fn factor(&self) -> Option<Scalar> {
        self.reduction.and_then(|reduction| reduction.factor())
    }

    /// Reads a block of the input: what is multiplied beforehand, is so here.
    fn read(&self, store: Store, source: Source<'_>, target: Target<'_>) {
        match self.factor() {
            Some(factor) => scale(self.dtype, factor, target, Some(source)),
            None => copy_to(store, target, source),
        }
    }

    /// Where an operand is; nowhere in particular, if it is what the output has.
    fn operand<'s>(&'s self, operand: Operand, input: &'s [u8], bytes: usize) -> Source<'s> {
        match operand {
            Operand::Cell { rank, at } => {
                self.window.cell(rank, self.cell, self.number, self.spot + at, bytes)
            }
            Operand::Input(at) => input[at..at + bytes].into(),
            Operand::Output => Source::from(&[][..]),
        }
    }

    #[inline]
    fn reduce<const COUNT: usize>(
        &self,
        operands: [&Operand; COUNT],
        (input, output): (&[u8], &mut [u8]),
        finish: Finish,
    ) {
        let mut sources = operands.map(|operand| self.operand(*operand, input, output.len()));
        reduce_among(self.dtype, self.op(), finish, output.into(), &mut sources, self.own);
    }

    fn reduce_many(&self, operands: &[Operand], (input, output): (&[u8], &mut [u8]), finish: Finish) {
        let mut sources = [Source::from(&[][..]); OPERANDS_MAX];
        for (source, operand) in sources.iter_mut().zip(operands) {
            *source = self.operand(*operand, input, output.len());
        }
        let sources = &mut sources[..operands.len()];
        reduce_among(self.dtype, self.op(), finish, output.into(), sources, self.own);
    }

    fn op(&self) -> Op {
        self.reduction.map_or(Op::Sum, |reduction| reduction.op())
    }
}

/// The window of `mesh`, and what waiting for posts in it takes.
#[inline]
pub(super) fn keep_vigil<'e>(
    mesh: &'e mut Mesh,
    watch: &'e mut Watch,
    seen: &'e mut [u64],
    shown: &'e mut u64,
) -> Result<(&'e mut Window, Vigil<'e>)> {
    let Mesh { rank, window, control, pace, .. } = mesh;
    let window = window.as_mut().ok_or_else(no_window)?;
    Ok((window, Vigil { rank: *rank, control, pace, watch, seen, shown }))
}

impl Vigil<'_> {
    /// Waits for post `number` of `peer`.
    pub(super) fn wait(
        &mut self,
        window: &mut Window,
        peer: Rank,
        cell: Cell,
        number: u64,
        stamp: u64,
        tag: &Tag,
    ) -> Result<()> {
        // Having come to this post, the peer is through with those before it.
        self.seen[peer] = number;
        if window.posted(peer, cell, number) == stamp {
            return Ok(());
        }
        // Peers that run ahead may be waiting for that.
        show_seen(window, self.shown, number);
        loop {
            for _ in 0..POLLS_PER_ROUND {
                std::hint::spin_loop();
                if window.posted(peer, cell, number) == stamp {
                    self.watch.moved();
                    return Ok(());
                }
            }
            // Whatever the peer did instead, its stamp is here.
            let other = window.posted(peer, Cell::Short, number);
            if other >> DIGEST_BITS == stamp >> DIGEST_BITS && other != stamp {
                return Err(disagreement(tag, &window.post_tag(peer, number), self.rank, peer));
            }
            self.watch.waited(&mut **self.control, &mut **self.pace, std::iter::once(peer))?;
        }
    }
}

/// Tells everybody that this rank has seen so many posts, if they do not know: `shown` is what they know.
pub(super) fn show_seen(window: &mut Window, shown: &mut u64, count: u64) {
    if *shown < count {
        window.set_seen(count);
        *shown = count;
    }
}

pub(super) fn no_window() -> Error {
    Error::new(ErrorKind::Bug("a sheet without a window".to_owned()))
}

/// Looks at a stamp between two looks at the clock, the abort flag and the pace.
const POLLS_PER_ROUND: u32 = 2;
