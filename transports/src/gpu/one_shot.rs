//! Launches of the kernel for the smallest all_reduce, in which every rank stores its input into
//! the mailboxes of all ranks.

use crate::gpu::endpoint::Endpoint;
use crate::gpu::launch::{LaunchParams, threads_per_block};
use crate::gpu::operand::Operand;
use crate::{Error, Result};
use unisono_cuda::device::{LaunchDims, OneShotArgs, ReduceCopy, Stream};
use unisono_reducers::Scalar;

impl Endpoint {
    /// Returns the bytes that one launch can reduce, or 0 if this rank cannot reach the mailbox of
    /// some rank.
    pub fn one_shot_bytes_max(&self) -> usize {
        let sizes = self.memory.layout().geometry();
        if self.all_peers_direct() { sizes.channels * sizes.ll_bytes } else { 0 }
    }

    /// Enqueues this rank's part of an all_reduce of `bytes`. The input and the output each have
    /// one share, which is this long. The slices and the protocol of the parameters are ignored.
    ///
    /// # Errors
    /// Returns an error if sizes do not match, if memory belongs to another GPU, or if the driver
    /// refuses the launch. Nothing is enqueued then.
    pub fn launch_one_shot(
        &self,
        stream: &Stream,
        order: &LaunchParams<'_>,
        bytes: usize,
        input: &Operand<'_>,
        output: &Operand<'_>,
    ) -> Result<()> {
        if bytes > self.one_shot_bytes_max() {
            return Err(Error::InvalidUsage(format!("one shot of {bytes} bytes: {order:?}")));
        }
        input.expect_no_copy().and(output.expect_no_copy())?;
        let kernel = self.one_shot_kernel(order)?;
        let arguments = self.one_shot_args(order, bytes, input, output)?;
        let blocks = bytes.div_ceil(arguments.block_bytes as usize).max(1) as u32;
        let shape = LaunchDims {
            blocks,
            threads: threads_per_block(self.memory.gpu().is_emulated()),
            cooperative: order.cooperative,
        };
        input.begin_use(stream).and(output.begin_use(stream))?;
        // SAFETY: `arguments` is the struct of this kernel. Both operands have as many bytes
        // (`shot`). No block exceeds the room of mailboxes and counters. All of it is borrowed
        // until the stream is known to use it.
        let launched = unsafe { kernel.launch(stream, shape, &arguments) };
        self.count_launch(&launched, order.capture);
        self.record_use(stream, order.capture);
        let ended = input.end_use(stream, order.capture).and(output.end_use(stream, order.capture));
        launched?;
        ended
    }

    fn one_shot_args(
        &self,
        order: &LaunchParams<'_>,
        bytes: usize,
        input: &Operand<'_>,
        output: &Operand<'_>,
    ) -> Result<OneShotArgs> {
        let sizes = self.memory.layout().geometry();
        let lines = self.ll_protocol(order.user_op);
        let shots = self.one_shot_state(lines);
        let (input_layout, output_layout) =
            (input.checked_layout("input", 1)?, output.checked_layout("output", 1)?);
        let has_all_bytes = |share_bytes: u64| share_bytes == bytes as u64;
        if !has_all_bytes(input_layout.share_bytes) || !has_all_bytes(output_layout.share_bytes) {
            return Err(Error::InvalidUsage(format!(
                "one shot of {bytes} bytes from {input_layout:?} to {output_layout:?}"
            )));
        }
        Ok(OneShotArgs {
            input: input_layout.base,
            output: output_layout.base,
            mailboxes: shots.mailboxes.address() as *const _,
            launches: shots.launches.address() as *mut _,
            bytes: bytes as u64,
            block_bytes: sizes.ll_bytes as u64,
            sequence: order.sequence,
            fingerprint: order.fingerprint,
            count: order.count,
            factor: ReduceCopy::factor(order.dtype, order.factor.unwrap_or(Scalar::Int(1))),
            ranks: sizes.ranks as u32,
            rank: self.memory.rank() as u32,
            blocks_max: sizes.channels as u32,
            op: order.op as u32,
            divisor: order.divisor.max(1),
            protocol: lines as u32,
            finalized: self.finalized.address() as *const _,
            deadline: self.deadline(order.timeout),
            completion: self.counter.completion(order.capture),
        })
    }
}
