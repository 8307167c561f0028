//! Instructions that copy or reduce in one pass over memory.

use crate::engine::buffers::StepMemory;
use crate::engine::exec::arith::{Arithmetic, copy_local, stage_operands};
use crate::engine::exec::instr::{InstrExec, InstrPoll, WindowView};
use crate::engine::exec::no_window;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::lower::{Combine, OPERANDS_MAX, Transfer};
use crate::schedule::{Chunk, ChunkRef, Space};
use std::time::{Duration, Instant};
use unisono_reducers::{PostOp, Source, Store, copy_into, copy_to, scale};

impl InstrExec<'_, '_, '_> {
    /// Runs `transfer`, and measures it if this run is timed.
    pub(super) fn transfer(&mut self, transfer: &Transfer) -> Result<InstrPoll> {
        let bytes = self.bytes_of(transfer)?;
        self.traffic.add_bytes(bytes * transfer.remote_chunks);
        let is_timed = self.window_view.as_ref().is_some_and(|view| view.sample.is_some());
        let begun = is_timed.then(Instant::now);
        match transfer.combine {
            Combine::Copy => self.copy(transfer, bytes)?,
            Combine::Reduce { finish } => self.reduce(transfer, bytes, finish)?,
        }
        if let Some(begun) = begun {
            self.add_sample(transfer, bytes, begun.elapsed());
        }
        Ok(InstrPoll::Done)
    }

    /// Adds a transfer of `bytes` that took `time` to the measurement of this run.
    fn add_sample(&mut self, transfer: &Transfer, bytes: usize, time: Duration) {
        let target_chunk = transfer.targets[0].chunk;
        let received = if StepMemory::is_user_buffer(target_chunk) { bytes } else { 0 };
        let written = if target_chunk.space == Space::Window { bytes } else { 0 };
        let read = transfer.reads_peer_window(self.rank);
        if let Some(sample) = self.window_view.as_mut().and_then(|view| view.sample.as_deref_mut()) {
            sample.add(written, received, read, time);
        }
    }

    fn copy(&mut self, transfer: &Transfer, bytes: usize) -> Result<()> {
        let (source_place, target_place) = (&transfer.sources[0], &transfer.targets[0]);
        let slice_bytes = self.memory.slice_bytes;
        match (source_place.chunk.space, target_place.chunk.space) {
            (Space::Window, Space::Window) => {
                let view = require_window(self.window_view.as_ref())?;
                copy_to(
                    Store::Cached,
                    view.target(target_place, bytes, slice_bytes),
                    view.source(source_place, bytes, slice_bytes),
                );
            }
            (Space::Window, _) => {
                let store = self.arithmetic.store_into(target_place.chunk);
                let source =
                    require_window(self.window_view.as_ref())?.source(source_place, bytes, slice_bytes);
                copy_to(store, self.memory.target(target_place.chunk, bytes), source);
            }
            (_, Space::Window) => self.pack(source_place, target_place, also_into(transfer), bytes)?,
            _ => {
                copy_local(&mut self.memory, &self.arithmetic, source_place.chunk, target_place.chunk, bytes)
            }
        }
        Ok(())
    }

    /// Copies a chunk of this rank into a window, and into `output_chunk` as well.
    fn pack(
        &mut self,
        source_place: &ChunkRef,
        target_place: &ChunkRef,
        output_chunk: Option<Chunk>,
        bytes: usize,
    ) -> Result<()> {
        let view = require_window(self.window_view.as_ref())?;
        let target = view.target(target_place, bytes, self.memory.slice_bytes);
        let Arithmetic { dtype, .. } = self.arithmetic;
        let factor = self.arithmetic.factor_of(source_place.chunk);
        // One pass writes both targets only if there is no factor, because `scale` has one target.
        if let (Some(chunk), None) = (output_chunk, factor)
            && let Some((output, source)) = self.memory.target_and_source(chunk, source_place.chunk)
        {
            copy_into(&mut [(view.store, target), (self.arithmetic.store_into(chunk), output)], source);
            return Ok(());
        }
        let source = self.memory.source(source_place.chunk);
        match factor {
            Some(scalar) => scale(dtype, scalar, target, Some(source)),
            None => copy_to(view.store, target, source),
        }
        if let Some(chunk) = output_chunk {
            copy_local(&mut self.memory, &self.arithmetic, source_place.chunk, chunk, bytes);
        }
        Ok(())
    }

    /// Combines the sources into the targets, [`OPERANDS_MAX`] operands in one pass over memory.
    fn reduce(&mut self, transfer: &Transfer, bytes: usize, finish: bool) -> Result<()> {
        let sources = &transfer.sources[..];
        stage_operands(&mut self.memory, &self.arithmetic, sources, user_target(transfer), bytes);
        let passes = sources.len().div_ceil(OPERANDS_MAX);
        let mut staged = 0;
        for (pass, operands) in sources.chunks(OPERANDS_MAX).enumerate() {
            let finish = self.arithmetic.post_op(finish && pass + 1 == passes);
            let pass = Pass { operands, is_first: pass == 0, finish };
            match operands.len() {
                0..=8 => self.reduce_pass::<8>(transfer, pass, bytes, &mut staged)?,
                _ => self.reduce_pass::<OPERANDS_MAX>(transfer, pass, bytes, &mut staged)?,
            }
        }
        Ok(())
    }

    /// Runs one pass of a reduction of at most `MAX` operands.
    fn reduce_pass<const MAX: usize>(
        &mut self,
        transfer: &Transfer,
        Pass { operands, is_first, finish }: Pass<'_>,
        bytes: usize,
        staged: &mut usize,
    ) -> Result<()> {
        let arithmetic = self.arithmetic;
        let slice_bytes = self.memory.slice_bytes;
        let view = self.window_view.as_ref();
        let (target_place, user_chunk) = (&transfer.targets[0], user_target(transfer));
        let user_store = self.arithmetic.store_into(user_chunk);
        let open = self.memory.open_target(user_chunk, bytes);
        let mut sources = [Source::from(&[][..]); MAX];
        for (source, place) in sources.iter_mut().zip(operands) {
            // Operands that can be read where they are stay there. The others are in staging, in
            // the order in which `stage_operands` has copied them.
            *source = match (place.chunk.space, open.input) {
                (Space::Window, _) => require_window(view)?.source(place, bytes, slice_bytes),
                (Space::Input, Some(input)) if self.arithmetic.factor.is_none() => {
                    let slice =
                        open.input_layout.slice(place.chunk.index as usize, open.slice_index, slice_bytes);
                    Source::from(&input[slice])
                }
                _ => {
                    *staged += bytes;
                    Source::from(&open.staging[*staged - bytes..*staged])
                }
            };
        }
        let sources = &sources[..operands.len()];
        match (open.target, also_into(transfer)) {
            (Some(target), Some(_)) => {
                debug_assert!(is_first, "a transfer with two targets is one pass");
                let view = require_window(view)?;
                let window = view.target(target_place, bytes, slice_bytes);
                let targets = [(view.store, window), (arithmetic.store, target)];
                arithmetic.reduce_twice(finish, targets, sources);
            }
            (Some(target), _) if is_first => arithmetic.reduce(user_store, finish, target, sources),
            (Some(target), _) => arithmetic.reduce_assign(finish, target, sources),
            (None, _) => {
                let view = require_window(view)?;
                let target = view.target(target_place, bytes, slice_bytes);
                match is_first {
                    true => arithmetic.reduce(view.store, finish, target, sources),
                    false => arithmetic.reduce_assign(finish, target, sources),
                }
            }
        }
        Ok(())
    }

    /// Returns the bytes of the result. User buffers define the length, else scratch.
    fn bytes_of(&self, transfer: &Transfer) -> Result<usize> {
        let places = transfer.sources.iter().chain(&transfer.targets[..1]);
        let length = |chunk: Chunk| self.memory.bytes(chunk);
        let mut callers = places.clone().filter(|place| StepMemory::is_user_buffer(place.chunk));
        if let Some(place) = callers.next() {
            return Ok(length(place.chunk));
        }
        let mut scratch = places.filter(|place| place.chunk.space == Space::Scratch);
        scratch.next().map(|place| length(place.chunk)).ok_or_else(|| {
            Error::new(ErrorKind::Bug("a step between windows alone has no length".to_owned()))
        })
    }
}

/// One pass of a reduction.
struct Pass<'t> {
    operands: &'t [ChunkRef],
    /// True if the target holds no operand yet.
    is_first: bool,
    finish: PostOp,
}

/// Returns the chunk of the output that a transfer writes beside a window.
fn also_into(transfer: &Transfer) -> Option<Chunk> {
    transfer.targets.get(1).map(|place| place.chunk)
}

/// Returns the target that may be memory of the caller.
fn user_target(transfer: &Transfer) -> Chunk {
    also_into(transfer).unwrap_or(transfer.targets[0].chunk)
}

fn require_window<'b, 'e>(view: Option<&'b WindowView<'e>>) -> Result<&'b WindowView<'e>> {
    view.ok_or_else(no_window)
}
