//! Values as expressions: what a block holds, in terms of the inputs.
//!
//! Equal expressions have equal numbers, so that comparing two is comparing two integers. A sum of
//! two is unordered, because `a ⊕ b` and `b ⊕ a` have the same bits; a longer one keeps its order.

use super::violation::Wrong;
use crate::schedule::{Collective, Rank};
use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{BuildHasherDefault, Hasher};

/// Number of an expression.
pub(super) type Value = u32;

/// No value: the block was never written.
pub(super) const EMPTY: Value = 0;
/// The caller's input, still in place.
pub(super) const RAW: Value = 1;

/// Leaves are computed from their numbers; only sums are stored.
const FIRST_LEAF: Value = 2;

/// Every expression of one run.
pub(super) struct Values {
    ranks: usize,
    parts: u32,
    /// Input blocks of a rank, at most.
    stride: u32,
    /// Whether the shares of ranks may have different lengths.
    uneven: bool,
    first_node: Value,
    nodes: Vec<Node>,
    operands: Vec<Value>,
    pairs: HashMap<u64, Value, Mixing>,
    lists: HashMap<Box<[Value]>, Value>,
    /// For each rank, the number of the last inspection that met its input.
    met: Vec<u32>,
    inspections: u32,
}

#[derive(Clone, Copy)]
struct Node {
    kind: Kind,
    length: u32,
    /// Smallest rank whose input is in it.
    least: u32,
    hash: u64,
}

#[derive(Clone, Copy)]
enum Kind {
    Sum { start: u32, operands: u32 },
    Finished(Value),
}

impl Values {
    /// The inputs of all ranks: `stride` blocks each.
    pub(super) fn new(collective: Collective, ranks: usize, parts: usize, stride: usize) -> Self {
        let stride = stride.max(1);
        Self {
            ranks,
            parts: parts as u32,
            stride: stride as u32,
            uneven: collective == Collective::AllGather,
            first_node: FIRST_LEAF + (ranks * stride) as Value,
            nodes: Vec::new(),
            operands: Vec::new(),
            pairs: HashMap::default(),
            lists: HashMap::new(),
            met: vec![0; ranks],
            inspections: 0,
        }
    }

    /// The input block `index` of `rank`.
    pub(super) fn leaf(&self, rank: Rank, index: usize) -> Value {
        FIRST_LEAF + rank as Value * self.stride + index as Value
    }

    /// `one ⊕ other`.
    pub(super) fn pair(&mut self, one: Value, other: Value) -> Value {
        let key = key(one.min(other), one.max(other));
        if let Some(&value) = self.pairs.get(&key) {
            return value;
        }
        let value = self.add(&[one.min(other), one.max(other)]);
        self.pairs.insert(key, value);
        value
    }

    /// `operands[0] ⊕ operands[1] ⊕ …` in one pass.
    pub(super) fn sum(&mut self, operands: &[Value]) -> Value {
        match *operands {
            [] => EMPTY,
            [only] => only,
            [one, other] => self.pair(one, other),
            _ => {
                if let Some(&value) = self.lists.get(operands) {
                    return value;
                }
                let value = self.add(operands);
                self.lists.insert(operands.into(), value);
                value
            }
        }
    }

    /// The finished `value`.
    pub(super) fn finished(&mut self, value: Value) -> Value {
        // Distinct from every pair of operands, none of which is empty.
        if let Some(&finished) = self.pairs.get(&key(EMPTY, value)) {
            return finished;
        }
        let hash = mix(self.hash(value) ^ FINISHED);
        let node =
            Node { kind: Kind::Finished(value), length: self.length(value), least: self.least(value), hash };
        let finished = self.push(node);
        self.pairs.insert(key(EMPTY, value), finished);
        finished
    }

    /// Which length the value has: equal numbers, equal lengths.
    pub(super) fn length(&self, value: Value) -> u32 {
        match self.node(value) {
            Some(node) => node.length,
            None => {
                let (rank, index) = self.input_of(value);
                self.length_of(rank, index)
            }
        }
    }

    /// Which length block `index` has among the blocks of the shares that belong to `rank`.
    ///
    /// A share's last part may be shorter than the others. All shares are equally long, except
    /// that an all_gather may be given another length for each rank.
    pub(super) fn length_of(&self, rank: Rank, index: usize) -> u32 {
        let part = index as u32 % self.parts;
        if self.uneven { rank as u32 * self.parts + part } else { part }
    }

    /// Whether `value` is finished and has input block `index` of every rank exactly once.
    pub(super) fn is_complete_sum(
        &mut self,
        value: Value,
        index: impl Fn(Rank) -> usize,
    ) -> Result<(), Wrong> {
        let Some(Node { kind: Kind::Finished(sum), .. }) = self.node(value).copied() else {
            return Err(Wrong::NotFinished);
        };
        self.inspections += 1;
        let (mut met, mut open) = (0, vec![sum]);
        while let Some(value) = open.pop() {
            match self.node(value).map(|node| node.kind) {
                Some(Kind::Finished(_)) => return Err(Wrong::FinishedEarly),
                Some(Kind::Sum { start, operands }) => {
                    open.extend_from_slice(&self.operands[start as usize..(start + operands) as usize]);
                }
                None => {
                    let (rank, found) = self.input_of(value);
                    if found != index(rank) {
                        return Err(Wrong::Foreign(rank));
                    }
                    // Also what ends the walk through a value that doubles and doubles.
                    if std::mem::replace(&mut self.met[rank], self.inspections) == self.inspections {
                        return Err(Wrong::Twice(rank));
                    }
                    met += 1;
                }
            }
        }
        match (met < self.ranks).then(|| self.met.iter().position(|&met| met != self.inspections)) {
            Some(Some(rank)) => Err(Wrong::Without(rank)),
            _ => Ok(()),
        }
    }

