//! A kernel that runs until it is told to end: a rank whose peer never comes.

use std::sync::atomic::Ordering;
use unisono_cuda::device::{
    Buffer, Channel, Deadline, Exchange, Fifo, Gpu, LaunchDims, Pinned, Stream, WaitReport, WaitState,
};

/// Memory of a running kernel, which must be kept until the kernel has ended.
pub(crate) struct Busy {
    abort: Pinned<u32>,
    status: Pinned<WaitReport>,
    _channel: Buffer<Channel>,
    fifos: Buffer<u64>,
}

const SHAPE: LaunchDims = LaunchDims { blocks: 1, threads: 32, cooperative: true };

impl Busy {
    /// Lets the stream do nothing but wait.
    pub(crate) fn new(gpu: &Gpu, stream: &Stream) -> Self {
        let fifos = gpu.alloc::<u64>(64).unwrap();
        let fifo = |index: u64| Fifo {
            slots: (fifos.address() + 128 * index) as *mut u8,
            tail: (fifos.address() + 256 + 16 * index) as *mut u64,
            head: (fifos.address() + 264 + 16 * index) as *mut u64,
            slot_count: 1,
            slot_bytes: 16,
        };
        let (input, output) = (fifos.address() as *const u8, fifos.address() as *mut u8);
        let channel =
            Channel { input, output, bytes: 16, out: fifo(0), into: fifo(1), step: 0, rank: 3, peer: 4 };
        let (abort, status, channel) =
            (gpu.pin(1).unwrap(), gpu.pin(1).unwrap(), gpu.upload(&[channel]).unwrap());
        let patience = Deadline {
            abort: abort.address() as *const u32,
            report: status.address() as *mut WaitReport,
            timeout_ns: 60_000_000_000,
            failed: std::ptr::null_mut(),
        };
        let arguments = Exchange { channels: channel.address() as *const Channel, deadline: patience };
        // SAFETY: what the arguments point to is used by the stream, as said below.
        unsafe { gpu.kernel("exchange").unwrap().launch(stream, SHAPE, &arguments) }.unwrap();
        abort.record_stream(stream);
        status.record_stream(stream);
        channel.record_stream(stream);
        fifos.record_stream(stream);
        Self { abort, status, _channel: channel, fifos }
    }

    /// Waits until the kernel runs: it sends before it waits.
    pub(crate) fn begun(&self, stream: &Stream) {
        while self.fifos.view(32..33).to_vec(stream).unwrap() == [0] {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Lets go of all but the word that ends it.
    pub(crate) fn leave(self) -> Pinned<u32> {
        self.abort
    }

    /// Ends it.
    pub(crate) fn end(&self, stream: &Stream) {
        assert_eq!(self.status.get(0).state(), Some(WaitState::Ok), "it has given up by itself");
        self.abort.words()[0].store(1, Ordering::Relaxed);
        stream.synchronize().unwrap();
        let status = self.status.get(0);
        assert_eq!((status.state(), status.rank, status.peer), (Some(WaitState::Aborted), 3, 4));
    }
}
