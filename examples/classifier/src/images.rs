//! Images made by a formula.

use crate::Table;

/// Number of kinds of bars.
const CLASSES: usize = 3;

/// Returns `count` noisy images of `size` × `size` pixels, a row each. The target is the direction
/// of the bar in the image: 0 for a horizontal one, 1 for a vertical one, 2 for a diagonal one.
pub fn images_of_bars(count: usize, size: usize, seed: u64) -> Table {
    let mut random = Random(seed);
    let mut table = Table { columns: size * size, ..Table::default() };
    for _ in 0..count {
        let (class, place) = (random.below(CLASSES), random.below(size));
        for pixel in 0..size * size {
            let (y, x) = (pixel / size, pixel % size);
            let is_on = [y == place, x == place, (y + x) % size == place][class];
            table.features.push(random.noise() + if is_on { 1.0 } else { 0.0 });
        }
        table.targets.push(class as f32);
    }
    table
}

/// Linear congruential generator (Knuth, "The Art of Computer Programming", volume 2).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize
    }

    fn below(&mut self, count: usize) -> usize {
        self.bits() % count
    }

    /// Returns a number between -0.5 and 0.5.
    fn noise(&mut self) -> f32 {
        self.below(1000) as f32 / 1000.0 - 0.5
    }
}
