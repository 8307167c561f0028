//! Values as expressions of the inputs.
//!
//! Equal expressions have equal numbers, so that comparing two is comparing two integers. A sum of
//! two is unordered, because `a ⊕ b` and `b ⊕ a` have the same bits; a longer one keeps its order.

use crate::schedule::check::violation::OutputError;
use crate::schedule::{Collective, Rank};
use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{BuildHasherDefault, Hasher};

/// Number of an expression.
pub(super) type ExprId = u32;

/// No value: the chunk was never written.
pub(super) const UNINITIALIZED: ExprId = 0;
/// The caller's input, still in place.
pub(super) const ORIGINAL_INPUT: ExprId = 1;

/// Leaves are computed from their numbers; only sums are stored.
const FIRST_LEAF: ExprId = 2;

/// All expressions of one run.
pub(super) struct Expressions {
    ranks: usize,
    chunks_per_share: u32,
    /// Input chunks of a rank, at most.
    stride: u32,
    /// True if the shares of ranks may have different lengths.
    uneven: bool,
    first_node: ExprId,
    nodes: Vec<Node>,
    operands: Vec<ExprId>,
    pair_ids: HashMap<u64, ExprId, MixBuildHasher>,
    sum_ids: HashMap<Box<[ExprId]>, ExprId>,
    /// For each rank, the number of the last inspection that met its input.
    last_seen: Vec<u32>,
    inspections: u32,
}

#[derive(Clone, Copy)]
struct Node {
    kind: NodeKind,
    length: u32,
    /// Smallest rank whose input is in it.
    min_rank: u32,
    hash: u64,
}

#[derive(Clone, Copy)]
enum NodeKind {
    Sum { start: u32, operands: u32 },
    Finished(ExprId),
}

impl Expressions {
    /// The inputs of all ranks: `stride` chunks each.
    pub(super) fn new(collective: Collective, ranks: usize, parts: usize, stride: usize) -> Self {
        let stride = stride.max(1);
        Self {
            ranks,
            chunks_per_share: parts as u32,
            stride: stride as u32,
            uneven: collective == Collective::AllGather,
            first_node: FIRST_LEAF + (ranks * stride) as ExprId,
            nodes: Vec::new(),
            operands: Vec::new(),
            pair_ids: HashMap::default(),
            sum_ids: HashMap::new(),
            last_seen: vec![0; ranks],
            inspections: 0,
        }
    }

    /// The input chunk `index` of `rank`.
    pub(super) fn leaf(&self, rank: Rank, index: usize) -> ExprId {
        FIRST_LEAF + rank as ExprId * self.stride + index as ExprId
    }

    /// `operand ⊕ other`.
    pub(super) fn pair(&mut self, operand: ExprId, other: ExprId) -> ExprId {
        let key = key(operand.min(other), operand.max(other));
        if let Some(&value) = self.pair_ids.get(&key) {
            return value;
        }
        let value = self.add(&[operand.min(other), operand.max(other)]);
        self.pair_ids.insert(key, value);
        value
    }

    /// `operands[0] ⊕ operands[1] ⊕ …` in one pass.
    pub(super) fn sum(&mut self, operands: &[ExprId]) -> ExprId {
        match *operands {
            [] => UNINITIALIZED,
            [only] => only,
            [first, second] => self.pair(first, second),
            _ => {
                if let Some(&value) = self.sum_ids.get(operands) {
                    return value;
                }
                let value = self.add(operands);
                self.sum_ids.insert(operands.into(), value);
                value
            }
        }
    }

    /// The finished `value`.
    pub(super) fn finished(&mut self, value: ExprId) -> ExprId {
        // Distinct from every pair of operands, none of which is empty.
        if let Some(&finished) = self.pair_ids.get(&key(UNINITIALIZED, value)) {
            return finished;
        }
        let hash = mix(self.hash(value) ^ GOLDEN_GAMMA);
        let node = Node {
            kind: NodeKind::Finished(value),
            length: self.length(value),
            min_rank: self.min_rank(value),
            hash,
        };
        let finished = self.push(node);
        self.pair_ids.insert(key(UNINITIALIZED, value), finished);
        finished
    }

    /// The length class of the value: equal numbers mean equal lengths.
    pub(super) fn length(&self, value: ExprId) -> u32 {
        match self.node(value) {
            Some(node) => node.length,
            None => {
                let (rank, index) = self.input_of(value);
                self.length_of(rank, index)
            }
        }
    }