    /// A hash of the expression itself: equal in every run that forms it.
    pub(super) fn hash(&self, value: Value) -> u64 {
        match self.node(value) {
            Some(node) => node.hash,
            None => {
                let (rank, index) = self.input_of(value);
                mix(mix(rank as u64) ^ index as u64)
            }
        }
    }

    /// The order of summation, as ranks: `((0+1)+(2+3))`.
    pub(super) fn expression(&self, value: Value) -> String {
        let mut text = String::new();
        let mut open = vec![Token::Value(value)];
        while let Some(token) = open.pop() {
            let value = match token {
                Token::Text(part) => {
                    text.push(part);
                    continue;
                }
                Token::Value(value) => value,
            };
            match self.node(value).map(|node| node.kind) {
                None => {
                    let _ = write!(text, "{}", self.least(value));
                }
                Some(Kind::Finished(value)) => open.push(Token::Value(value)),
                Some(Kind::Sum { start, operands }) => {
                    let mut operands = self.operands[start as usize..(start + operands) as usize].to_vec();
                    if operands.len() == 2 {
                        operands.sort_by_key(|&operand| self.least(operand));
                    }
                    open.push(Token::Text(')'));
                    for (index, &operand) in operands.iter().enumerate().rev() {
                        open.push(Token::Value(operand));
                        open.push(Token::Text(if index == 0 { '(' } else { '+' }));
                    }
                }
            }
        }
        text
    }

    fn add(&mut self, operands: &[Value]) -> Value {
        let hashes = operands.iter().map(|&operand| self.hash(operand));
        let hash = match operands.len() {
            2 => mix(hashes.fold(0, u64::wrapping_add)),
            _ => hashes.fold(LIST, |hash, operand| mix(hash.rotate_left(5) ^ operand)),
        };
        let least = operands.iter().map(|&operand| self.least(operand)).min().unwrap_or(0);
        let kind = Kind::Sum { start: self.operands.len() as u32, operands: operands.len() as u32 };
        let length = self.length(operands[0]);
        self.operands.extend_from_slice(operands);
        self.push(Node { kind, length, least, hash })
    }

    fn push(&mut self, node: Node) -> Value {
        self.nodes.push(node);
        self.first_node + (self.nodes.len() - 1) as Value
    }

    fn node(&self, value: Value) -> Option<&Node> {
        value.checked_sub(self.first_node).map(|index| &self.nodes[index as usize])
    }

    fn least(&self, value: Value) -> u32 {
        match self.node(value) {
            Some(node) => node.least,
            None => (value - FIRST_LEAF) / self.stride,
        }
    }

    /// The rank and index of a leaf.
    fn input_of(&self, leaf: Value) -> (Rank, usize) {
        let leaf = leaf - FIRST_LEAF;
        ((leaf / self.stride) as Rank, (leaf % self.stride) as usize)
    }
}

fn key(one: Value, other: Value) -> u64 {
    u64::from(one) << 32 | u64::from(other)
}

/// Hashes one integer: these maps are looked into at every step, and no adversary chooses their keys.
type Mixing = BuildHasherDefault<Mixer>;

#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = mix(self.0 ^ u64::from(byte)));
    }

    fn write_u64(&mut self, x: u64) {
        self.0 = mix(self.0 ^ x);
    }
}

enum Token {
    Text(char),
    Value(Value),
}

const FINISHED: u64 = 0x9e37_79b9_7f4a_7c15;
const LIST: u64 = 0xd1b5_4a32_d192_ed03;

/// Spreads the bits of `x` (the finaliser of splitmix64).
pub(super) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_add(FINISHED).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        Values::new(Collective::AllReduce, 4, 1, 1)
    }

    #[test]
    fn equal_expressions_are_one_value() {
        let mut values = values();
        let [a, b, c] = [0, 1, 2].map(|rank| values.leaf(rank, 0));
        assert_eq!(values.pair(a, b), values.pair(b, a));
        let (left, right) = (values.pair(a, b), values.pair(b, c));
        assert_ne!(values.pair(left, c), values.pair(a, right));
        assert_ne!(values.sum(&[a, b, c]), values.sum(&[c, b, a]));
        let finished = values.finished(a);
        assert_eq!(finished, values.finished(a));
        assert_ne!(finished, a);
    }

    #[test]
    fn a_sum_is_complete_with_each_input_once() {
        let mut values = values();
        let [a, b, c, d] = [0, 1, 2, 3].map(|rank| values.leaf(rank, 0));
        let (low, high) = (values.pair(a, b), values.pair(c, d));
        let whole = values.pair(high, low);
        assert_eq!(values.is_complete_sum(whole, |_| 0), Err(Wrong::NotFinished));
        let finished = values.finished(whole);
        assert_eq!(values.is_complete_sum(finished, |_| 0), Ok(()));
        assert!(matches!(values.is_complete_sum(finished, |_| 1), Err(Wrong::Foreign(_))));
        assert_eq!(values.expression(finished), "((0+1)+(2+3))");
        let finished = values.finished(low);
        assert_eq!(values.is_complete_sum(finished, |_| 0), Err(Wrong::Without(2)));
        let twice = values.sum(&[a, b, b, c, d]);
        let finished = values.finished(twice);
        assert_eq!(values.is_complete_sum(finished, |_| 0), Err(Wrong::Twice(1)));
        let early = values.pair(finished, a);
        let finished = values.finished(early);
        assert!(values.is_complete_sum(finished, |_| 0).is_err());
    }
}
