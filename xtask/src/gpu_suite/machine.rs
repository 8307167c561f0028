//! Rows about the machine: processors, memory, the driver's library, and NVIDIA's programs.

use super::tests::print;
use crate::Result;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// Prints the rows. A program that is missing gives a row without a value, and its long output goes
/// to the log.
pub(crate) fn run() -> Result {
    let row = |what: &str, value: Value| print(&json!({"machine": what, "value": value}));
    row("processor", processor().into())?;
    row("cores", std::thread::available_parallelism().map_or(0, |cores| cores.get()).into())?;
    row("memory", line_of("/proc/meminfo", "MemTotal").into())?;
    row("kernel", first_line(Command::new("uname").arg("-r")).into())?;
    row("NUMA nodes", names("/sys/devices/system/node", "node").into())?;
    row(
        "L3 of core 0",
        std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").ok().into(),
    )?;
    row("search path", std::env::var("LD_LIBRARY_PATH").ok().into())?;
    row("libcuda of the system", libcuda().into())?;
    for program in ["nvidia-smi", "nvidia-cuda-mps-control", "compute-sanitizer", "ncu", "nsys", "ptxas"] {
        row(program, crate::cargo::is_installed(program).into())?;
    }
    let fields = "name,driver_version,pci.bus_id,memory.total,clocks.sm,clocks.max.sm,clocks.mem,power.limit,\
                  temperature.gpu,compute_mode,mig.mode.current,pcie.link.gen.current,pcie.link.width.current";
    row(
        "GPU",
        first_line(
            Command::new("nvidia-smi").args([&format!("--query-gpu={fields}"), "--format=csv,noheader"]),
        )
        .into(),
    )?;
    for arguments in [&["topo", "-m"][..], &["-q", "-d", "CLOCK,PERFORMANCE,ECC"]] {
        if let Ok(output) = Command::new("nvidia-smi").args(arguments).output() {
            eprint!("{}", String::from_utf8_lossy(&output.stdout));
        }
    }
    Ok(())
}

fn processor() -> Option<String> {
    line_of("/proc/cpuinfo", "model name")
}

/// Returns the value of the first line of a file that begins with `name`.
fn line_of(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned)
}

fn names(folder: &str, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let number =
        |name: &String| name.strip_prefix(prefix).is_some_and(|suffix| suffix.parse::<u32>().is_ok());
    let mut found: Vec<String> = names.filter(number).collect();
    found.sort();
    found
}

/// Returns the driver's library that the loader's cache names.
fn libcuda() -> Option<String> {
    let loader =
        ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(|path| Path::new(path).is_file())?;
    let output = Command::new(loader).arg("-p").output().ok()?;
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = listed.lines().find(|line| line.contains("libcuda.so.1"))?;
    Some(line.rsplit("=> ").next()?.to_owned())
}
