//! Launches of the kernels that carry out schedules: safe, as everything they are given was checked.

use super::endpoint::{Endpoint, Uploaded};
use super::lent::Grasp;
use super::operand::Operand;
use super::program::LANES;
use crate::{Error, Result};
use std::ptr::null;
use std::time::Duration;
use unisono_cuda::device::{
    Gpu, GpuError, Interpret, Kernel, Lent, OwnKernels, Patience, Protocol, ReduceCopy, Shape, Stream,
};
use unisono_cuda::{DType, Op, Scalar};

/// One operation, beside its program and its memory.
#[derive(Clone, Copy)]
pub struct Order<'a> {
    /// Its number, for errors.
    pub sequence: u64,
    /// What it is: compared between ranks.
    pub what: u64,
    /// How many elements, with digests above: compared between ranks.
    pub count: u64,
    /// Of the elements.
    pub dtype: DType,
    /// How they are combined.
    pub op: Op,
    /// Kernels that combine them otherwise, in the place of [`Op::Sum`].
    pub own: Option<&'a OwnKernels>,
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

impl std::fmt::Debug for Order<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { sequence, dtype, op, slice_bytes, pieces, channels, protocol, .. } = self;
        write!(f, "operation {sequence} ({dtype}, {op}) in {pieces} slices of {slice_bytes} bytes ")?;
        write!(f, "on {channels} channels by {protocol:?}")
    }
}

impl Endpoint {
    /// The kernel that carries out schedules for an order.
    fn schedule(&self, order: &Order<'_>) -> Result<Kernel> {
        match order.own {
            Some(own) => self.own(order, own, own.schedule()),
            None => self.kernel("schedule", order.dtype),
        }
    }

    /// The kernel of the smallest all_reduce for an order.
    pub(super) fn one_shot(&self, order: &Order<'_>) -> Result<Kernel> {
        match order.own {
            Some(own) => self.own(order, own, own.one_shot()),
            None => self.kernel("one_shot", order.dtype),
        }
    }

    /// A kernel of the caller's, unless it is for something else, or fewer of its blocks run at once than this endpoint has
    /// taken room for.
    fn own(&self, order: &Order<'_>, own: &OwnKernels, kernel: &Kernel) -> Result<Kernel> {
        let (gpu, blocks) = (self.arena.gpu(), self.room);
        if own.dtype() != order.dtype || order.op != Op::Sum || kernel.gpu() != gpu {
            return Err(Error::Misuse(format!("{} for {order:?} on {gpu:?}", kernel.name())));
        }
        let threads = threads(gpu.is_software());
        match kernel.residents(threads)? {
            room if room < blocks => {
                let kernel = kernel.name();
                Err(GpuError::TooManyBlocks { kernel, blocks, threads, room }.into())
            }
            _ => Ok(kernel.clone()),
        }
    }

    /// The kernel of this name for elements of this type.
    fn kernel(&self, name: &'static str, dtype: DType) -> Result<Kernel> {
        Ok(self.arena.gpu().kernel(&format!("{name}_{dtype}"))?)
    }

    /// Blocks of any of its kernels that can be resident at once.
    ///
    /// # Errors
    /// If the driver does not say, or a kernel does not fit at all.
    pub fn residents(gpu: &Gpu) -> Result<usize> {
        let mut least = usize::MAX;
        for (name, dtype) in DType::ALL.into_iter().flat_map(|dtype| KERNELS.map(|name| (name, dtype))) {
            let (kernel, threads) = (gpu.kernel(&format!("{name}_{dtype}"))?, threads(gpu.is_software()));
            let room = kernel.residents(threads)?;
            if room == 0 {
                return Err(
                    GpuError::TooManyBlocks { kernel: kernel.name(), blocks: 1, threads, room }.into()
                );
            }
            least = least.min(room as usize);
        }
        Ok(least)
    }

    /// Enqueues this rank's part of an operation, which reads the first operand and writes the second; `grasp`: where those of
    /// peers are, if the program names them.
    ///
    /// # Errors
    /// If sizes do not fit each other, memory is another GPU's, or the driver refuses the launch: nothing is enqueued then.
    pub fn launch(
        &self,
        stream: &Stream,
        uploaded: &Uploaded,
        order: &Order<'_>,
        [input, output]: [&Operand<'_>; 2],
        grasp: Option<&Grasp>,
    ) -> Result<()> {
        self.check(uploaded, order)?;
        let lent = self.lent(uploaded, grasp, [input, output])?;
        let kernel = self.schedule(order)?;
        let arguments = self.arguments(uploaded, order, input, output, lent)?;
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
        if let Some(grasp) = grasp {
            grasp.used_by(stream);
        }
        let ended = input.end_use(stream).and(output.end_use(stream));
        launched?;
        ended
    }

    /// The table of peers' buffers; none if the program names none.
    fn lent(
        &self,
        uploaded: &Uploaded,
        grasp: Option<&Grasp>,
        operands: [&Operand<'_>; 2],
    ) -> Result<*const Lent> {
        let (lent, ranks) = (uploaded.program.bounds().lent, self.arena.layout().sizes().ranks);
        match grasp {
            _ if lent == [0, 0] => Ok(null()),
            Some(grasp) => grasp.table(lent, ranks, operands),
            None => Err(Error::Misuse("a program for buffers that nobody has lent".to_owned())),
        }
    }

    /// An error unless slots, windows, scratch and lanes have room for the program.
    fn check(&self, uploaded: &Uploaded, order: &Order<'_>) -> Result<()> {
        let (program, sizes) = (&uploaded.program, self.arena.layout().sizes());
        let (bounds, slice) = (program.bounds(), order.slice_bytes);
        let in_channels = program.lane_max() < LANES;
        let beside = order.channels == 1 && program.lane_max() < sizes.lanes();
        let (slot, lines) = (sizes.message_bytes(order.protocol), order.protocol != Protocol::Slots);
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
        } else if lines && order.protocol != self.lines(order.own) {
            "there are no such lines"
        } else if (bounds.uses_window || lines) && !self.reaches_all() {
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
        order: &Order<'_>,
        input: &Operand<'_>,
        output: &Operand<'_>,
        lent: *const Lent,
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
            lent,
            left: self.left.address() as *const _,
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

/// Those of which there is one for each type of elements.
const KERNELS: [&str; 2] = ["schedule", "one_shot"];

/// Whether `blocks` of `bytes` need more than `room`.
fn exceeds(blocks: usize, bytes: usize, room: usize) -> bool {
    blocks.checked_mul(bytes).is_none_or(|needed| needed > room)
}

/// Threads of a block. On a GPU enough to move 64 KiB at once; in software each is a fiber, of which few do.
pub(super) const fn threads(software: bool) -> u32 {
    if software { 32 } else { 512 }
}
