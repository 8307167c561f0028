//! Description of this machine.

use std::fs::read_to_string;
use std::process::Command;

/// Properties of the machine that explain the figures.
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    /// Caches of one core, by level.
    pub(crate) caches: Vec<String>,
    pub(crate) memory_gib: f64,
    pub(crate) kernel: String,
    /// Date in UTC: 2026-01-31.
    pub(crate) date: String,
}

impl Machine {
    /// This one; what cannot be found out is called unknown.
    pub(crate) fn here() -> Self {
        let read = |path: &str| read_to_string(path).unwrap_or_default();
        let date = Command::new("date").args(["-u", "+%F"]).output();
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or("unknown CPU").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            caches: caches(),
            memory_gib: field(&read("/proc/meminfo"), "MemTotal").and_then(kibibytes).unwrap_or(0.0)
                / f64::from(1 << 20),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            date: date.map_or_else(
                |_| "undated".to_owned(),
                |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            ),
        }
    }

    /// Name for a folder: date and CPU.
    pub(crate) fn slug(&self) -> String {
        format!("{}-{}", self.date, slug(&self.cpu))
    }
}

/// The value of `name: value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.into_iter().find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

fn kibibytes(text: &str) -> Option<f64> {
    text.strip_suffix("kB")?.trim().parse().ok()
}

fn caches() -> Vec<String> {
    let cache = |index: usize| {
        let about = |name| {
            let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}");
            read_to_string(path).map(|text| text.trim().to_owned()).ok()
        };
        let letter = match about("type")?.as_str() {
            "Data" => "d",
            "Instruction" => "i",
            _ => "",
        };
        Some(format!("L{}{letter} {}", about("level")?, about("size")?))
    };
    (0..8).map_while(cache).collect()
}

/// Lower case, digits and single hyphens.
fn slug(text: &str) -> String {
    let keep = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { ' ' };
    let words: String = text.replace("(R)", "").replace("(TM)", "").chars().map(keep).collect();
    words.split_whitespace().collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_are_plain() {
        assert_eq!(slug("AMD EPYC"), "amd-epyc");
        assert_eq!(slug("Intel(R) Xeon(R) CPU @ 2.20GHz"), "intel-xeon-cpu-2-20ghz");
    }

    #[test]
    fn fields_of_proc() {
        let text = "processor\t: 0\nmodel name\t: AMD EPYC\nMemTotal:       24690000 kB\n";
        assert_eq!(field(text, "model name"), Some("AMD EPYC"));
        assert_eq!(field(text, "MemTotal").and_then(kibibytes), Some(24_690_000.0));
        assert_eq!(field(text, "absent"), None);
    }
}
