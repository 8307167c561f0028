//! What every transport must do, as tests that any mesh can be put through.
//!
//! A transport is stamped with [`conformance!`](crate::conformance): one test for each case below,
//! over meshes that its maker makes. Every rank is a thread, and gives time away whenever it
//! waits, so that simulated time can pass as well; no wait is longer than [`PATIENCE`].

mod child;
mod endings;
mod messages;
mod side;
mod windows;

pub use child::in_a_forked_child;
pub use endings::*;
pub use messages::*;
pub use windows::*;

use crate::{Geometry, Mesh};
use std::time::Duration;

/// Makes the meshes of so many ranks, by rank.
pub type Maker<'m> = &'m dyn Fn(usize, Geometry) -> Vec<Mesh>;

/// Stamps the cases on a transport: `conformance!(name, |ranks, geometry| meshes)`.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $make:expr) => {
        $crate::conformance!(
            $name,
            $make,
            [
                messages_arrive_whole_and_in_order,
                parts_become_one_message,
                a_message_stays_until_it_is_released,
                a_full_lane_takes_no_more_until_one_is_taken,
                a_full_lane_does_not_hold_up_another,
                long_messages_arrive_bit_by_bit,
                random_traffic_arrives_unharmed,
                four_ranks_talk_all_at_once,
                what_precedes_a_signal_is_visible_after_it,
                banks_are_used_by_turns,
                posts_carry_their_data,
                hints_arrive,
                a_window_ends_where_it_ends,
                notes_arrive_in_order,
                a_death_is_told_once_and_soon,
                last_words_outlive_their_sender,
                a_dead_peer_holds_up_nobody,
            ]
        );
    };
    ($name:ident, $make:expr, [$($case:ident),* $(,)?]) => {
        mod $name {
            use super::*;
            $(
                #[test]
                fn $case() {
                    $crate::conformance::$case(&$make);
                }
            )*
        }
    };
}

/// The longest wait of any case; one that lasts longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Small sizes, so that every limit is met often.
const SMALL: Geometry =
    Geometry { lanes: 3, slots: 3, slot_bytes: 320, channels: 2, window_bytes: 8192, heap_bytes: 1 << 20 };

/// Sizes around the limits of lines and slots.
const SIZES: [usize; 11] = [0, 1, 8, 15, 16, 17, 63, 64, 65, 319, 320];

/// The `index`-th number of the stream `seed`.
fn scatter(seed: u64, index: u64) -> u64 {
    let mixed = (seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x632b_e59b_d9b4_e019);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Bytes that say where they belong.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8)).flat_map(|index| scatter(seed, index as u64).to_le_bytes());
    words.take(bytes).collect()
}
