//! NVRTC, NVIDIA's compiler as a library: found at run time, or not.

use super::error::GpuError;
use crate::device::user_op::UserOpSource;
use libloading::os::unix::{Library, RTLD_NOW};
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// File names of the library, newest first.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// Products are rounded before they are added, as on the host and in the compiled PTX.
const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

type Program = *mut c_void;
type Texts = *const *const c_char;
type Create = unsafe extern "C" fn(*mut Program, *const c_char, *const c_char, c_int, Texts, Texts) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, Texts) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;

/// Machine code of a kernel file for GPUs of this capability.
pub(crate) fn compile(
    source: &UserOpSource<'_>,
    file: &str,
    (major, minor): (u32, u32),
) -> Result<Vec<u8>, GpuError> {
    let library = library()?;
    let user_header = source.header();
    let mut headers = vec![("user_op.cuh", user_header.as_str())];
    for header in unisono_kernels::headers() {
        headers.push(header);
    }
    let text = unisono_kernels::source(file).unwrap_or_default();
    let mut compilation = Compilation::new(library, text, &headers)?;
    let defines = source.defines().map(|define| format!("--define-macro={define}"));
    let architecture = format!("--gpu-architecture=sm_{major}{minor}");
    let options: Vec<String> =
        OPTIONS.into_iter().map(str::to_owned).chain([architecture]).chain(defines).collect();
    compilation.run(&options)
}

fn library() -> Result<&'static Library, GpuError> {
    static LIBRARY: OnceLock<Result<Library, GpuError>> = OnceLock::new();
    let open = || {
        let mut reason = String::new();
        for name in NAMES {
            // SAFETY: the initializers of NVRTC have no preconditions. Another library of its name
            // must be trusted as the system's loader trusts it.
            match unsafe { Library::open(Some(name), RTLD_NOW) } {
                Ok(library) => return Ok(library),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(GpuError::NoCompiler { what: "NVRTC", reason })
    };
    LIBRARY.get_or_init(open).as_ref().map_err(Clone::clone)
}

/// A program of NVRTC.
struct Compilation {
    library: &'static Library,
    program: Program,
}

impl Compilation {
    fn new(library: &'static Library, text: &str, headers: &[(&str, &str)]) -> Result<Self, GpuError> {
        let text = c_string(text);
        let names: Vec<CString> = headers.iter().map(|(name, _)| c_string(name)).collect();
        let texts: Vec<CString> = headers.iter().map(|(_, text)| c_string(text)).collect();
        let (names, texts) = (pointers(&names), pointers(&texts));
        let mut program = null_mut();
        // SAFETY: the type is that of NVRTC's header. All strings live until the call returns, and
        // NVRTC copies them.
        let failed = unsafe {
            let create = function::<Create>(library, b"nvrtcCreateProgram")?;
            create(
                &mut program,
                text.as_ptr(),
                c"own.cu".as_ptr(),
                headers.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        if failed == 0 { Ok(Self { library, program }) } else { Err(broken("nvrtcCreateProgram", failed)) }
    }

    fn run(&mut self, options: &[String]) -> Result<Vec<u8>, GpuError> {
        let options: Vec<CString> = options.iter().map(|option| c_string(option)).collect();
        let array = pointers(&options);
        // SAFETY: the type is that of NVRTC's header; the options live until the call returns.
        let failed = unsafe {
            let compile = function::<Compile>(self.library, b"nvrtcCompileProgram")?;
            compile(self.program, array.len() as c_int, array.as_ptr())
        };
        if failed != 0 {
            let said = self.output(b"nvrtcGetProgramLogSize", b"nvrtcGetProgramLog")?;
            let said = String::from_utf8_lossy(&said).trim_end_matches('\0').to_owned();
            return Err(GpuError::CompileFailed { said });
        }
        self.output(b"nvrtcGetCUBINSize", b"nvrtcGetCUBIN")
    }

    fn output(&self, size: &[u8], get: &[u8]) -> Result<Vec<u8>, GpuError> {
        let mut bytes = 0;
        // SAFETY: the type is that of NVRTC's header.
        let failed = unsafe { function::<Size>(self.library, size)?(self.program, &mut bytes) };
        if failed != 0 {
            return Err(broken("nvrtcGet…Size", failed));
        }
        let mut output = vec![0u8; bytes];
        // SAFETY: as above; there is room for as many bytes as it said.
        let failed = unsafe { function::<Get>(self.library, get)?(self.program, output.as_mut_ptr().cast()) };
        if failed == 0 { Ok(output) } else { Err(broken("nvrtcGet…", failed)) }
    }
}

impl Drop for Compilation {
    fn drop(&mut self) {
        // SAFETY: the type is that of NVRTC's header, and this is the only handle of the program.
        let _ = unsafe {
            function::<Destroy>(self.library, b"nvrtcDestroyProgram")
                .map(|destroy| destroy(&mut self.program))
        };
    }
}

/// A function of the library.
///
/// # Safety
/// It has this type.
unsafe fn function<F: Copy>(library: &'static Library, name: &[u8]) -> Result<F, GpuError> {
    // SAFETY: the caller's word.
    let found = unsafe { library.get::<F>(name) };
    let absent = |error: libloading::Error| GpuError::NoCompiler { what: "NVRTC", reason: error.to_string() };
    Ok(*found.map_err(absent)?)
}

fn broken(call: &'static str, status: c_int) -> GpuError {
    GpuError::Cublas { call, status }
}

fn c_string(text: &str) -> CString {
    // A zero ends the text.
    CString::new(text.split('\0').next().unwrap_or("")).unwrap_or_default()
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono_reducers::DType;

    /// Machine code where NVRTC is installed, an error that says so elsewhere.
    #[test]
    fn expressions_become_machine_code_or_say_what_is_missing() {
        let source = |expression| UserOpSource { dtype: DType::F32, digest: 7, expression };
        for file in UserOpSource::FILES {
            match compile(&source("a > b ? a : b"), file, (8, 0)) {
                Ok(code) => assert_eq!(code[..4], *b"\x7fELF"),
                Err(error) => {
                    assert!(matches!(error, GpuError::NoCompiler { what: "NVRTC", .. }), "{error}");
                    eprintln!("SKIPPED: {error}");
                    return;
                }
            }
        }
        let refused = compile(&source("a +"), "one_shot.cu", (8, 0)).unwrap_err();
        assert!(matches!(&refused, GpuError::CompileFailed { said } if said.contains("error")), "{refused}");
    }
}
