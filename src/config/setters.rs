//! Setters that take and return the settings, so that one expression can build them.

use crate::config::{Config, DeviceConfig, Interface, LaunchMode, ReductionOrder, Transport};
use crate::schedule::Algorithm;
use crate::tuning::TuningTable;
use std::path::PathBuf;
use std::time::Duration;
use unisono_transports::WaitMode;

macro_rules! setters {
    ($type:ident { $($setter:ident: $field:ident: $value:ty,)* }) => {
        impl $type {
            $(
                #[doc = concat!("Returns the settings with [`", stringify!($type), "::", stringify!($field), "`] replaced.")]
                #[must_use]
                pub fn $setter(mut self, value: $value) -> Self {
                    self.$field = value;
                    self
                }
            )*
        }
    };
}

setters! {
    Config {
        with_timeout: timeout: Duration,
        with_join_timeout: join_timeout: Duration,
        with_transport: transport: Transport,
        with_channels: channels: usize,
        with_fifo_depth: fifo_depth: usize,
        with_fifo_slot_bytes: fifo_slot_bytes: usize,
        with_shm_window_bytes: shm_window_bytes: usize,
        with_symmetric_heap_bytes: symmetric_heap_bytes: usize,
        with_wait: wait: WaitMode,
        with_sockets_per_peer: sockets_per_peer: usize,
        with_encryption: encryption: bool,
        with_bind_addr: bind_addr: Option<Interface>,
        with_reduction_order: reduction_order: ReductionOrder,
        with_algorithms: algorithms: Vec<&'static Algorithm>,
        with_tuning_table: tuning_table: TuningTable,
        with_cache_bytes: cache_bytes: usize,
        with_nontemporal_min_bytes: nontemporal_min_bytes: usize,
        with_gpu: gpu: DeviceConfig,
        with_check_finite: check_finite: bool,
        with_flight_recorder_dir: flight_recorder_dir: Option<PathBuf>,
        with_trace_dir: trace_dir: Option<PathBuf>,
        with_status_server: status_server: bool,
        with_host: host: String,
    }
}

setters! {
    DeviceConfig {
        with_channels: channels: usize,
        with_fifo_depth: fifo_depth: usize,
        with_fifo_slot_bytes: fifo_slot_bytes: usize,
        with_window_bytes: window_bytes: usize,
        with_peer_to_peer: peer_to_peer: bool,
        with_ll128: ll128: bool,
        with_timeout: timeout: Duration,
        with_launch: launch: LaunchMode,
    }
}
