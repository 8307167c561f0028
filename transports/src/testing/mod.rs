//! Test support: the conformance suite of transports, fuzz targets, the Shuttle façade and the flag
//! latency probe.

#[doc(hidden)]
pub mod conformance;
pub mod flag_latency;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(shuttle)]
#[doc(hidden)]
pub mod shuttle;
