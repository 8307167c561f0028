//! Muon against the same formulas in 64 bits.

use super::*;
use crate::data_parallel::{ParallelKind, ProcessGroups, Settings, new_strategy};
use crate::testing::{collect_shards, merge_shards};
use std::sync::Arc;
use unisono_nn::allocator::{AllocClass, Allocator};
use unisono_nn::modules::{random_values, to_f64};
use unisono_nn::parameter::{Init, Inventory, ParameterId, Registry, UnitId};
use unisono_nn::step_plan::{Direction, StepPlan};
use unisono_nn::testing::run_ranks;

/// Dense matrix in 64 bits, row by row.
#[derive(Clone)]
struct Wide {
    rows: usize,
    columns: usize,
    values: Vec<f64>,
}

impl Wide {
    fn new(rows: usize, columns: usize, value: impl Fn(usize, usize) -> f64) -> Self {
        let values = (0..rows * columns).map(|index| value(index / columns, index % columns)).collect();
        Self { rows, columns, values }
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.values[row * self.columns + column]
    }

    fn transposed(&self) -> Self {
        Self::new(self.columns, self.rows, |row, column| self.at(column, row))
    }

    fn times(&self, other: &Self) -> Self {
        Self::new(self.rows, other.columns, |row, column| {
            (0..self.columns).map(|inner| self.at(row, inner) * other.at(inner, column)).sum()
        })
    }

    fn scaled(&self, factor: f64) -> Self {
        Self::new(self.rows, self.columns, |row, column| factor * self.at(row, column))
    }

    fn plus(&self, other: &Self) -> Self {
        Self::new(self.rows, self.columns, |row, column| self.at(row, column) + other.at(row, column))
    }

    fn norm(&self) -> f64 {
        self.values.iter().map(|x| x * x).sum::<f64>().sqrt()
    }

    fn to_f32(&self) -> Vec<f32> {
        self.values.iter().map(|x| *x as f32).collect()
    }
}

/// Five iterations X ← aX + bAX + cA²X with A = XXᵀ, as published, from a matrix of norm one.
fn newton_schulz(matrix: &Wide) -> Wide {
    if matrix.rows > matrix.columns {
        return newton_schulz(&matrix.transposed()).transposed();
    }
    let mut x = matrix.scaled(1.0 / (matrix.norm() + 1e-7));
    for _ in 0..5 {
        let a = x.times(&x.transposed());
        let ax = a.times(&x);
        x = x.scaled(3.4445).plus(&ax.scaled(-4.775)).plus(&a.times(&ax).scaled(2.0315));
    }
    x
}

/// Returns an orthogonal matrix: a product of reflections.
fn orthogonal(seed: u64, extent: usize) -> Wide {
    let unit = Wide::new(extent, extent, |row, column| f64::from(u8::from(row == column)));
    (0..3).fold(unit, |product, number| {
        let axis = to_f64(&random_values(seed + number, extent));
        let squares: f64 = axis.iter().map(|x| x * x).sum();
        let mirror = Wide::new(extent, extent, |row, column| {
            f64::from(u8::from(row == column)) - 2.0 * axis[row] * axis[column] / squares
        });
        product.times(&mirror)
    })
}

/// Rows and columns of wide, tall and square matrices.
const SHAPES: [(usize, usize); 5] = [(6, 24), (24, 6), (16, 16), (1, 9), (33, 70)];

fn farthest(found: &[f32], expected: &Wide) -> f64 {
    let apart = to_f64(found).into_iter().zip(&expected.values).map(|(left, right)| (left - right).abs());
    apart.fold(0.0, f64::max)
}

#[test]
fn orthogonalization_is_the_published_iteration() {
    for (number, (rows, columns)) in SHAPES.into_iter().enumerate() {
        for size in [1e-3, 1.0, 1e4] {
            let values = random_values(10 + number as u64, rows * columns);
            let matrix =
                Wide::new(rows, columns, |row, column| f64::from(values[row * columns + column] * size));
            let mut found = matrix.to_f32();
            orthogonalize(&mut found, rows, columns);
            let apart = farthest(&found, &newton_schulz(&matrix));
            assert!(apart < 2e-5, "{rows} x {columns} of size {size}: {apart:e}");
        }
    }
}

/// With known singular vectors, the result is diagonal in their basis, and near one there.
#[test]
fn singular_values_approach_one_and_vectors_stay() {
    for (rows, columns) in SHAPES {
        let short = rows.min(columns);
        let (left, right) = (orthogonal(1, rows), orthogonal(5, columns));
        // From 1 to 3 times the smallest: well conditioned.
        let value = |index: usize| 1.0 + 2.0 * index as f64 / short as f64;
        let middle = |value_of: &dyn Fn(usize) -> f64| {
            Wide::new(rows, columns, |row, column| if row == column { value_of(row) } else { 0.0 })
        };
        let mut found = left.times(&middle(&value)).times(&right.transposed()).to_f32();
        orthogonalize(&mut found, rows, columns);
        let found = Wide::new(rows, columns, |row, column| f64::from(found[row * columns + column]));
        let basis = left.transposed().times(&found).times(&right);
        for row in 0..rows {
            for column in 0..columns {
                let entry = basis.at(row, column);
                if row == column {
                    assert!((0.65..1.25).contains(&entry), "{rows} x {columns}: {entry} at {row}");
                } else {
                    assert!(entry.abs() < 2e-5, "{rows} x {columns}: {entry} at {row}, {column}");
                }
            }
        }
    }
}

