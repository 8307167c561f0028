//! Buffers: written data is read back, and memory lasts as long as it is used.

use crate::busy::Busy;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use unisono_cuda::device::compute::{Indices, LocalTargets};
use unisono_cuda::device::{Buffer, CopyStats, Gpu, GpuError, LaunchDims, ReduceCopy, gpus};
use unisono_cuda::emulator;
use unisono_reducers::{DType, ReduceKind};

#[test]
fn buffer_written_data_is_read_back() {
    let Some(gpu) = crate::gpu() else { return };
    let stream = gpu.stream().unwrap();
    let mut buffer = gpu.alloc::<f32>(1000).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [0.0; 1000]);
    let elements: Vec<f32> = (0..1000).map(|index| index as f32).collect();
    buffer.write(&stream, &elements).unwrap();
    assert_eq!(buffer.view(10..20).to_vec(&stream).unwrap(), elements[10..20]);
    buffer.view_mut(..).split_at_mut(500).1.view_mut(..2).write(&stream, &[-1.0, -2.0]).unwrap();
    assert_eq!(buffer.view(499..503).to_vec(&stream).unwrap(), [499.0, -1.0, -2.0, 502.0]);
    let mut part = [0.0; 3];
    buffer.view(..).view(600..).view(1..=3).read(&stream, &mut part).unwrap();
    assert_eq!(part, elements[601..604]);
    assert_eq!(gpu.upload(&elements).unwrap().to_vec(&stream).unwrap(), elements);
    let short = buffer.write(&stream, &elements[1..]).unwrap_err();
    assert_eq!(short, GpuError::LengthMismatch { found: 999, wanted: 1000 });
    assert!(gpu.alloc::<u8>(0).unwrap().to_vec(&stream).unwrap().is_empty());
}

#[test]
#[should_panic(expected = "5..11 of 10 elements")]
fn a_part_must_be_inside() {
    // Without a GPU, the message is that of the test itself.
    let Some(gpu) = crate::gpu() else { panic!("5..11 of 10 elements") };
    gpu.alloc::<u8>(10).unwrap().view(..).view(5..11);
}

#[test]
fn memory_outlives_work_that_uses_it() {
    let Some(gpu) = crate::gpu() else { return };
    const COUNT: usize = 12345;
    let stream = gpu.stream().unwrap();
    let busy = Busy::new(&gpu, &stream);
    let used = gpu.upload(&[7u8; COUNT]).unwrap();
    let (address, unused) = (used.address(), gpu.alloc::<u8>(COUNT).unwrap().address());
    used.record_stream(&stream);
    drop(used);
    // Nothing waits for the kernel: not even to be freed or allocated.
    let next = gpu.alloc::<u8>(COUNT).unwrap();
    assert_eq!(next.address(), unused, "memory that nothing used is there at once");
    let other = gpu.alloc::<u8>(COUNT).unwrap();
    assert_ne!(other.address(), address, "memory is given away while a stream uses it");
    busy.end(&stream);
    let again = gpu.alloc::<u8>(COUNT).unwrap();
    assert_eq!(again.address(), address, "memory is kept though its use is over");
    assert_eq!(again.to_vec(&stream).unwrap(), [0; COUNT], "memory shows what it held before");
}

/// A host that is far ahead of a busy GPU needs no more memory for that.
#[test]
fn stream_reuses_its_own_memory() {
    let Some(gpu) = crate::gpu() else { return };
    const COUNT: usize = 345_678;
    let [stream, other] = [0, 1].map(|_| gpu.stream().unwrap());
    let busy = Busy::new(&gpu, &stream);
    let filled = gpu.upload(&[7u8; COUNT]).unwrap();
    let mut address = None;
    for _ in 0..100 {
        let mut short_lived = stream.alloc::<u8>(COUNT).unwrap();
        assert_eq!(*address.get_or_insert(short_lived.address()), short_lived.address(), "memory piles up");
        stream.copy(&mut short_lived, &filled).unwrap();
    }
    let elsewhere = other.alloc::<u8>(COUNT).unwrap();
    assert_ne!(Some(elsewhere.address()), address, "another stream does not wait");
    drop((elsewhere, other));
    let zeros = stream.alloc::<u8>(COUNT - 9).unwrap();
    assert_eq!(Some(zeros.address()), address, "nearly as much");
    busy.end(&stream);
    assert_eq!(zeros.to_vec(&stream).unwrap(), [0; COUNT - 9]);
}

