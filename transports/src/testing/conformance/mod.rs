//! Conformance suite of transports: tests that any fabric must pass.
//!
//! [`conformance!`](crate::conformance) applies the suite to a transport. It makes one test for
//! each case below, over fabrics that its factory makes. Every rank is a thread, and yields time
//! whenever it waits, so that simulated time can pass as well. No wait is longer than [`TIMEOUT`].

pub(crate) mod failures;
pub(crate) mod forked_child;
mod messages;
pub(crate) mod test_rank;
mod windows;

pub use crate::testing::conformance::failures::*;
pub use crate::testing::conformance::forked_child::run_in_forked_child;
pub use crate::testing::conformance::messages::*;
pub use crate::testing::conformance::windows::*;

use crate::{Fabric, Geometry};
use std::time::Duration;

/// Makes the fabrics of this many ranks, by rank.
pub type FabricFactory<'m> = &'m dyn Fn(usize, Geometry) -> Vec<Fabric>;

/// Applies the cases to a transport: `conformance!(name, |ranks, geometry| fabrics)`.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $make:expr) => {
        $crate::conformance!(
            $name,
            $make,
            [
                messages_arrive_intact_and_in_order,
                gathered_parts_form_one_message,
                message_stays_until_release,
                full_lane_refuses_until_release,
                full_lane_does_not_block_others,
                long_messages_arrive_intact,
                random_traffic_arrives_intact,
                four_ranks_exchange_concurrently,
                signal_publishes_prior_writes,
                parities_and_lanes_are_independent,
                eager_slots_carry_their_data,
                hints_are_delivered,
                window_access_is_bounds_checked,
                control_messages_arrive_in_order,
                exit_is_reported_once_and_soon,
                last_control_message_survives_exit,
                exited_peer_blocks_nobody,
            ]
        );
    };
    ($name:ident, $make:expr, [$($case:ident),* $(,)?]) => {
        mod $name {
            use super::*;
            $(
                #[test]
                fn $case() {
                    $crate::testing::conformance::$case(&$make);
                }
            )*
        }
    };
}

/// The longest wait of any case. A longer wait is a failure.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Small sizes, so that every limit is met often.
const SMALL_GEOMETRY: Geometry = Geometry {
    lanes: 3,
    slots: 3,
    slot_bytes: 320,
    signal_lanes: 2,
    window_bytes: 8192,
    heap_bytes: 1 << 20,
};

/// Sizes around the limits of lines and slots.
const SIZES: [usize; 11] = [0, 1, 8, 15, 16, 17, 63, 64, 65, 319, 320];

/// Returns the `index`-th number of the stream `seed`.
fn hash(seed: u64, index: u64) -> u64 {
    let mixed = (seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x632b_e59b_d9b4_e019);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Returns bytes that identify their position.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8)).flat_map(|index| hash(seed, index as u64).to_le_bytes());
    words.take(bytes).collect()
}