const STEPS: u64 = 4;
const RATE: f64 = 0.02;

fn matrices() -> Arc<Inventory> {
    let mut registry = Registry::default();
    for (number, (rows, columns)) in SHAPES.into_iter().enumerate() {
        let name = format!("h.{number}");
        registry.unit(&name, |r| r.add(Parameter::new("weight", &[rows, columns], Init::Normal(0.5))));
    }
    Arc::new(registry.finish())
}

fn gradient(rank: usize, number: u64, id: ParameterId, count: usize) -> Vec<f32> {
    random_values(1000 * (rank as u64 + 1) + 10 * number + id.0 as u64, count)
}

/// Trains with gradients that differ by rank. Returns bits of the weights and moments, and the
/// bytes of the optimizer's state.
fn train(kind: ParallelKind, ranks: usize) -> (crate::testing::Bits, Vec<usize>) {
    let inventory = matrices();
    let of_rank = |group: unisono::Communicator| {
        let (memory, rank) = (Allocator::default(), group.rank());
        let settings = Settings { shard_by_rows: true, ..Settings::default() };
        let team = ProcessGroups::data_only(Some(group));
        let mut strategy = new_strategy(kind, &inventory, team, &settings, &memory).unwrap();
        for number in 1..=STEPS {
            strategy.begin_step(&StepPlan::depth_first(inventory.units.len(), 1)).unwrap();
            for unit in (0..inventory.units.len()).rev().map(UnitId) {
                strategy.pre_unit(unit, Direction::Backward).unwrap();
                let id = ParameterId(unit.0);
                let (_, sum) = strategy.weights_and_gradient(id).unwrap();
                sum.copy_from_slice(&gradient(rank, number, id, sum.len()));
                strategy.grad_ready(id).unwrap();
                strategy.post_unit(unit, Direction::Backward).unwrap();
            }
            strategy.finish_backward().unwrap();
            let step = Step { number, lr: RATE as f32, grad_scale: 0.5 };
            strategy.optimizer_step(&Muon::default(), &step).unwrap();
        }
        (collect_shards(&mut *strategy, &inventory), memory.usage(AllocClass::Optimizer).current)
    };
    let (bits, state) = run_ranks(ranks, of_rank).into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
    (merge_shards(bits), state)
}

/// Computes the weights after all steps in 64 bits, by the formulas of both papers.
fn reference(id: ParameterId, ranks: usize) -> Wide {
    let (rows, columns) = SHAPES[id.0];
    let (inventory, mut start) = (matrices(), vec![0.0; rows * columns]);
    inventory[id].initialize(Settings::default().seed, 0..rows * columns, &mut start);
    let wide = |values: &[f64]| Wide::new(rows, columns, |row, column| values[row * columns + column]);
    let (mut weight, mut moment) = (wide(&to_f64(&start)), wide(&vec![0.0; rows * columns]));
    for number in 1..=STEPS {
        let sum = (0..ranks).fold(moment.scaled(0.0), |sum, rank| {
            sum.plus(&wide(&to_f64(&gradient(rank, number, id, rows * columns))))
        });
        let clipped = sum.scaled(0.5 / ranks as f64);
        moment = moment.scaled(0.95).plus(&clipped);
        let direction = newton_schulz(&clipped.plus(&moment.scaled(0.95)));
        let length = 0.2 * (rows.max(columns) as f64).sqrt();
        weight = weight.scaled(1.0 - RATE * 0.1).plus(&direction.scaled(-RATE * length));
    }
    weight
}

#[test]
fn steps_are_those_of_64_bits_with_every_division() {
    for (kind, ranks) in [
        (ParallelKind::Replicated, 1),
        (ParallelKind::Replicated, 2),
        (ParallelKind::Zero1, 2),
        (ParallelKind::Zero2, 3),
        (ParallelKind::Zero3, 2),
    ] {
        let (bits, state) = train(kind, ranks);
        for id in (0..SHAPES.len()).map(ParameterId) {
            let found = bits
                .iter()
                .filter(|((parameter, _), _)| *parameter == id)
                .map(|(_, bits)| f32::from_bits(bits[0]));
            let apart = farthest(&found.collect::<Vec<_>>(), &reference(id, ranks));
            // A step moves weights by up to 0.02 times the scale of a row.
            assert!(apart < 2e-6, "{kind:?}, {ranks} ranks, {:?}: {apart:e}", SHAPES[id.0]);
        }
        let settings = Settings { shard_by_rows: true, ..Settings::default() };
        let count = settings.layout(kind, &matrices(), ranks).count();
        let parts = if kind == ParallelKind::Replicated { 1 } else { ranks };
        assert_eq!(state, vec![4 * count / parts; ranks], "one moment, divided over the ranks");
    }
}

#[test]
fn embeddings_and_vectors_use_adamw() {
    let takes =
        |name: &str, shape: &[usize]| Muon::default().applies_to(&Parameter::new(name, shape, Init::Zeros));
    assert!(takes("h.0.mlp.c_fc.weight", &[8, 4]) && !takes("h.0.mlp.c_fc.bias", &[8]));
    assert!(!takes("wte.weight", &[8, 4]) && !takes("lm_head.weight", &[8, 4]));
}
