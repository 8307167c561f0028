//! The software device through the functions of libcuda: what a program does on a GPU, done without one.

#[allow(dead_code)]
mod software;

use software::Device;
use std::ffi::{CString, c_int, c_void};
use std::ptr::{from_ref, null_mut};
use std::time::Duration;
use unisono_cuda::device::{Channel, Exchange, Fifo, Patience, State, Status};

type Handle = *mut c_void;

/// Calls a function of the driver by its name and its types.
macro_rules! call {
    ($device:expr, $name:ident($($argument:expr => $type:ty),*)) => {{
        // SAFETY: the types are those of libcuda's header; memory is the test's affair.
        unsafe { $device.symbol::<unsafe extern "C" fn($($type),*) -> c_int>(stringify!($name))($($argument),*) }
    }};
}

fn stream(device: &Device) -> Handle {
    let mut stream = null_mut();
    assert_eq!(call!(device, cuStreamCreate(&mut stream => *mut Handle, 1 => u32)), 0);
    stream
}

fn synchronize(device: &Device, stream: Handle) -> c_int {
    call!(device, cuStreamSynchronize(stream => Handle))
}

fn destroy(device: &Device, stream: Handle) {
    assert_eq!(call!(device, cuStreamDestroy_v2(stream => Handle)), 0);
}

fn allocate(device: &Device, bytes: usize) -> u64 {
    let mut memory = 0;
    assert_eq!(call!(device, cuMemAlloc_v2(&mut memory => *mut u64, bytes => usize)), 0);
    memory
}

fn upload<T>(device: &Device, to: u64, from: &[T], stream: Handle) {
    let from_bytes = from.as_ptr().cast::<c_void>();
    let call = call!(device, cuMemcpyHtoDAsync_v2(
        to => u64, from_bytes => *const c_void, size_of_val(from) => usize, stream => Handle
    ));
    assert_eq!((call, synchronize(device, stream)), (0, 0));
}

fn download<T: Clone>(device: &Device, from: u64, like: &T, count: usize, stream: Handle) -> Vec<T> {
    let mut to = vec![like.clone(); count];
    let call = call!(device, cuMemcpyDtoHAsync_v2(
        to.as_mut_ptr().cast() => *mut c_void, from => u64, size_of_val(&to[..]) => usize, stream => Handle
    ));
    assert_eq!((call, synchronize(device, stream)), (0, 0));
    to
}

fn module(device: &Device, text: &str) -> Result<Handle, c_int> {
    let mut module = null_mut();
    let text = CString::new(text).expect("text without zeros");
    let image = text.as_ptr().cast::<c_void>();
    match call!(device, cuModuleLoadData(&mut module => *mut Handle, image => *const c_void)) {
        0 => Ok(module),
        error => Err(error),
    }
}

fn function(device: &Device, module: Handle, name: &str) -> Result<Handle, c_int> {
    let mut function = null_mut();
    let name = CString::new(name).expect("a name without zeros");
    let name = name.as_ptr().cast::<c_void>();
    let call = call!(device, cuModuleGetFunction(&mut function => *mut Handle, module => Handle, name => *const c_void));
    if call == 0 { Ok(function) } else { Err(call) }
}

fn launch<A>(device: &Device, kernel: Handle, arguments: &A, stream: Handle) -> c_int {
    let mut parameters = [from_ref(arguments).cast_mut().cast::<c_void>()];
    call!(device, cuLaunchKernel(
        kernel => Handle, 1 => u32, 1 => u32, 1 => u32, 32 => u32, 1 => u32, 1 => u32, 0 => u32,
        stream => Handle, parameters.as_mut_ptr() => *mut Handle, null_mut() => *mut Handle
    ))
}

/// One of two ranks, with a stream of its own.
struct Rank {
    stream: Handle,
    input: u64,
    output: u64,
    slots: u64,
    /// Tail and head of the FIFO to this rank, abort word.
    words: u64,
    status: u64,
    channel: u64,
}

const BYTES: usize = 5000;
const SLOT_BYTES: usize = 512;

impl Rank {
    fn new(device: &Device, fill: u8) -> Self {
        let bytes = [BYTES, BYTES, 2 * SLOT_BYTES, 24, size_of::<Status>(), size_of::<Channel>()];
        let [input, output, slots, words, status, channel] = bytes.map(|bytes| allocate(device, bytes));
        let rank = Self { stream: stream(device), input, output, slots, words, status, channel };
        upload(device, input, &[fill; BYTES], rank.stream);
        upload(device, words, &[0u64; 3], rank.stream);
        upload(device, status, &[Status::WELL], rank.stream);
        rank
    }

    fn fifo(&self) -> Fifo {
        let (tail, head) = (self.words as *mut u64, (self.words + 8) as *mut u64);
        Fifo { slots: self.slots as *mut u8, tail, head, slot_count: 2, slot_bytes: SLOT_BYTES as u32 }
    }

