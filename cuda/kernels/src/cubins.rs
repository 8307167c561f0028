//! The machine code of the modules, unpacked for the architecture that is needed.

use ruzstd::decoding::StreamingDecoder;
use std::io::Read;
use std::sync::OnceLock;

/// All images of an architecture, as `compile` packs them: for each a line with name, size and
/// kernels, which ends before a multiple of 16 bytes, and then the image.
struct Packed {
    /// Compute capability: major, and the least minor.
    capability: (u32, u32),
    data: &'static [u8],
    unpacked: OnceLock<Vec<Cubin>>,
}

static PACKED: [Packed; 3] = [
    Packed::new((8, 0), include_bytes!("../cubin_sm_80.zst")),
    Packed::new((9, 0), include_bytes!("../cubin_sm_90.zst")),
    Packed::new((10, 0), include_bytes!("../cubin_sm_100.zst")),
];

/// The machine code of a module for one architecture: an ELF image.
///
/// Modules that have LL128 lines in PTX of newer drivers have them in all machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cubin {
    /// Name of the module, such as `reduce_copy_half`.
    pub name: &'static str,
    /// The image.
    pub image: &'static [u8],
    kernels: &'static str,
}

impl Cubin {
    /// Returns the names of the kernels, in the order of the module's PTX.
    pub fn kernel_names(&self) -> impl Iterator<Item = &'static str> {
        self.kernels.split_ascii_whitespace()
    }
}

/// Returns the machine code of all modules for GPUs of this compute capability, in order of the
/// modules' names, or `None` where only PTX serves.
///
/// Drivers of CUDA 12.0 and newer load it. The first call for an architecture unpacks its images,
/// which takes some tens of milliseconds.
///
/// ```
/// let cubins = unisono_kernels::cubins((8, 6)).unwrap();
/// let exchange = cubins.iter().find(|cubin| cubin.name == "exchange").unwrap();
/// assert!(exchange.image.starts_with(b"\x7fELF"));
/// ```
pub fn cubins(capability: (u32, u32)) -> Option<&'static [Cubin]> {
    let packed = PACKED.iter().find(|packed| packed.serves(capability))?;
    Some(packed.unpacked.get_or_init(|| split(Vec::leak(unpack(packed.data)))))
}

impl Packed {
    const fn new(capability: (u32, u32), data: &'static [u8]) -> Self {
        Self { capability, data, unpacked: OnceLock::new() }
    }

    /// Machine code runs on the GPUs of its major capability from its minor one on.
    fn serves(&self, (major, minor): (u32, u32)) -> bool {
        self.capability.0 == major && self.capability.1 <= minor
    }
}

fn unpack(data: &[u8]) -> Vec<u8> {
    let mut images = Vec::new();
    let mut decoder = StreamingDecoder::new(data).expect("the images are a zstd frame");
    decoder.read_to_end(&mut images).expect("the images are one whole frame");
    images
}

fn split(mut packed: &'static [u8]) -> Vec<Cubin> {
    let mut cubins = Vec::new();
    while let Some(end) = packed.iter().position(|byte| *byte == b'\n') {
        let head = str::from_utf8(&packed[..end]).expect("a line of text");
        let mut words = head.splitn(3, ' ');
        let mut word = || words.next().expect("a line with name, size and kernels");
        let (name, size, kernels) = (word(), word(), word());
        let (image, others) = packed[end + 1..].split_at(size.parse().expect("a size in bytes"));
        cubins.push(Cubin { name, image, kernels });
        packed = others;
    }
    cubins
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Module, kernel_names, modules};

    fn architectures() -> impl Iterator<Item = (u32, &'static [Cubin])> {
        [(8, 0), (9, 0), (10, 0)].into_iter().map(|(major, minor)| {
            (major * 10 + minor, cubins((major, minor)).expect("machine code of the architecture"))
        })
    }

    #[test]
    fn cubins_serve_their_major_capability_from_their_minor() {
        let served = |capability| cubins(capability).map(<[Cubin]>::as_ptr);
        assert!(served((8, 0)).is_some());
        assert_eq!(served((8, 9)), served((8, 0)));
        assert_eq!(served((10, 3)), served((10, 0)));
        assert_ne!(served((9, 0)), served((8, 0)));
        for capability in [(7, 5), (11, 0), (12, 0)] {
            assert_eq!(served(capability), None, "{capability:?}");
        }
    }

    #[test]
    fn cubins_have_the_kernels_of_the_ptx() {
        let texts: Vec<&Module> = modules().iter().filter(|module| !module.ll128).collect();
        for (architecture, cubins) in architectures() {
            assert_eq!(cubins.len(), texts.len(), "sm_{architecture}");
            for (cubin, module) in cubins.iter().zip(&texts) {
                assert_eq!(cubin.name, module.name, "sm_{architecture}");
                assert!(cubin.kernel_names().eq(kernel_names(module.text)), "{}", module.name);
            }
        }
    }

    /// A byte of an image's ELF flags is its architecture: the lowest, or the next one from version
    /// 8 of the ABI on, which sm_100 has.
    #[test]
    fn images_are_aligned_and_of_their_architecture() {
        const ABI_VERSION: usize = 8;
        const FLAGS: usize = 0x30;
        for (architecture, cubins) in architectures() {
            let start = cubins[0].image.as_ptr().addr();
            for Cubin { name, image, .. } in cubins {
                assert!(image.starts_with(b"\x7fELF"), "{name}");
                let found = image[FLAGS + usize::from(image[ABI_VERSION] >= 8)];
                assert_eq!(u32::from(found), architecture, "{name}");
                assert_eq!((image.as_ptr().addr() - start) % 16, 0, "{name}");
            }
        }
    }

    #[test]
    fn every_kernel_has_a_budget() {
        let rows: Vec<_> = include_str!("../budget.tsv").lines().skip(1).collect();
        let mut kernels: Vec<_> = cubins((9, 0)).unwrap().iter().flat_map(Cubin::kernel_names).collect();
        kernels.sort_unstable();
        let budgeted: Vec<_> = rows.iter().map(|row| row.split('\t').next().unwrap()).collect();
        assert_eq!(budgeted, kernels);
    }
}
