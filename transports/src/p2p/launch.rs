//! Launches of the kernels that carry out schedules: safe, as everything they are given was checked.

use super::endpoint::{Endpoint, Uploaded};
use super::operand::Operand;
use super::program::LANES;
use crate::{Error, Result};
use std::sync::PoisonError;
use std::time::Duration;
use unisono_cuda::device::{Gpu, Interpret, Kernel, Patience, Protocol, ReduceCopy, Shape, Stream};
use unisono_cuda::{DType, Op, Scalar};

/// One operation, beside its program and its memory.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Its number, for errors.
    pub sequence: u64,
    /// What it is: compared between ranks.
    pub what: u64,
    /// How many elements: compared between ranks.
    pub count: u64,
    /// Of the elements.
    pub dtype: DType,
    /// How they are combined.
    pub op: Op,
    /// For [`Op::PreMulSum`].
    pub factor: Option<Scalar>,
    /// What complete sums are divided by, for [`Op::Avg`].
    pub divisor: u32,
    /// Bytes of a slice.
    pub slice_bytes: usize,
    /// Slices of the longest block.
    pub pieces: usize,
    /// Channels that take part.
    pub channels: usize,
    /// How messages go.
    pub protocol: Protocol,
    /// For each wait.
    pub limit: Duration,
}

impl Endpoint {
    /// The kernel of this name for elements of this type; kept from when it is first asked for.
    pub(super) fn kernel(&self, name: &'static str, dtype: DType) -> Result<Kernel> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(&(name, dtype)) {
            return Ok(kernel.clone());
        }
        let kernel = self.arena.gpu().kernel(&format!("{name}_{dtype}"))?;
        kernels.insert((name, dtype), kernel.clone());
        Ok(kernel)
    }

    /// Blocks of its kernels that can be resident at once.
    ///
    /// # Errors
    /// If the driver does not say.
    pub fn residents(gpu: &Gpu) -> Result<usize> {
        let kernel = gpu.kernel(&format!("schedule_{}", DType::F32))?;
        Ok(kernel.residents(threads(gpu.is_software()))? as usize)
    }

    /// Enqueues this rank's part of an operation.
    ///
    /// # Errors
    /// If sizes do not fit each other, memory is another GPU's, or the driver refuses the launch: nothing is enqueued then.
    pub fn launch(
        &self,
        stream: &Stream,
        uploaded: &Uploaded,
        order: &Order,
        input: &Operand<'_>,
        output: &Operand<'_>,
    ) -> Result<()> {
        self.check(uploaded, order)?;
        let kernel = self.kernel("schedule", order.dtype)?;
        let arguments = self.arguments(uploaded, order, input, output)?;
        let blocks = uploaded.program.blocks(order.channels) as u32;
        let threads = threads(self.arena.gpu().is_software());
        let shape = Shape { blocks, threads, cooperative: true };
        input.begin_use(stream).and(output.begin_use(stream))?;
        // SAFETY: it is this kernel's struct. Every table is as long as the kernel takes it to be, every index in
        // them was checked against its bounds (`Program::new`), and these against the memory (`check`, `extent`); all
        // of it is borrowed until the stream is known to use it.
        let launched = unsafe { kernel.launch(stream, shape, &arguments) };
        self.used_by(stream);
        uploaded.used_by(stream);
        let ended = input.end_use(stream).and(output.end_use(stream));
        launched?;
        ended
    }

    /// An error unless slots, windows, scratch and lanes have room for the program.
    fn check(&self, uploaded: &Uploaded, order: &Order) -> Result<()> {
        let (program, sizes) = (&uploaded.program, self.arena.layout().sizes());
        let (bounds, slice) = (program.bounds(), order.slice_bytes);
        let in_channels = program.lane_max() < LANES;
        let beside = order.channels == 1 && program.lane_max() < sizes.lanes();
        let slot = match order.protocol {
            Protocol::Slots => sizes.slot_bytes,
            Protocol::Lines => sizes.low_bytes,
        };
        let scratch = program.blocks(order.channels) * bounds.scratch;
        let problem = if !(in_channels || beside) || order.channels > sizes.channels || order.channels == 0 {
            "it has no such lanes"
        } else if (bounds.rank, bounds.ranks) != (self.arena.rank(), sizes.ranks) {
            "it is another rank's program"
        } else if slice == 0 || slice % 64 != 0 || order.pieces == 0 {
            "there are no such slices"
        } else if exceeds(program.blocks_per_message(), slice, slot) {
            "messages do not fit a slot"
        } else if exceeds(bounds.window, slice, self.bank_bytes()) {
            "blocks do not fit the window"
        } else if scratch > uploaded.lengths.len() || exceeds(scratch, slice, uploaded.scratch.len()) {
            "blocks do not fit scratch"
        } else if (bounds.uses_window || order.protocol == Protocol::Lines) && !self.reaches_all() {
            "peers are out of reach"
        } else {
            return Ok(());
        };
        Err(Error::Misuse(format!("{problem}: {order:?}")))
    }

    /// Bytes of one of the two halves of a channel's window.
    pub fn bank_bytes(&self) -> usize {
        let sizes = self.arena.layout().sizes();
        sizes.window_bytes / (2 * sizes.channels) / 64 * 64
    }

    fn arguments(
        &self,
        uploaded: &Uploaded,
        order: &Order,
        input: &Operand<'_>,
        output: &Operand<'_>,
    ) -> Result<Interpret> {
        let (program, sizes) = (&uploaded.program, self.arena.layout().sizes());
        let factor = |scalar| ReduceCopy::factor(order.dtype, scalar);
        let one = Scalar::Int(1);
        Ok(Interpret {
            acts: uploaded.acts.address() as *const _,
            places: uploaded.places.address() as *const _,
            strands: uploaded.strands.address() as *const _,
            ports: self.ports[order.protocol as usize].address() as *mut _,
            neighbours: self.neighbours.address() as *const _,
            instances: self.instances.address() as *mut _,
            scratch: uploaded.scratch.address() as *mut _,
            lengths: uploaded.lengths.address() as *mut _,
            input: input.extent("input", program.bounds().input)?,
            output: output.extent("output", program.bounds().output)?,
            slice_bytes: order.slice_bytes as u64,
            bank_bytes: self.bank_bytes() as u64,
            pieces: order.pieces as u64,
            sequence: order.sequence,
            what: order.what,
            count: order.count,
            factor: factor(order.factor.unwrap_or(one)),
            one: factor(one),
            ranks: sizes.ranks as u32,
            rank: self.arena.rank() as u32,
            channels: order.channels as u32,
            channels_max: sizes.channels as u32,
            strand_count: program.tables().strands.len() as u32,
            scratch_blocks: program.bounds().scratch as u32,
            op: order.op as u32,
            divisor: order.divisor.max(1),
            uses_window: program.bounds().uses_window.into(),
            protocol: order.protocol as u32,
            patience: self.patience(order.limit),
        })
    }

    pub(super) fn patience(&self, limit: Duration) -> Patience {
        Patience {
            abort: self.abort.address() as *const _,
            status: self.status.address() as *mut _,
            limit_ns: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// Whether `blocks` of `bytes` need more than `room`.
fn exceeds(blocks: usize, bytes: usize, room: usize) -> bool {
    blocks.checked_mul(bytes).is_none_or(|needed| needed > room)
}

/// Threads of a block. On a GPU enough to move 64 KiB at once; in software each is a fiber, of which few do.
pub(super) const fn threads(software: bool) -> u32 {
    if software { 32 } else { 512 }
}