#[test]
fn dropped_stream_blocks_nobody() {
    let Some(gpu) = crate::gpu() else { return };
    const COUNT: usize = 23456;
    let stream = gpu.stream().unwrap();
    let busy = Busy::new(&gpu, &stream);
    let (used, done) = (gpu.alloc::<u8>(COUNT).unwrap(), stream.record().unwrap());
    let address = used.address();
    used.record_stream(&stream);
    drop((used, stream));
    let abort = busy.leave();
    assert!(!done.is_done().unwrap(), "dropping waited");
    assert_ne!(gpu.alloc::<u8>(COUNT).unwrap().address(), address);
    abort.words()[0].store(1, Ordering::Relaxed);
    done.synchronize().unwrap();
    let (mut others, start) = (Vec::new(), Instant::now());
    while others.last().is_none_or(|last: &Buffer<u8>| last.address() != address) {
        assert!(start.elapsed() < Duration::from_secs(60), "memory of a dropped stream is lost");
        std::thread::sleep(Duration::from_millis(1));
        others.push(gpu.alloc::<u8>(COUNT).unwrap());
    }
}

#[test]
fn out_of_bounds_stores_are_found_on_free() {
    // A GPU has no guards around its memory.
    if crate::gpu().is_none_or(|gpu| !gpu.is_emulated()) {
        return eprintln!("SKIPPED: needs the emulator");
    }
    // No other test uses this GPU.
    let gpu = Gpu::open(1).unwrap();
    let stream = gpu.stream().unwrap();
    let (target, source) = (gpu.alloc::<u8>(100).unwrap(), gpu.alloc::<u8>(101).unwrap());
    let kernel = gpu.kernel(&ReduceCopy::kernel(DType::U8, ReduceKind::Sum)).unwrap();
    let [target_address, source_address] = [target.address(), source.address()];
    let arguments = ReduceCopy::new(&[target_address as *mut u8], &[source_address as *const u8], 101);
    let shape = LaunchDims { blocks: 1, threads: 32, cooperative: false };
    // SAFETY: the launch writes out of bounds on purpose, and the emulator has a guard there.
    unsafe { kernel.launch(&stream, shape, &arguments) }.unwrap();
    stream.synchronize().unwrap();
    drop((target, source));
    let found = gpu.release_unused().unwrap_err();
    assert!(matches!(found, GpuError::Driver { call: "cuMemFree", .. }), "{found}");
    gpu.release_unused().unwrap();
}

/// Descriptors of this process that name memory of the emulator.
fn memory_files() -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("proc").flatten();
    let names = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    names.filter(|name| name.to_string_lossy().contains("unisono device memory")).count()
}

#[test]
fn allocations_of_the_emulator_share_a_descriptor() {
    let Some(gpu) = crate::gpu().filter(Gpu::is_emulated) else {
        return eprintln!("SKIPPED: needs the emulator");
    };
    // An ordinary user may have 1,024 descriptors.
    let buffers: Vec<_> = (0..2000u64).map(|index| gpu.upload(&[index; 3]).unwrap()).collect();
    let stream = gpu.stream().unwrap();
    for index in [0, 1000, 1999] {
        assert_eq!(buffers[index].to_vec(&stream).unwrap(), [index as u64; 3]);
    }
    assert_eq!(memory_files(), 1);
}

#[test]
fn missing_descriptors_are_named() {
    const ALONE: &str = "UNISONO_TEST_MISSING_DESCRIPTORS";
    if std::env::var_os(ALONE).is_none() {
        let program = std::env::current_exe().expect("this test");
        let arguments = ["memory::missing_descriptors_are_named", "--exact"];
        let alone = std::process::Command::new(program).args(arguments).env(ALONE, "1").output();
        let output = alone.expect("it starts");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
        return;
    }
    let Some(gpu) = crate::gpu().filter(Gpu::is_emulated) else {
        return eprintln!("SKIPPED: needs the emulator");
    };
    let is_open = |number: &usize| std::path::Path::new(&format!("/proc/self/fd/{number}")).exists();
    let next = (0..).find(|number| !is_open(number)).expect("a number");
    let pid = std::process::id().to_string();
    let limit = format!("--nofile={next}:{next}");
    let set = std::process::Command::new("prlimit").args(["--pid", &pid, &limit]).status().expect("prlimit");
    assert!(set.success());
    let refused = gpu.alloc::<u8>(1 << 20).err().expect("there is no descriptor").to_string();
    assert!(refused.contains("Too many open files") && refused.contains("ulimit -n"), "{refused}");
}

#[test]
fn too_much_is_refused() {
    let Some(gpu) = crate::gpu() else { return };
    for count in [usize::MAX, isize::MAX as usize, 1 << 50] {
        let refused = gpu.alloc::<u64>(count).err().expect("no machine has so much");
        assert!(matches!(refused, GpuError::OutOfMemory { .. }), "{refused}");
    }
    let (free, total) = gpu.memory().unwrap();
    assert!(0 < free && free <= total);
}

