//! Launches of the kernels that execute schedules. The launches are safe, because all arguments are
//! checked first.

use crate::gpu::endpoint::{DeviceProgram, Endpoint};
use crate::gpu::operand::Operand;
use crate::gpu::program::LANES;
use crate::gpu::window_set::AddressTable;
use crate::{Error, Result};
use std::ptr::null;
use std::time::Duration;
use unisono_cuda::device::{
    CaptureState, Deadline, Gpu, GpuError, Kernel, LaunchDims, PeerBuffers, Protocol, ReduceCopy,
    ScheduleArgs, Stream, UserOpKernels,
};
use unisono_reducers::{DType, ReduceKind, Scalar};

/// Parameters of one operation, apart from its program and its memory.
#[derive(Clone, Copy)]
pub struct LaunchParams<'a> {
    /// Sequence number, for errors.
    pub sequence: u64,
    /// Digest of the op descriptor, which is compared between ranks.
    pub fingerprint: u64,
    /// Number of elements, with digests in the upper bits. It is compared between ranks.
    pub count: u64,
    /// Data type of the elements.
    pub dtype: DType,
    /// Reduce op.
    pub op: ReduceKind,
    /// Kernels of the caller, which replace [`ReduceKind::Sum`] by another reduction.
    pub user_op: Option<&'a UserOpKernels>,
    /// Factor for [`ReduceKind::PreMulSum`].
    pub factor: Option<Scalar>,
    /// Divisor of complete sums, for [`ReduceKind::Avg`]. A pre-multiplied sum with a divisor is an
    /// average whose sources were divided by the least power of two that is not below the divisor.
    pub divisor: u32,
    /// Bytes of a slice.
    pub slice_bytes: usize,
    /// Slices of the longest chunk.
    pub slices: usize,
    /// Channels that take part.
    pub channels: usize,
    /// Protocol of the messages.
    pub protocol: Protocol,
    /// Time limit of each wait.
    pub timeout: Duration,
    /// Capture of the stream of the launch, if there is one.
    pub capture: CaptureState,
    /// True if the driver has to check that all blocks can be resident at once.
    pub cooperative: bool,
}

/// The kernels of an endpoint, by data type, so that launches need no lookup by name.
pub(crate) struct Kernels {
    schedule: Vec<Kernel>,
    one_shot: Vec<Kernel>,
}

impl Kernels {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self> {
        let kernels = |name: &str| {
            let kernel = |dtype: DType| gpu.kernel(&format!("{name}_{dtype}"))?.in_remote_domain();
            DType::ON_GPU.into_iter().map(kernel).collect::<std::result::Result<Vec<_>, GpuError>>()
        };
        let [schedule, one_shot] = KERNEL_NAMES;
        Ok(Self { schedule: kernels(schedule)?, one_shot: kernels(one_shot)? })
    }
}

impl std::fmt::Debug for LaunchParams<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { sequence, dtype, op, slice_bytes, slices: pieces, channels, protocol, .. } = self;
        write!(f, "operation {sequence} ({dtype}, {op}) in {pieces} slices of {slice_bytes} bytes ")?;
        write!(f, "on {channels} channels by {protocol:?}")
    }
}

impl Endpoint {
    /// Returns the kernel that executes schedules with these parameters.
    fn schedule_kernel(&self, order: &LaunchParams<'_>) -> Result<Kernel> {
        match order.user_op {
            Some(own) => self.user_op_kernel(order, own, own.schedule()),
            None => kernel_of(&self.kernels.schedule, order.dtype),
        }
    }

    /// Returns the kernel of the smallest all_reduce with these parameters.
    pub(crate) fn one_shot_kernel(&self, order: &LaunchParams<'_>) -> Result<Kernel> {
        match order.user_op {
            Some(own) => self.user_op_kernel(order, own, own.one_shot()),
            None => kernel_of(&self.kernels.one_shot, order.dtype),
        }
    }

    /// Returns a kernel of the caller. A kernel for another use is an error. A kernel with fewer
    /// resident blocks than this endpoint has reserved is an error, too.
    fn user_op_kernel(
        &self,
        order: &LaunchParams<'_>,
        kernels: &UserOpKernels,
        kernel: &Kernel,
    ) -> Result<Kernel> {
        let (gpu, blocks) = (self.memory.gpu(), self.max_blocks);
        if kernels.dtype() != order.dtype || order.op != ReduceKind::Sum || kernel.gpu() != gpu {
            return Err(Error::InvalidUsage(format!("{} for {order:?} on {gpu:?}", kernel.name())));
        }
        let threads = threads_per_block(gpu.is_emulated());
        match kernel.max_resident_blocks(threads)? {
            room if room < blocks => {
                let kernel = kernel.name();
                Err(GpuError::TooManyBlocks { kernel, blocks, threads, room }.into())
            }
            _ => Ok(kernel.clone()),
        }
    }