    /// The length class of chunk `index` among the chunks of the shares of `rank`.
    ///
    /// A share's last part may be shorter than the others. All shares are equally long, except
    /// that an all_gather may be given another length for each rank.
    pub(super) fn length_of(&self, rank: Rank, index: usize) -> u32 {
        let part = index as u32 % self.chunks_per_share;
        if self.uneven { rank as u32 * self.chunks_per_share + part } else { part }
    }

    /// Checks that `value` is finished and has input chunk `index` of every rank exactly once.
    pub(super) fn check_complete_sum(
        &mut self,
        value: ExprId,
        index: impl Fn(Rank) -> usize,
    ) -> Result<(), OutputError> {
        let Some(Node { kind: NodeKind::Finished(sum), .. }) = self.node(value).copied() else {
            return Err(OutputError::NotFinished);
        };
        self.check_sum(sum, self.ranks, index)
    }

    /// Checks that `value` is not finished and has input chunk `index` of each of the first `ranks`
    /// ranks exactly once.
    pub(super) fn check_prefix_sum(
        &mut self,
        value: ExprId,
        ranks: usize,
        index: usize,
    ) -> Result<(), OutputError> {
        self.check_sum(value, ranks, |_| index)
    }

    /// Checks that `value` is the sum of the first `ranks` ranks, no part of which is finished.
    fn check_sum(
        &mut self,
        value: ExprId,
        ranks: usize,
        index: impl Fn(Rank) -> usize,
    ) -> Result<(), OutputError> {
        self.inspections += 1;
        let (mut met, mut open) = (0, vec![value]);
        while let Some(value) = open.pop() {
            match self.node(value).map(|node| node.kind) {
                Some(NodeKind::Finished(_)) => return Err(OutputError::FinishedTooEarly),
                Some(NodeKind::Sum { start, operands }) => {
                    open.extend_from_slice(&self.operands[start as usize..(start + operands) as usize]);
                }
                None => {
                    let (rank, found) = self.input_of(value);
                    if rank >= ranks || found != index(rank) {
                        return Err(OutputError::ForeignInput(rank));
                    }
                    // Also what ends the walk through a value that doubles and doubles.
                    if std::mem::replace(&mut self.last_seen[rank], self.inspections) == self.inspections {
                        return Err(OutputError::DuplicateInput(rank));
                    }
                    met += 1;
                }
            }
        }
        match (met < ranks).then(|| self.last_seen[..ranks].iter().position(|&met| met != self.inspections)) {
            Some(Some(rank)) => Err(OutputError::MissingInput(rank)),
            _ => Ok(()),
        }
    }

    /// Returns whether values contain `leaf`, as a function of the value.
    pub(super) fn containing(&self, leaf: ExprId) -> impl Fn(ExprId) -> bool + use<> {
        let first_node = self.first_node;
        let mut nodes = vec![false; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let contains = |value: ExprId| match value.checked_sub(first_node) {
                Some(earlier) => nodes[earlier as usize],
                None => value == leaf,
            };
            // Operands are older than their sum, so one pass finds all.
            nodes[index] = match node.kind {
                NodeKind::Finished(value) => contains(value),
                NodeKind::Sum { start, operands } => {
                    let operands = &self.operands[start as usize..(start + operands) as usize];
                    operands.iter().any(|&operand| contains(operand))
                }
            };
        }
        move |value| match value.checked_sub(first_node) {
            Some(node) => nodes[node as usize],
            None => value == leaf,
        }
    }

    /// A hash of the expression itself: equal in every run that forms it.
    pub(super) fn hash(&self, value: ExprId) -> u64 {
        match self.node(value) {
            Some(node) => node.hash,
            None => {
                let (rank, index) = self.input_of(value);
                mix(mix(rank as u64) ^ index as u64)
            }
        }
    }

