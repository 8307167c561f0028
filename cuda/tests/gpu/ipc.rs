//! Memory that another process opens.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use unisono_cuda::device::{
    EXPORT_UNIT_BYTES, Gpu, GpuError, ImportedMemory, IpcHandle, LaunchDims, ReduceCopy, Stream,
};
use unisono_reducers::{DType, ReduceKind};

/// Tells the second process that it is one.
const SECOND: &str = "UNISONO_TEST_IPC_SECOND";
const COUNT: usize = 1000;

/// Doubles what the imported memory has.
fn double(gpu: &Gpu, stream: &Stream, memory: &ImportedMemory) {
    let kernel = gpu.kernel(&ReduceCopy::kernel(DType::U32, ReduceKind::Sum)).unwrap();
    let address = memory.address() as *mut u8;
    let arguments = ReduceCopy::new(&[address], &[address, address], COUNT);
    let shape = LaunchDims { blocks: 1, threads: 32, cooperative: false };
    // SAFETY: the memory has so many elements, and is used by the stream, as said below.
    unsafe { kernel.launch(stream, shape, &arguments) }.unwrap();
    memory.record_stream(stream);
}

/// Words of a handle, from which byte on.
const OFFSET: usize = 80;
const BYTES: usize = 88;

/// Memory beyond the allocation is not opened, whatever the handle says.
fn refuses(gpu: &Gpu, mut handle: [u8; IpcHandle::BYTES], word: usize, lie: u64) {
    handle[word..word + 8].copy_from_slice(&lie.to_le_bytes());
    let refused = gpu.import(&IpcHandle::from_bytes(&handle)).err();
    assert!(matches!(refused, Some(GpuError::LengthMismatch { .. })), "{lie} at {word}: {refused:?}");
}

/// Doubles what it is told of, and says when that is done.
fn second() {
    let gpu = crate::gpu().expect("the first process has it");
    let mut handle = [0; IpcHandle::BYTES];
    std::io::stdin().read_exact(&mut handle).unwrap();
    for (word, lie) in [(OFFSET, 4 * COUNT as u64), (OFFSET, u64::MAX), (BYTES, 1 << 40), (BYTES, u64::MAX)] {
        refuses(&gpu, handle, word, lie);
    }
    let memory = gpu.import(&IpcHandle::from_bytes(&handle)).unwrap();
    assert_eq!(memory.bytes(), 4 * COUNT);
    let stream = gpu.stream().unwrap();
    double(&gpu, &stream, &memory);
    // Closed when that is done.
    drop(memory);
    println!("\ndone");
}

#[test]
fn another_process_opens_memory() {
    if std::env::var_os(SECOND).is_some() {
        return second();
    }
    let Some(gpu) = crate::gpu() else { return };
    let buffer = gpu.upload(&[21u32; COUNT]).unwrap();
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["ipc::another_process_opens_memory", "--exact", "--nocapture"]).env(SECOND, "1");
    let mut process = process.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    process.stdin.take().unwrap().write_all(&buffer.export().unwrap().to_bytes()).unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "done"), "the second process ended early");
    assert!(process.wait().unwrap().success());
    assert_eq!(buffer.to_vec(&gpu.stream().unwrap()).unwrap(), [42; COUNT]);
}

/// Doubles what both handles name.
fn second_of_two() {
    let gpu = crate::gpu().expect("the first process has it");
    let mut handles = [[0; IpcHandle::BYTES]; 2];
    handles.iter_mut().for_each(|handle| std::io::stdin().read_exact(handle).unwrap());
    let opened = handles.map(|handle| gpu.import(&IpcHandle::from_bytes(&handle)).unwrap());
    let stream = gpu.stream().unwrap();
    opened.iter().for_each(|memory| double(&gpu, &stream, memory));
    drop(opened);
    println!("\ndone");
}

/// Opens memory whose buffer is dropped already, and checks its elements.
fn reader() {
    let gpu = crate::gpu().expect("the owner has it");
    let mut handle = [0; IpcHandle::BYTES];
    std::io::stdin().read_exact(&mut handle).unwrap();
    let memory = gpu.import(&IpcHandle::from_bytes(&handle)).unwrap();
    let (stream, sum) = (gpu.stream().unwrap(), gpu.upload(&[0u32; COUNT]).unwrap());
    let kernel = gpu.kernel(&ReduceCopy::kernel(DType::U32, ReduceKind::Sum)).unwrap();
    let arguments = ReduceCopy::new(&[sum.address() as *mut u8], &[memory.address() as *const u8], COUNT);
    let shape = LaunchDims { blocks: 1, threads: 32, cooperative: false };
    // SAFETY: both have so many elements, and are used by the stream, as said below.
    unsafe { kernel.launch(&stream, shape, &arguments) }.unwrap();
    memory.record_stream(&stream);
    assert_eq!(sum.to_vec(&stream).unwrap(), [21; COUNT], "the owner has freed it");
}