#[test]
fn pinned_memory_is_shared_with_kernels() {
    let Some(gpu) = crate::gpu() else { return };
    let mut bytes = gpu.pin::<u8>(100).unwrap();
    bytes.set(7, 9);
    assert_eq!((bytes.get(6), bytes.get(7), bytes.len()), (0, 9, 100));
    let mut copied = [1; 3];
    unisono_reducers::copy((&mut copied[..]).into(), bytes.source(6..9));
    assert_eq!(copied, [0, 9, 0]);
    let words = gpu.pin::<u64>(2).unwrap();
    words.words()[1].store(5, Ordering::Relaxed);
    assert_eq!((words.get(0), words.get(1)), (0, 5));
}

#[test]
fn memory_is_of_one_gpu() {
    let Some(gpu) = crate::gpu() else { return };
    let Some(other) = crate::other_gpu() else { return };
    let (buffer, stream) = (gpu.alloc::<u8>(8).unwrap(), other.stream().unwrap());
    let refused = GpuError::WrongGpu { what: "memory", owner: 0, user: 1 };
    assert_eq!(buffer.to_vec(&stream).unwrap_err(), refused);
    assert_eq!(refused.to_string(), "memory of GPU 0 on a stream of GPU 1");
    assert!(gpu.can_access_peer(&other).unwrap() && gpu.can_access_peer(&gpu).unwrap());
    gpu.enable_peer_access(&other).unwrap();
    gpu.enable_peer_access(&other).unwrap();
    gpu.enable_peer_access(&gpu).unwrap();
    assert!(Gpu::open(0).unwrap() == gpu && gpu != other, "opened twice it is the same");
    let gpus = gpus().unwrap();
    let absent = Gpu::open(gpus).unwrap_err();
    assert_eq!(absent.to_string(), format!("there is no GPU {gpus}, but {gpus}"));
}

#[test]
fn copies_to_and_from_the_host_are_counted_by_stream() {
    let Some(gpu) = crate::gpu() else { return };
    let elements = [7u32; 100];
    let [stream, other] = [0, 1].map(|_| gpu.stream().unwrap());
    let mut buffer = stream.upload(&elements).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), elements);
    buffer.view_mut(..10).write(&stream, &[1; 10]).unwrap();
    buffer.view(5..10).read(&stream, &mut [0; 5]).unwrap();
    gpu.upload(&elements).unwrap();
    assert_eq!(stream.copy_stats(), CopyStats { to_device: 440, from_device: 420 });
    assert_eq!(other.copy_stats(), CopyStats::default());
}

#[test]
fn pinned_uploads_do_not_wait_for_the_stream() {
    let Some(gpu) = crate::gpu() else { return };
    let stream = gpu.stream().unwrap();
    let busy = Busy::new(&gpu, &stream);
    // Nothing waits for the kernel that is busy, and the source may change.
    let mut elements = vec![7u32; 1000];
    let buffer = stream.upload_pinned(&elements).unwrap();
    elements.fill(0);
    let short = stream.upload_pinned::<u32>(&[]).unwrap();
    assert!(!stream.is_idle().unwrap() && short.is_empty());
    busy.end(&stream);
    assert_eq!(buffer.to_vec(&stream).unwrap(), [7; 1000]);
    assert_eq!(stream.copy_stats().to_device, 4000);
}

/// The emulator lets copies from memory that is not page-locked wait for running kernels, as real
/// drivers may. Nothing waits for the kernel that is busy, so all sources are page-locked.
#[test]
fn indices_and_targets_are_uploaded_from_page_locked_memory() {
    if !crate::is_alone("memory::indices_and_targets_are_uploaded_from_page_locked_memory") {
        return;
    }
    let Some(gpu) = crate::gpu().filter(Gpu::is_emulated) else {
        return eprintln!("SKIPPED: needs the emulator");
    };
    let [stream, other] = [0, 1].map(|_| gpu.stream().unwrap());
    let busy = Busy::new(&gpu, &stream);
    busy.begun(&other);
    assert!(emulator::set_rule("pageable-copy-waits", true).unwrap());
    let elements = stream.upload_pinned(&[7u32; 1000]).unwrap();
    let indices = Indices::new(&stream, &[1, 2, 3], 4, None).unwrap();
    let targets = LocalTargets::new(&stream, &[0, LocalTargets::IGNORED], 4, 3).unwrap();
    assert!(!stream.is_idle().unwrap(), "an upload waited for the kernel");
    busy.end(&stream);
    assert_eq!(elements.to_vec(&stream).unwrap(), [7; 1000]);
    assert_eq!((indices.len(), stream.copy_stats().to_device), (3, 4 * (1000 + 3 + 2)));
    drop(targets);
}