    /// The order of summation, as ranks: `((0+1)+(2+3))`.
    pub(super) fn expression(&self, value: ExprId) -> String {
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
                    let _ = write!(text, "{}", self.min_rank(value));
                }
                Some(NodeKind::Finished(value)) => open.push(Token::Value(value)),
                Some(NodeKind::Sum { start, operands }) => {
                    let mut operands = self.operands[start as usize..(start + operands) as usize].to_vec();
                    if operands.len() == 2 {
                        operands.sort_by_key(|&operand| self.min_rank(operand));
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

    fn add(&mut self, operands: &[ExprId]) -> ExprId {
        let hashes = operands.iter().map(|&operand| self.hash(operand));
        // A pair has no order, because both orders have the same bits. So its hash is a sum of
        // hashes.
        let hash = match operands.len() {
            2 => mix(hashes.fold(0, u64::wrapping_add)),
            _ => hashes.fold(LIST_SALT, |hash, operand| mix(hash.rotate_left(5) ^ operand)),
        };
        let least = operands.iter().map(|&operand| self.min_rank(operand)).min().unwrap_or(0);
        let kind = NodeKind::Sum { start: self.operands.len() as u32, operands: operands.len() as u32 };
        let length = self.length(operands[0]);
        self.operands.extend_from_slice(operands);
        self.push(Node { kind, length, min_rank: least, hash })
    }

    fn push(&mut self, node: Node) -> ExprId {
        self.nodes.push(node);
        self.first_node + (self.nodes.len() - 1) as ExprId
    }

    fn node(&self, value: ExprId) -> Option<&Node> {
        value.checked_sub(self.first_node).map(|index| &self.nodes[index as usize])
    }

    fn min_rank(&self, value: ExprId) -> u32 {
        match self.node(value) {
            Some(node) => node.min_rank,
            None => (value - FIRST_LEAF) / self.stride,
        }
    }

    /// The rank and index of a leaf.
    fn input_of(&self, leaf: ExprId) -> (Rank, usize) {
        let leaf = leaf - FIRST_LEAF;
        ((leaf / self.stride) as Rank, (leaf % self.stride) as usize)
    }
}

fn key(first: ExprId, second: ExprId) -> u64 {
    u64::from(first) << 32 | u64::from(second)
}

/// Hashes one integer. These maps are read at every step, and no adversary chooses their keys.
type MixBuildHasher = BuildHasherDefault<MixHasher>;

#[derive(Default)]
struct MixHasher(u64);

impl Hasher for MixHasher {
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
    Value(ExprId),
}

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
const LIST_SALT: u64 = 0xd1b5_4a32_d192_ed03;

/// Spreads the bits of `x` (the finaliser of splitmix64).
pub(super) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_add(GOLDEN_GAMMA).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Expressions {
        Expressions::new(Collective::AllReduce, 4, 1, 1)
    }

    #[test]
    fn expressions_equal_sums_share_an_id() {
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
    fn complete_sum_needs_each_input_exactly_once() {
        let mut values = values();
        let [a, b, c, d] = [0, 1, 2, 3].map(|rank| values.leaf(rank, 0));
        let (low, high) = (values.pair(a, b), values.pair(c, d));
        let sum = values.pair(high, low);
        assert_eq!(values.check_complete_sum(sum, |_| 0), Err(OutputError::NotFinished));
        let finished = values.finished(sum);
        assert_eq!(values.check_complete_sum(finished, |_| 0), Ok(()));
        assert!(matches!(values.check_complete_sum(finished, |_| 1), Err(OutputError::ForeignInput(_))));
        assert_eq!(values.expression(finished), "((0+1)+(2+3))");
        let finished = values.finished(low);
        assert_eq!(values.check_complete_sum(finished, |_| 0), Err(OutputError::MissingInput(2)));
        let twice = values.sum(&[a, b, b, c, d]);
        let finished = values.finished(twice);
        assert_eq!(values.check_complete_sum(finished, |_| 0), Err(OutputError::DuplicateInput(1)));
        let early = values.pair(finished, a);
        let finished = values.finished(early);
        assert!(values.check_complete_sum(finished, |_| 0).is_err());
    }

    #[test]
    fn prefix_sum_has_the_ranks_below_and_is_not_finished() {
        let mut values = values();
        let [a, b, c] = [0, 1, 2].map(|rank| values.leaf(rank, 0));
        let low = values.pair(a, b);
        assert_eq!(values.check_prefix_sum(a, 1, 0), Ok(()));
        assert_eq!(values.check_prefix_sum(low, 2, 0), Ok(()));
        assert_eq!(values.check_prefix_sum(low, 1, 0), Err(OutputError::ForeignInput(1)));
        assert_eq!(values.check_prefix_sum(low, 3, 0), Err(OutputError::MissingInput(2)));
        assert_eq!(values.check_prefix_sum(low, 2, 1), Err(OutputError::ForeignInput(1)));
        let gap = values.pair(a, c);
        assert_eq!(values.check_prefix_sum(gap, 2, 0), Err(OutputError::ForeignInput(2)));
        let finished = values.finished(low);
        assert_eq!(values.check_prefix_sum(finished, 2, 0), Err(OutputError::FinishedTooEarly));
    }
}
