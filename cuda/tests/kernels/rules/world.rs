//! A process of its own for each test and each setting of a rule, and a kernel that runs until a
//! test ends it.

use crate::emulator::{Build, Device};
use crate::libcuda::*;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Path of the library that a process of a test loads.
const LIBRARY: &str = "RULE_TEST_LIBRARY";
/// Not empty if the rule of the test is kept.
const KEPT: &str = "RULE_TEST_KEPT";

/// Runs `body` in a process with these variables.
pub(crate) fn with(test: &str, variables: &[(&str, &str)], body: impl FnOnce(&Device)) {
    if let Some(library) = std::env::var_os(LIBRARY) {
        // A call that waits for ever is an error, and does not stop the other tests.
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(60));
            eprintln!("nothing has happened for a minute");
            std::process::exit(1);
        });
        let device = Device::open(Path::new(&library));
        assert_eq!(call!(device, cuInit(0 => u32)), 0);
        return body(&device);
    }
    static BUILT: OnceLock<Option<std::path::PathBuf>> = OnceLock::new();
    let sources = &["tests/kernels/rules/rules.cu"];
    let build = || Build { name: "rules.so", sources, library: true, races: false }.run();
    let Some(library) = BUILT.get_or_init(build) else { return };
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args([&format!("rules::{test}"), "--exact", "--nocapture"]).env(LIBRARY, library);
    let output = process.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    // A wrong name would run no test and succeed.
    assert!(output.status.success() && text.contains("1 passed"), "{test} {variables:?}: {text} {errors}");
}

/// Runs `body` with all rules off but this one, and without it. The second argument says which.
pub(crate) fn each_way(
    test: &str,
    rule: &str,
    variables: &[(&str, &str)],
    body: impl Fn(&Device, bool) + Copy,
) {
    for kept in [true, false] {
        let rules = if kept { format!("none,{rule}") } else { "none".to_owned() };
        let mut settings =
            vec![("CUDA_EMULATOR_RULES", rules.as_str()), (KEPT, if kept { "yes" } else { "" })];
        settings.extend(variables);
        with(test, &settings, |device| body(device, std::env::var(KEPT) == Ok("yes".to_owned())));
        if std::env::var_os(LIBRARY).is_some() {
            return;
        }
    }
}

/// Memory that kernels and the host share.
pub(crate) fn words(device: &Device, count: usize) -> &'static [AtomicU32] {
    let mut memory = null_mut();
    let call = call!(device, cuMemHostAlloc(&mut memory => *mut Handle, 4 * count => usize, 0 => u32));
    assert_eq!(call, 0);
    // SAFETY: the memory has so many words, is aligned, and lives as long as the process.
    let words = unsafe { std::slice::from_raw_parts(memory.cast::<AtomicU32>().cast_const(), count) };
    words.iter().for_each(|word| word.store(0, Ordering::SeqCst));
    words
}

/// A kernel with its code on the GPU, so that launches of it load nothing.
pub(crate) fn kernel(device: &Device, name: &str) -> Handle {
    let module = module(device, &format!(".visible .entry {name}(\n")).unwrap();
    let kernel = function(device, module, name).unwrap();
    assert_eq!(call!(device, cuFuncLoad(kernel => Handle)), 0);
    kernel
}

/// Arguments of the kernel `note`.
#[repr(C)]
pub(crate) struct Note {
    pub(crate) from: *const AtomicU32,
    pub(crate) to: *const AtomicU32,
    pub(crate) add: u32,
    pub(crate) unused: u32,
}

/// A kernel that runs until it is told to end.
pub(crate) struct Spin<'d> {
    device: &'d Device,
    kernel: Handle,
    pub(crate) stream: Handle,
    words: &'static [AtomicU32],
}

// SAFETY: the driver's functions may be called by any thread.
unsafe impl Sync for Spin<'_> {}

impl<'d> Spin<'d> {
    /// A kernel that was not launched yet.
    pub(crate) fn new(device: &'d Device) -> Self {
        let (kernel, stream) = (kernel(device, "spin"), stream(device));
        Self { device, kernel, stream, words: words(device, 3) }
    }

    pub(crate) fn launch(&self, stream: Handle) -> c_int {
        let word = |index: usize| (&raw const self.words[index]).cast::<c_void>();
        launch(self.device, self.kernel, &[word(0), word(1), word(2), word(2)], stream)
    }

    /// Launches it, and waits until it runs.
    pub(crate) fn start(device: &'d Device) -> Self {
        let spin = Self::new(device);
        assert_eq!(spin.launch(spin.stream), 0);
        while spin.words[0].load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        spin
    }

    /// 0 until it has ended.
    pub(crate) fn ended(&self) -> &'static AtomicU32 {
        &self.words[2]
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended().load(Ordering::SeqCst) != 0
    }

    pub(crate) fn end(&self) {
        self.words[1].store(1, Ordering::SeqCst);
    }

    /// Asserts that a call of another thread returns after the kernel has ended, or, if `waits` is
    /// false, before.
    pub(crate) fn expect(&self, waits: bool, call: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let called = scope.spawn(|| {
                call();
                self.has_ended()
            });
            if waits {
                // A call that does not wait has time to return too early.
                std::thread::sleep(Duration::from_millis(30));
                self.end();
            }
            assert_eq!(called.join().unwrap(), waits, "the kernel has ended when the call returns");
            self.end();
        });
        assert_eq!(synchronize(self.device, self.stream), 0);
    }
}
