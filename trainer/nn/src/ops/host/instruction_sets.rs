//! Instruction sets of the kernels on the host.

use crate::ops::host::vector;
use std::fmt;

/// Names of instruction sets. A message has the position of a name in this list.
const NAMES: [&str; 4] = ["portable", "NEON", "AVX2", "AVX-512"];

/// Name for a position that is not in the list, as another build may send it.
const UNKNOWN: &str = "unknown";

/// Names of the instruction sets that a rank uses on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionSets {
    /// Set of matrix products, whose rounding depends on it.
    pub products: &'static str,
    /// Set of copies and reductions. All sets give the same bits.
    pub reductions: &'static str,
    /// Set of the other operations. All sets give the same bits.
    pub others: &'static str,
}

impl InstructionSets {
    /// Returns the sets that this process uses.
    pub fn current() -> Self {
        Self {
            products: unisono_matmul::instruction_set(),
            reductions: unisono_reducers::instruction_set(),
            others: vector::instruction_set(),
        }
    }

    /// Returns the numbers that stand for the names in a message.
    pub fn to_numbers(self) -> [u64; 3] {
        [self.products, self.reductions, self.others].map(|name| {
            let position = NAMES.iter().position(|known| *known == name);
            position.unwrap_or(NAMES.len()) as u64
        })
    }

    /// Returns the names for which numbers of a message stand.
    pub fn from_numbers(numbers: [u64; 3]) -> Self {
        let name = |number: u64| {
            let position = usize::try_from(number).ok();
            position.and_then(|position| NAMES.get(position).copied()).unwrap_or(UNKNOWN)
        };
        let [products, reductions, others] = numbers.map(name);
        Self { products, reductions, others }
    }
}

impl fmt::Display for InstructionSets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { products, reductions, others } = self;
        write!(f, "f32 products {products}, reductions {reductions}, other kernels {others}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_sets_are_known_and_survive_a_message() {
        let current = InstructionSets::current();
        let text = current.to_string();
        for name in [current.products, current.reductions, current.others] {
            assert!(NAMES.contains(&name), "{text}");
        }
        assert_eq!(InstructionSets::from_numbers(current.to_numbers()), current);
        let of_another_build = InstructionSets::from_numbers([3, u64::MAX, 4]);
        assert_eq!(
            of_another_build.to_string(),
            "f32 products AVX-512, reductions unknown, other kernels unknown"
        );
    }
}