/// Drops an exported buffer, frees all that may be freed, and lets another process read it.
fn owner() {
    let Some(gpu) = crate::gpu() else { return };
    let buffer = gpu.upload(&[21u32; COUNT]).unwrap();
    let handle = buffer.export().unwrap();
    let address = buffer.address();
    drop(buffer);
    gpu.release_unused().unwrap();
    assert_ne!(gpu.alloc::<u32>(COUNT).unwrap().address(), address, "it is reused");
    let mut process = itself("ipc::exported_memory_is_kept_until_withdrawn", "reader");
    let mut process = process.stdin(Stdio::piped()).spawn().unwrap();
    process.stdin.take().unwrap().write_all(&handle.to_bytes()).unwrap();
    assert!(process.wait().unwrap().success());
    let buffer = gpu.alloc::<u32>(3 * COUNT).unwrap();
    buffer.export().unwrap();
    buffer.withdraw();
    let address = buffer.address();
    drop(buffer);
    assert_eq!(gpu.alloc::<u32>(3 * COUNT).unwrap().address(), address, "no other process has it open");
}

/// Returns a process that runs one test of this program in a role.
fn itself(test: &str, role: &str) -> Command {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args([test, "--exact", "--nocapture"]).env(SECOND, role);
    process
}

/// The owner is a process of its own, because other tests expect memory of theirs not to be freed.
#[test]
fn exported_memory_is_kept_until_withdrawn() {
    match std::env::var(SECOND).as_deref() {
        Ok("reader") => reader(),
        Ok(_) => owner(),
        Err(_) => assert!(
            itself("ipc::exported_memory_is_kept_until_withdrawn", "owner").status().unwrap().success()
        ),
    }
}

/// Two small allocations can be in one unit that the driver shares. A handle of either then opens
/// the unit, so that both would lead to the first of them.
#[test]
fn another_process_opens_two_small_buffers() {
    if std::env::var_os(SECOND).is_some() {
        return second_of_two();
    }
    let Some(gpu) = crate::gpu() else { return };
    let stream = gpu.stream().unwrap();
    let mut buffers = [0, 1].map(|_| gpu.alloc_exportable::<u32>(COUNT).unwrap());
    for (value, buffer) in buffers.iter_mut().enumerate() {
        assert_eq!(buffer.to_vec(&stream).unwrap(), [0; COUNT]);
        buffer.write(&stream, &[21 + value as u32; COUNT]).unwrap();
    }
    stream.synchronize().unwrap();
    let apart = buffers[0].address().abs_diff(buffers[1].address());
    assert!(apart >= EXPORT_UNIT_BYTES as u64, "{apart} bytes");
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["ipc::another_process_opens_two_small_buffers", "--exact", "--nocapture"]);
    process.env(SECOND, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = process.spawn().unwrap();
    let handles = buffers.each_ref().map(|buffer| buffer.export().unwrap().to_bytes());
    process.stdin.take().unwrap().write_all(handles.as_flattened()).unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "done"), "the second process ended early");
    assert!(process.wait().unwrap().success());
    for (value, buffer) in buffers.iter().enumerate() {
        assert_eq!(buffer.to_vec(&stream).unwrap(), [2 * (21 + value as u32); COUNT]);
    }
}

#[test]
fn the_own_process_has_the_same_pointer() {
    let Some(gpu) = crate::gpu() else { return };
    let stream = gpu.stream().unwrap();
    let buffer = gpu.upload(&[5u32; COUNT]).unwrap();
    let handle = buffer.export().unwrap();
    // The block of a buffer may be a quarter longer than asked for.
    refuses(&gpu, handle.to_bytes(), BYTES, 8 * COUNT as u64);
    let memory = gpu.import(&handle).unwrap();
    let address = buffer.address();
    assert_eq!((memory.address(), memory.bytes()), (address, 4 * COUNT));
    drop(buffer);
    // Still there, as it is open.
    double(&gpu, &stream, &memory);
    stream.synchronize().unwrap();
    drop(memory);
    assert_eq!(gpu.import(&handle).err(), Some(GpuError::ExportFreed));
    let bytes = gpu.alloc::<u8>(4 * COUNT + 1).unwrap();
    let (address, _) = (bytes.address(), bytes.export().unwrap());
    drop(bytes);
    assert_ne!(
        gpu.alloc::<u8>(4 * COUNT + 1).unwrap().address(),
        address,
        "another process may have it open"
    );
}

#[test]
fn ipc_invalid_handle_is_refused() {
    let Some(gpu) = crate::gpu() else { return };
    let refused = gpu.import(&IpcHandle::from_bytes(&[1; IpcHandle::BYTES])).err();
    assert!(matches!(refused, Some(GpuError::Driver { call: "cuIpcOpenMemHandle", .. })), "{refused:?}");
}
