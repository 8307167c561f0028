//! NVLinks, counted by NVIDIA's management library (NVML). It comes with the driver and is loaded
//! at run time. Without it, only the driver's performance rank of a path is known.

use super::driver::reason;
use super::error::GpuError;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CString, OsStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// NVLinks between two GPUs, those by way of a switch too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvLinks {
    /// Number of active links.
    pub count: u32,
    /// Major and minor version: 4.0 for an H100. It is 0.0 where there is no link, or a version
    /// that this library does not know.
    pub version: (u32, u32),
}

impl NvLinks {
    /// Gigabytes a second in each direction that all of them carry by their specification.
    pub fn gigabytes(&self) -> u32 {
        self.count
            * match self.version.0 {
                1 => 20,
                2..=4 => 25,
                _ => 50,
            }
    }
}

/// Returns the links between the GPUs at these PCI bus addresses.
pub(super) fn links(address: &str, other_address: &str) -> Result<NvLinks, GpuError> {
    static NVML: OnceLock<Result<Nvml, GpuError>> = OnceLock::new();
    let nvml = NVML.get_or_init(Nvml::load).as_ref().map_err(Clone::clone)?;
    Ok(between(&nvml.ends(address)?, &nvml.ends(other_address)?, parse_bus_id(other_address)))
}

/// Counts the links between the first GPU and the second, whose bus address is `other_address`.
/// Switches reach all GPUs: through them, the count is the smaller of both GPUs' links to switches.
fn between(ends: &[NvLinkEnd], other_ends: &[NvLinkEnd], other_address: Option<PciAddress>) -> NvLinks {
    let there = |end: &&NvLinkEnd| other_address.is_some_and(|place| end.to == Target::At(place));
    let switched = |end: &&NvLinkEnd| end.to == Target::Switch;
    let nv_links = |count: usize, like: Option<&NvLinkEnd>| NvLinks {
        count: count as u32,
        version: like.filter(|_| count > 0).map_or((0, 0), |end| end.version),
    };
    match ends.iter().filter(there).count() {
        0 => {
            let counts = [ends, other_ends].map(|ends| ends.iter().filter(switched).count());
            nv_links(counts[0].min(counts[1]), ends.iter().find(switched))
        }
        count => nv_links(count, ends.iter().find(there)),
    }
}

/// End of a link of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NvLinkEnd {
    to: Target,
    version: (u32, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// At a device on the bus.
    At(PciAddress),
    Switch,
    Elsewhere,
}

/// Domain, bus and device.
type PciAddress = [u32; 3];

/// Parses an address such as `0000:3b:00.0`.
fn parse_bus_id(bus_id: &str) -> Option<PciAddress> {
    let numbers = bus_id.split([':', '.']).map(|part| u32::from_str_radix(part, 16).ok());
    numbers.collect::<Option<Vec<_>>>()?.first_chunk().copied()
}

/// Converts NVML's number of a version.
fn version(number: c_uint) -> (u32, u32) {
    const VERSIONS: [(u32, u32); 8] = [(0, 0), (1, 0), (2, 0), (2, 2), (3, 0), (3, 1), (4, 0), (5, 0)];
    VERSIONS.get(number as usize).copied().unwrap_or_default()
}

/// `nvmlDevice_t`.
type Device = *mut c_void;
type OfLink<T> = unsafe extern "C" fn(Device, c_uint, *mut T) -> c_int;

/// The functions that we call; they stay loaded until the process ends.
struct Nvml {
    device: unsafe extern "C" fn(*const c_char, *mut Device) -> c_int,
    state: OfLink<c_uint>,
    version: OfLink<c_uint>,
    remote: OfLink<PciInfo>,
    /// Drivers have it since 2021.
    kind: Option<OfLink<c_uint>>,
    _library: Library,
}

/// `nvmlPciInfo_t`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PciInfo {
    _legacy_bus_id: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    _device_id: c_uint,
    _subsystem_id: c_uint,
    _bus_id: [u8; 32],
}

