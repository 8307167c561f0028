//! The PTX modules, unpacked on first use.

use ruzstd::decoding::StreamingDecoder;
use std::io::Read;
use std::sync::OnceLock;

/// All modules, as `compile` packs them: for each a line `name size`, and then its text.
static PACKED: &[u8] = include_bytes!("../ptx.zst");

/// The folder that modules with LL128 lines have in their packed names.
const LL128_FOLDER: &str = "ll128/";

/// A PTX module: some kernels of one source, often for one element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module {
    /// Name of the module, such as `reduce_copy_half`.
    pub name: &'static str,
    /// True if its kernels use LL128 lines: 16-byte accesses that need PTX 8.4.
    pub ll128: bool,
    /// Text of the module.
    pub text: &'static str,
}

/// Returns all modules in order of their names, those with LL128 lines last.
///
/// Every LL128 module has a counterpart of the same name without LL128 lines, and both have the
/// same kernels. The first call unpacks the modules, which takes some tens of milliseconds.
///
/// ```
/// let modules = unisono_kernels::modules();
/// assert!(modules.iter().any(|module| module.name == "exchange" && !module.ll128));
/// ```
pub fn modules() -> &'static [Module] {
    static MODULES: OnceLock<Vec<Module>> = OnceLock::new();
    MODULES.get_or_init(|| split(String::leak(unpack())))
}

/// Returns the module of this name without LL128 lines.
pub fn module(name: &str) -> Option<&'static Module> {
    modules().iter().find(|module| module.name == name && !module.ll128)
}

/// Returns the names of the kernels in a module's text, in order.
///
/// ```
/// let exchange = unisono_kernels::module("exchange").unwrap();
/// assert!(unisono_kernels::kernel_names(exchange.text).eq(["exchange"]));
/// ```
pub fn kernel_names(text: &str) -> impl Iterator<Item = &str> {
    text.split(".visible .entry ").skip(1).map(|body| &body[..body.find('(').unwrap_or(0)])
}

fn unpack() -> String {
    let mut text = String::new();
    let mut decoder = StreamingDecoder::new(PACKED).expect("ptx.zst is a zstd frame");
    decoder.read_to_string(&mut text).expect("ptx.zst is one whole frame of text");
    text
}

fn split(mut packed: &'static str) -> Vec<Module> {
    let mut modules = Vec::new();
    while let Some((head, remainder)) = packed.split_once('\n') {
        let (path, size) = head.split_once(' ').expect("a line with name and size");
        let (text, others) = remainder.split_at(size.parse().expect("a size in bytes"));
        let name = path.strip_prefix(LL128_FOLDER).unwrap_or(path);
        modules.push(Module { name, ll128: name.len() < path.len(), text });
        packed = others;
    }
    modules.sort_by_key(|module| (module.ll128, module.name));
    modules
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn modules_have_unique_names_and_one_text_each() {
        let names: HashSet<_> = modules().iter().map(|module| (module.name, module.ll128)).collect();
        assert_eq!(names.len(), modules().len());
        assert!(modules().iter().all(|module| module.text.contains(".visible .entry ")));
    }

    /// Modules are made for no newer and no older drivers than `unisono-cuda` requires.
    #[test]
    fn ptx_versions_match_required_drivers() {
        let field = |text: &str, key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)).expect("a line of PTX");
            line.trim().to_owned()
        };
        for Module { name, ll128, text } in modules() {
            let version = if *ll128 { "8.4" } else { "8.0" };
            let found = (field(text, ".version"), field(text, ".target"));
            assert_eq!(found, (version.into(), "sm_80".into()), "{name}");
            assert_eq!(text.contains(".b128"), *ll128, "{name}");
        }
    }

    #[test]
    fn ll128_modules_have_the_kernels_of_their_counterparts() {
        let wide: Vec<_> = modules().iter().filter(|module| module.ll128).collect();
        assert!(!wide.is_empty());
        for with_ll128 in wide {
            let counterpart = module(with_ll128.name).expect("a counterpart without LL128 lines");
            assert!(kernel_names(with_ll128.text).eq(kernel_names(counterpart.text)), "{}", counterpart.name);
            assert_ne!(with_ll128.text, counterpart.text);
        }
    }

    #[test]
    fn every_kernel_is_visible_and_in_one_module() {
        let modules: Vec<_> = modules().iter().filter(|module| !module.ll128).collect();
        let entries: usize = modules.iter().map(|module| module.text.matches(".entry").count()).sum();
        let names: HashSet<&str> = modules.iter().flat_map(|module| kernel_names(module.text)).collect();
        assert_eq!(names.len(), entries, "a kernel is in two modules, or hidden");
        assert!(names.contains("exchange") && names.contains("reduce_copy_half_avg"));
    }
}
