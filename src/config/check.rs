//! The check of settings, for every way to make a communicator.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::schedule::{Algorithm, PeerAccess, find};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Allowed ranges of settings, for values in code and in the environment.
pub(super) mod limits {
    use std::ops::RangeInclusive;

    /// In the environment. In code, [`Duration::MAX`](std::time::Duration::MAX) means no limit.
    pub(in crate::config) const TIMEOUT_MS: RangeInclusive<usize> = 100..=365 * 24 * 3600 * 1000;
    /// More channels cost memory without a gain.
    pub(in crate::config) const CHANNELS: RangeInclusive<usize> = 1..=32;
    pub(in crate::config) const FIFO_DEPTH: RangeInclusive<usize> = 2..=1024;
    /// Frames count the bytes of a message in 32 bits.
    pub(in crate::config) const FIFO_SLOT_BYTES: RangeInclusive<usize> = 1024..=1 << 30;
    pub(in crate::config) const SYMMETRIC_HEAP_BYTES: RangeInclusive<usize> = 0..=BYTES_MAX;
    pub(in crate::config) const WINDOW_BYTES: RangeInclusive<usize> = 1 << 16..=BYTES_MAX;
    pub(in crate::config) const SOCKETS_PER_PEER: RangeInclusive<usize> = 1..=256;
    pub(in crate::config) const CACHE_BYTES: RangeInclusive<usize> = 1 << 16..=BYTES_MAX;
    pub(in crate::config) const GPU_FIFO_DEPTH: RangeInclusive<usize> = 3..=1024;
    pub(in crate::config) const GPU_FIFO_SLOT_BYTES: RangeInclusive<usize> = 4096..=BYTES_MAX;
    /// The largest size in bytes. An address space has fewer than twice as many bytes.
    const BYTES_MAX: usize = 1 << 46;
}

impl Config {
    /// Checks that every setting is within its range.
    ///
    /// Every call that makes a communicator checks its settings, so that this call is only needed
    /// to find a wrong value earlier.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) names setting, value and range.
    ///
    /// ```
    /// use unisono::Config;
    ///
    /// assert!(Config::default().check().is_ok());
    /// let error = Config::default().with_channels(0).check().unwrap_err();
    /// assert!(error.to_string().contains("Config::channels (UNISONO_CHANNELS) is 0"));
    /// ```
    pub fn check(&self) -> Result<()> {
        let gpu = &self.gpu;
        let sizes = [
            ("channels", "CHANNELS", self.channels, limits::CHANNELS),
            ("fifo_depth", "FIFO_DEPTH", self.fifo_depth, limits::FIFO_DEPTH),
            ("fifo_slot_bytes", "FIFO_SLOT_BYTES", self.fifo_slot_bytes, limits::FIFO_SLOT_BYTES),
            ("shm_window_bytes", "SHM_WINDOW_BYTES", self.shm_window_bytes, limits::WINDOW_BYTES),
            (
                "symmetric_heap_bytes",
                "SYMMETRIC_HEAP_BYTES",
                self.symmetric_heap_bytes,
                limits::SYMMETRIC_HEAP_BYTES,
            ),
            ("sockets_per_peer", "SOCKETS_PER_PEER", self.sockets_per_peer, limits::SOCKETS_PER_PEER),
            ("cache_bytes", "CACHE_BYTES", self.cache_bytes, limits::CACHE_BYTES),
            ("gpu.channels", "GPU_CHANNELS", gpu.channels, limits::CHANNELS),
            ("gpu.fifo_depth", "GPU_FIFO_DEPTH", gpu.fifo_depth, limits::GPU_FIFO_DEPTH),
            ("gpu.fifo_slot_bytes", "GPU_FIFO_SLOT_BYTES", gpu.fifo_slot_bytes, limits::GPU_FIFO_SLOT_BYTES),
            ("gpu.window_bytes", "GPU_WINDOW_BYTES", gpu.window_bytes, limits::WINDOW_BYTES),
        ];
        self.algorithms.iter().try_for_each(|row| check_algorithm(row))?;
        let times =
            [("timeout", "TIMEOUT_MS", self.timeout), ("join_timeout", "JOIN_TIMEOUT_MS", self.join_timeout)];
        times.into_iter().try_for_each(|(field, variable, value)| check_time(field, variable, value))?;
        sizes
            .into_iter()
            .try_for_each(|(field, variable, value, range)| check_size(field, variable, value, range))
    }

    /// Returns checked settings, with times that can be added to a clock.
    ///
    /// # Errors
    /// As [`Config::check`].
    pub(crate) fn checked(&self) -> Result<Config> {
        self.check()?;
        let mut config = self.clone();
        for time in [&mut config.timeout, &mut config.join_timeout] {
            *time = (*time).min(NO_LIMIT);
        }
        Ok(config)
    }