impl Nvml {
    fn load() -> Result<Self, GpuError> {
        let absent = |error: libloading::Error| GpuError::NvmlUnavailable { reason: reason(&error) };
        // SAFETY: the initializers of NVML have no preconditions. Another library of its name must
        // be trusted as the system's loader trusts it.
        let library = unsafe { Library::open(Some(OsStr::new(NAME)), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(absent)?;
        // SAFETY: the types are those of NVML's header.
        let (init, nvml) = unsafe {
            let init = *library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlInit_v2").map_err(absent)?;
            let nvml = Self {
                device: *library.get(b"nvmlDeviceGetHandleByPciBusId_v2").map_err(absent)?,
                state: *library.get(b"nvmlDeviceGetNvLinkState").map_err(absent)?,
                version: *library.get(b"nvmlDeviceGetNvLinkVersion").map_err(absent)?,
                remote: *library.get(b"nvmlDeviceGetNvLinkRemotePciInfo_v2").map_err(absent)?,
                kind: library.get(b"nvmlDeviceGetNvLinkRemoteDeviceType").ok().map(|function| *function),
                _library: library,
            };
            (init, nvml)
        };
        // SAFETY: it takes nothing, and comes before all others.
        check("nvmlInit_v2", unsafe { init() }).map(|()| nvml)
    }

    /// Returns the remote ends of the active links of a GPU. A link that NVML does not report
    /// counts as inactive: NVML reports none for GPUs without NVLink.
    fn ends(&self, bus_id: &str) -> Result<Vec<NvLinkEnd>, GpuError> {
        let (mut device, bus_id) = (null_mut(), CString::new(bus_id).unwrap_or_default());
        // SAFETY: a text with its end, and room for a handle.
        let answer = unsafe { (self.device)(bus_id.as_ptr(), &mut device) };
        check("nvmlDeviceGetHandleByPciBusId_v2", answer)?;
        Ok((0..LINKS_MAX).filter_map(|link| self.end(device, link)).collect())
    }

    fn end(&self, device: Device, link: c_uint) -> Option<NvLinkEnd> {
        let active = query(self.state, device, link)?;
        (active != 0).then(|| NvLinkEnd {
            to: self.target(device, link),
            version: version(query(self.version, device, link).unwrap_or(0)),
        })
    }

    fn target(&self, device: Device, link: c_uint) -> Target {
        if self.kind.and_then(|kind| query(kind, device, link)) == Some(SWITCH) {
            return Target::Switch;
        }
        let target_at = |info: PciInfo| Target::At([info.domain, info.bus, info.device]);
        query(self.remote, device, link).map_or(Target::Elsewhere, target_at)
    }
}

/// Returns the answer of NVML about a link, or `None`.
fn query<T: Default>(function: OfLink<T>, device: Device, link: c_uint) -> Option<T> {
    let mut value = T::default();
    // SAFETY: the handle is from NVML, which checks the link number, and `value` has room for the
    // answer.
    let answer = unsafe { function(device, link, &mut value) };
    (answer == SUCCESS).then_some(value)
}

fn check(function: &str, answer: c_int) -> Result<(), GpuError> {
    match answer {
        SUCCESS => Ok(()),
        error => Err(GpuError::NvmlUnavailable { reason: format!("{NAME}: {function} answers {error}") }),
    }
}

const NAME: &str = "libnvidia-ml.so.1";
/// `NVML_SUCCESS`.
const SUCCESS: c_int = 0;
/// `NVML_NVLINK_DEVICE_TYPE_SWITCH`.
const SWITCH: c_uint = 2;
/// More than `NVML_NVLINK_MAX_LINKS`, which grows. NVML reports links beyond it as absent.
const LINKS_MAX: c_uint = 36;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_linux_writes_them() {
        assert_eq!(parse_bus_id("0001:3b:0a.0"), Some([1, 0x3b, 10]));
        assert_eq!(parse_bus_id("00000000:3B:00.0"), Some([0, 0x3b, 0]));
        assert_eq!([parse_bus_id(""), parse_bus_id("x:3b:00.0")], [None, None]);
    }

    #[test]
    fn links_lead_to_a_gpu_or_by_way_of_switches() {
        let end = |target| NvLinkEnd { to: target, version: (4, 0) };
        let (here, there) = (Target::At([0, 1, 0]), Target::At([0, 2, 0]));
        let (ends, other_ends) = ([end(there), end(there), end(Target::Switch)], [end(here), end(here)]);
        let address = Some([0, 2, 0]);
        assert_eq!(between(&ends, &other_ends, address), NvLinks { count: 2, version: (4, 0) });
        assert_eq!(between(&ends, &ends, Some([0, 3, 0])), NvLinks { count: 1, version: (4, 0) });
        assert_eq!(between(&[end(Target::Elsewhere)], &ends, None), NvLinks::default());
        assert_eq!(between(&other_ends, &ends, address), NvLinks::default());
    }

    #[test]
    fn newer_links_carry_more() {
        let gigabytes = |count, version| NvLinks { count, version }.gigabytes();
        assert_eq!(
            [gigabytes(4, (1, 0)), gigabytes(18, (4, 0)), gigabytes(18, (5, 0)), gigabytes(0, (0, 0))],
            [80, 450, 900, 0]
        );
    }
}