    fn start(&self, device: &Device, kernel: Handle, peer: &Rank, rank: u32, limit: Duration) {
        let channel = Channel {
            input: self.input as *const u8,
            output: self.output as *mut u8,
            bytes: BYTES as u64,
            out: peer.fifo(),
            into: self.fifo(),
            step: 0,
            rank,
            peer: 1 - rank,
        };
        upload(device, self.channel, &[channel], self.stream);
        let (abort, status) = ((self.words + 16) as *const u32, self.status as *mut Status);
        let patience = Patience { abort, status, limit_ns: limit.as_nanos() as u64 };
        let arguments = Exchange { channels: self.channel as *const Channel, patience };
        assert_eq!(launch(device, kernel, &arguments, self.stream), 0);
    }

    fn status(&self, device: &Device) -> Status {
        download(device, self.status, &Status::WELL, 1, self.stream)[0].clone()
    }

    fn end(self, device: &Device) {
        for memory in [self.input, self.output, self.slots, self.words, self.status, self.channel] {
            assert_eq!(call!(device, cuMemFree_v2(memory => u64)), 0, "a guard was overwritten");
        }
        destroy(device, self.stream);
    }
}

fn exchange(device: &Device, kernel: Handle, limit: Duration) -> [Status; 2] {
    let ranks = [Rank::new(device, 3), Rank::new(device, 7)];
    ranks[0].start(device, kernel, &ranks[1], 0, limit);
    ranks[1].start(device, kernel, &ranks[0], 1, limit);
    let statuses = [ranks[0].status(device), ranks[1].status(device)];
    if statuses.iter().all(|status| status.state() == Some(State::Well)) {
        assert_eq!(download(device, ranks[0].output, &0u8, BYTES, ranks[0].stream), [7; BYTES]);
        assert_eq!(download(device, ranks[1].output, &0u8, BYTES, ranks[1].stream), [3; BYTES]);
    }
    ranks.into_iter().for_each(|rank| rank.end(device));
    statuses
}

#[test]
fn two_streams_are_two_ranks() {
    let Some(device) = Device::new("driver.so", &["kernels/exchange.cu", "tests/kernels/astray.cu"]) else {
        return;
    };
    assert_eq!(call!(device, cuInit(0 => u32)), 0);
    let module = module(&device, include_str!("../ptx/exchange.ptx")).unwrap();
    let kernel = function(&device, module, "exchange").unwrap();
    let statuses = exchange(&device, kernel, Duration::from_secs(60));
    assert!(statuses.iter().all(|status| status.state() == Some(State::Well)), "{statuses:?}");
    without_room_for_both(&device, kernel);
    events_order_streams(&device);
    mistakes_are_errors(&device, module);
}

/// The second kernel cannot start before the first has ended: which gives up, and says so.
fn without_room_for_both(device: &Device, kernel: Handle) {
    device.set_residents(1);
    let statuses = exchange(device, kernel, Duration::from_millis(100));
    let late = statuses.iter().find(|status| status.state() == Some(State::Late)).expect("one was late");
    assert_eq!((late.peer, late.step, late.seen), (1 - late.rank, 0, 0));
    device.set_residents(64);
}

fn events_order_streams(device: &Device) {
    let (first, second, memory) = (stream(device), stream(device), allocate(device, 1 << 20));
    let mut event = null_mut();
    assert_eq!(call!(device, cuEventCreate(&mut event => *mut Handle, 2 => u32)), 0);
    for byte in [1u8, 2, 3] {
        let set =
            call!(device, cuMemsetD8Async(memory => u64, byte => u8, 1 << 20 => usize, first => Handle));
        let recorded = call!(device, cuEventRecord(event => Handle, first => Handle));
        let waits = call!(device, cuStreamWaitEvent(second => Handle, event => Handle, 0 => u32));
        assert_eq!((set, recorded, waits), (0, 0, 0));
        assert!(download(device, memory, &0u8, 1 << 20, second).iter().all(|&found| found == byte));
    }
    assert_eq!(call!(device, cuEventSynchronize(event => Handle)), 0);
    assert_eq!(call!(device, cuEventQuery(event => Handle)), 0);
    assert_eq!(call!(device, cuMemFree_v2(memory => u64)), 0);
    assert_eq!(call!(device, cuEventDestroy_v2(event => Handle)), 0);
    [first, second].into_iter().for_each(|stream| destroy(device, stream));
}

fn mistakes_are_errors(device: &Device, exchange: Handle) {
    let (invalid_image, invalid_handle, not_found, launch_failed) = (200, 400, 500, 719);
    assert_eq!(module(device, include_str!("../ptx/reduce_copy_half.ptx")), Err(invalid_image), "not linked");
    assert_eq!(module(device, "no kernels"), Err(invalid_image));
    assert_eq!(function(device, exchange, "one_leaves"), Err(not_found), "in another module");
    let astray = module(device, ".visible .entry one_leaves(\n").unwrap();
    let kernel = function(device, astray, "one_leaves").unwrap();
    assert_eq!(launch(device, kernel, &[0u32; 4], null_mut()), invalid_handle, "there is no default stream");
    let stream = stream(device);
    assert_eq!(launch(device, kernel, &[0u32; 4], stream), 0);
    assert_eq!(synchronize(device, stream), launch_failed);
    destroy(device, stream);
}