    /// Returns the settings with sizes of whole pages.
    pub(crate) fn page_aligned(mut self) -> Config {
        let sizes = [
            &mut self.fifo_slot_bytes,
            &mut self.shm_window_bytes,
            &mut self.symmetric_heap_bytes,
            &mut self.gpu.fifo_slot_bytes,
            &mut self.gpu.window_bytes,
        ];
        sizes.into_iter().for_each(|size| *size = size.next_multiple_of(PAGE_BYTES));
        self
    }
}

/// Refuses an algorithm that a setting cannot choose.
fn check_algorithm(row: &Algorithm) -> Result<()> {
    let name = format!("Config::algorithms (UNISONO_ALGO): {} {}", row.collective, row.name);
    let has_its_name = find(row.collective, row.name).is_some_and(|known| std::ptr::eq(known, row));
    if !has_its_name {
        let text = format!(
            "{name} is not registered; unisono::register_algorithm gives it a name that settings understand"
        );
        return Err(Error::invalid_usage(text));
    }
    if row.peer_access == PeerAccess::ZeroCopy {
        let text = format!(
            "{name} needs no setting: large operations on buffers of Communicator::alloc_symmetric use it by themselves"
        );
        return Err(Error::invalid_usage(text));
    }
    Ok(())
}

fn check_time(field: &str, variable: &str, value: Duration) -> Result<()> {
    if value >= TIME_MIN {
        return Ok(());
    }
    Err(Error::invalid_usage(format!(
        "Config::{field} (UNISONO_{variable}) is {value:?}, but must be at least {TIME_MIN:?}; Duration::MAX means no limit"
    )))
}

fn check_size(field: &str, variable: &str, value: usize, range: RangeInclusive<usize>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    let (min, max) = range.into_inner();
    Err(Error::invalid_usage(format!(
        "Config::{field} (UNISONO_{variable}) is {value}, but must be from {min} to {max}"
    )))
}

const TIME_MIN: Duration = Duration::from_millis(1);
/// A century, which is longer than any process runs, and short enough to be added to any clock.
const NO_LIMIT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
const PAGE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_names_setting_value_and_range() {
        let refused: [(Config, &str); 8] = [
            (Config::default().with_fifo_slot_bytes(0), "fifo_slot_bytes (UNISONO_FIFO_SLOT_BYTES) is 0"),
            (Config::default().with_channels(0), "is 0, but must be from 1 to 32"),
            (Config::default().with_fifo_depth(0), "is 0, but must be from 2 to 1024"),
            (Config::default().with_sockets_per_peer(1_000_000), "is 1000000, but must be from 1 to 256"),
            (Config::default().with_shm_window_bytes(0), "shm_window_bytes (UNISONO_SHM_WINDOW_BYTES) is 0"),
            (Config::default().with_timeout(Duration::ZERO), "timeout (UNISONO_TIMEOUT_MS) is 0ns"),
            (Config::default().with_cache_bytes(usize::MAX), "but must be from 65536 to"),
            (
                Config::default().with_gpu(crate::DeviceConfig::default().with_channels(0)),
                "gpu.channels (UNISONO_GPU_CHANNELS) is 0",
            ),
        ];
        for (config, part) in refused {
            let error = config.check().unwrap_err();
            assert!(error.is_invalid_usage() && error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn check_refuses_algorithms_that_no_setting_can_choose() {
        let refused = |row: &'static Algorithm| {
            let error = Config::default().with_algorithms(vec![row]).check().unwrap_err();
            assert!(error.is_invalid_usage(), "{error}");
            error.to_string()
        };
        let unregistered = Algorithm { name: "own", ..crate::schedule::algorithms::ring::ALL_REDUCE }.leak();
        assert!(refused(unregistered).contains("own is not registered"));
        let zero_copy = find(crate::schedule::Collective::AllReduce, "zero_copy").unwrap();
        assert!(refused(zero_copy).contains("needs no setting"));
        let algorithms = Algorithm::ALL.iter().filter(|row| row.peer_access != PeerAccess::ZeroCopy);
        Config::default().with_algorithms(algorithms.collect()).check().unwrap();
    }

    #[test]
    fn checked_makes_settings_usable() {
        let config = Config::default().with_timeout(Duration::MAX).with_fifo_slot_bytes(5000);
        let checked = config.checked().unwrap().page_aligned();
        assert_eq!((checked.timeout, checked.fifo_slot_bytes), (NO_LIMIT, 8192));
        assert!(std::time::Instant::now().checked_add(4 * checked.timeout).is_some());
    }
}