    /// Returns the number of thread blocks, of any of the kernels, that can be resident at once.
    ///
    /// # Errors
    /// Returns an error if the driver does not report it, or if a kernel does not fit at all.
    pub fn max_resident_blocks(gpu: &Gpu) -> Result<usize> {
        let mut least = usize::MAX;
        for (name, dtype) in
            DType::ON_GPU.into_iter().flat_map(|dtype| KERNEL_NAMES.map(|name| (name, dtype)))
        {
            let (kernel, threads) =
                (gpu.kernel(&format!("{name}_{dtype}"))?, threads_per_block(gpu.is_emulated()));
            let room = kernel.max_resident_blocks(threads)?;
            if room == 0 {
                return Err(
                    GpuError::TooManyBlocks { kernel: kernel.name(), blocks: 1, threads, room }.into()
                );
            }
            least = least.min(room as usize);
        }
        Ok(least)
    }

    /// Enqueues this rank's part of an operation, which reads the first operand and writes the
    /// second. The copy that the first operand may need is enqueued before. The last argument holds
    /// the addresses of peers' buffers, if the program names any.
    ///
    /// # Errors
    /// Returns an error if sizes do not match, if memory belongs to another GPU, or if the driver
    /// refuses the launch. Nothing is enqueued then, except for the copy.
    pub fn launch(
        &self,
        stream: &Stream,
        uploaded: &DeviceProgram,
        order: &LaunchParams<'_>,
        [input, output]: [&Operand<'_>; 2],
        addresses: Option<&AddressTable>,
    ) -> Result<()> {
        // All checks precede the first use of the stream, so a call that is refused here has
        // enqueued nothing.
        self.check_launch(uploaded, order)?;
        let copy = output.expect_no_copy().and_then(|()| input.copy())?;
        let peer_buffers = self.peer_buffers(uploaded, addresses, [input, output])?;
        let kernel = self.schedule_kernel(order)?;
        let arguments = self.schedule_args(uploaded, order, input, output, peer_buffers)?;
        let blocks = uploaded.program.thread_blocks(order.channels) as u32;
        let threads = threads_per_block(self.memory.gpu().is_emulated());
        let (shape, capture) =
            (LaunchDims { blocks, threads, cooperative: order.cooperative }, order.capture);
        input.begin_use(stream).and(output.begin_use(stream))?;
        // Tables that this launch reads come to the GPU before it, in the same stream.
        self.flush_tables(stream, capture)?;
        // SAFETY: `arguments` is the struct of this kernel. Every table is as long as the kernel
        // takes it to be. Every index in the tables was checked against its bounds
        // (`Program::new`). The bounds were checked against the memory (`check`, `extent`). The
        // copy is between two regions and fits both (`Operand::copy`). All of it is borrowed until
        // the stream is known to use it.
        let launched = unsafe { kernel.launch_after_copy(stream, copy, shape, &arguments) };
        self.count_launch(&launched, capture);
        // The uses are recorded even if the launch failed, because the copy before it may have been
        // enqueued.
        self.record_use(stream, capture);
        uploaded.record_use(stream, capture);
        if let Some(addresses) = addresses {
            addresses.record_use(stream, capture);
        }
        let ended = input.end_use(stream, capture).and(output.end_use(stream, capture));
        launched?;
        ended
    }

    /// Returns the table of peers' buffers, or a null pointer if the program names none.
    fn peer_buffers(
        &self,
        uploaded: &DeviceProgram,
        addresses: Option<&AddressTable>,
        operands: [&Operand<'_>; 2],
    ) -> Result<*const PeerBuffers> {
        let (peer_chunks, ranks) =
            (uploaded.program.bounds().peer_chunks, self.memory.layout().geometry().ranks);
        match addresses {
            _ if peer_chunks == [0, 0] => Ok(null()),
            Some(addresses) => addresses.table(peer_chunks, ranks, operands),
            None => Err(Error::InvalidUsage(
                "the program accesses buffers of peers, but their addresses are missing".to_owned(),
            )),
        }
    }

    /// Returns an error unless slots, windows, scratch and lanes have room for the program.
    fn check_launch(&self, uploaded: &DeviceProgram, order: &LaunchParams<'_>) -> Result<()> {
        let (program, sizes) = (&uploaded.program, self.memory.layout().geometry());
        let (bounds, slice) = (program.bounds(), order.slice_bytes);
        let in_channels = program.max_lane() < LANES;
        let in_lanes = order.channels == 1 && program.max_lane() < sizes.lanes();
        let (slot, lines) = (sizes.message_bytes(order.protocol), order.protocol != Protocol::Simple);
        let scratch = program.thread_blocks(order.channels) * bounds.scratch;
        let room = self.scratch(uploaded);
        let problem = if !(in_channels || in_lanes) || order.channels > sizes.channels || order.channels == 0
        {
            "it has no such lanes"
        } else if (bounds.rank, bounds.ranks) != (self.memory.rank(), sizes.ranks) {
            "it is another rank's program"
        } else if slice == 0 || slice % 64 != 0 || order.slices == 0 {
            "there are no such slices"
        } else if exceeds(program.blocks_per_message(), slice, slot) {
            "messages do not fit a slot"
        } else if exceeds(bounds.window, slice, self.parity_bytes()) {
            "blocks do not fit the window"
        } else if scratch > room.lengths.len() || exceeds(scratch, slice, room.bytes.len()) {
            "blocks do not fit scratch"
        } else if lines && order.protocol != self.ll_protocol(order.user_op) {
            "there are no such lines"
        } else if bounds.uses_window && !self.all_peers_direct() || lines && !uploaded.is_direct {
            "peers are out of reach"
        } else {
            return Ok(());
        };
        Err(Error::InvalidUsage(format!("{problem}: {order:?}")))
    }

    /// Returns the bytes of one of the two halves of a channel's window.
    pub fn parity_bytes(&self) -> usize {
        self.memory.layout().geometry().parity_bytes()
    }

    fn schedule_args(
        &self,
        uploaded: &DeviceProgram,
        order: &LaunchParams<'_>,
        input: &Operand<'_>,
        output: &Operand<'_>,
        peer_buffers: *const PeerBuffers,
    ) -> Result<ScheduleArgs> {
        let (program, sizes) = (&uploaded.program, self.memory.layout().geometry());
        let factor = |scalar| ReduceCopy::factor(order.dtype, scalar);
        let unit = Scalar::Int(1);
        Ok(ScheduleArgs {
            instrs: uploaded.instrs.address() as *const _,
            chunks: uploaded.chunks.address() as *const _,
            lane_programs: uploaded.lane_programs.address() as *const _,
            ports: self.ports[order.protocol as usize].address() as *mut _,
            peer_windows: self.peer_windows.address() as *const _,
            window_sequences: self.window_sequences.address() as *mut _,
            scratch: self.scratch(uploaded).bytes.address() as *mut _,
            lengths: self.scratch(uploaded).lengths.address() as *mut _,
            input: input.checked_layout("input", program.bounds().input)?,
            output: output.checked_layout("output", program.bounds().output)?,
            slice_bytes: order.slice_bytes as u64,
            parity_bytes: self.parity_bytes() as u64,
            slices: order.slices as u64,
            sequence: order.sequence,
            fingerprint: order.fingerprint,
            count: order.count,
            factor: factor(order.factor.unwrap_or(unit)),
            one: factor(unit),
            ranks: sizes.ranks as u32,
            rank: self.memory.rank() as u32,
            channels: order.channels as u32,
            channels_max: sizes.channels as u32,
            lane_program_count: program.tables().lane_programs.len() as u32,
            scratch_chunks: program.bounds().scratch as u32,
            op: order.op as u32,
            divisor: order.divisor.max(1),
            uses_window: program.bounds().uses_window.into(),
            protocol: order.protocol as u32,
            peer_buffers,
            finalized: self.finalized.address() as *const _,
            deadline: self.deadline(order.timeout),
            completion: self.counter.completion(order.capture),
        })
    }

    /// Counts a launch that runs now. Those of graphs are counted when the graph is launched.
    pub(crate) fn count_launch(&self, launched: &std::result::Result<(), GpuError>, capture: CaptureState) {
        if launched.is_ok() && capture == CaptureState::None {
            self.counter.add_enqueued(1);
        }
    }

    pub(crate) fn deadline(&self, limit: Duration) -> Deadline {
        Deadline {
            abort: self.abort.address() as *const _,
            report: self.wait_report.address() as *mut _,
            timeout_ns: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX),
            failed: self.failed.address() as *mut _,
        }
    }
}

/// Returns the kernel of a data type.
fn kernel_of(kernels: &[Kernel], dtype: DType) -> Result<Kernel> {
    let index = DType::ON_GPU.iter().position(|known| *known == dtype);
    let kernel = index.and_then(|index| kernels.get(index)).cloned();
    kernel.ok_or_else(|| Error::InvalidUsage(format!("{dtype} has no kernels")))
}

/// Kernels that exist once for each data type.
const KERNEL_NAMES: [&str; 2] = ["schedule", "one_shot"];

/// Returns true if `blocks` of `bytes` need more than `room`.
fn exceeds(blocks: usize, bytes: usize, room: usize) -> bool {
    blocks.checked_mul(bytes).is_none_or(|needed| needed > room)
}

/// Returns the threads of a block. On a GPU, there are enough threads to move 64 KiB at once. In
/// the emulator, each thread is a fiber, so there are only a few.
pub(crate) const fn threads_per_block(software: bool) -> u32 {
    if software { 32 } else { 512 }
}
