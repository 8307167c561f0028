pub(crate) mod failures;

use crate::tensor_parallel::*;
use unisono_nn::allocator::Allocator;
use unisono_nn::modules::random_values;
use unisono_nn::ops::Operand;
use unisono_nn::parameter::Init;
use unisono_nn::parameter::Inventory;
use unisono_nn::pass::Seeds;
use unisono_nn::strategy::LocalStrategy;
use unisono_nn::testing::run_ranks;

/// Returns the output and gradient of `make`'s module, for an input and an output gradient of
/// `rows` × `columns` that are equal on all ranks.
fn forward_and_backward<M: Module>(
    rows: usize,
    columns: usize,
    make: impl FnOnce(&mut Registry) -> M,
) -> [Vec<f32>; 2] {
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let (_, module) = registry.unit("m", make);
    let mut strategy = LocalStrategy::new(registry.finish(), &memory, 3);
    let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
    let input = Tensor::from_slice(&memory, rows, columns, &random_values(1, rows * columns));
    let output = module.forward(&mut pass, input).unwrap();
    let slope = random_values(2, output.data().len());
    let slope = Tensor::from_slice(&memory, output.rows(), output.columns(), &slope);
    let gradient = module.backward(&mut pass, slope).unwrap();
    [output.data().to_vec(), gradient.data().to_vec()]
}

#[test]
fn copy_and_reduce_regions_are_conjugate() {
    run_ranks(3, |group| {
        let rank = group.rank();
        let region = |sequence, enters: bool| {
            let split = TensorParallel::new(Some(group.clone().into()), sequence, ParallelPlan::default());
            forward_and_backward(6, 2, |_| -> Box<dyn Module> {
                if enters { Box::new(split.copy_to_region()) } else { Box::new(split.reduce_from_region()) }
            })
        };
        let (input, slope) = (random_values(1, 12), random_values(2, 12));
        let thrice = |values: &[f32]| values.iter().map(|x| x + x + x).collect::<Vec<_>>();
        assert_eq!(region(false, true), [input.clone(), thrice(&slope)]);
        assert_eq!(region(false, false), [thrice(&input), slope.clone()]);
        let [gathered, mine] = region(true, true);
        assert_eq!(gathered, [&input[..], &input, &input].concat());
        assert_eq!(mine, thrice(&random_values(2, 36)[12 * rank..][..12]));
        let [mine, gathered] = region(true, false);
        assert_eq!(mine, thrice(&input[4 * rank..][..4]));
        assert_eq!(gathered, [&slope[..4], &slope[..4], &slope[..4]].concat());
    });
}

/// Example from the module documentation: a gain per feature, between a column-sharded and a
/// row-sharded layer.
struct Gains(unisono_nn::parameter::ParameterId);

impl Gains {
    fn new(registry: &mut Registry, split: &TensorParallel, features: usize) -> Self {
        let gains = Parameter::new("gain", &[features], Init::Normal(1.0));
        let gains = split.shard(0, features, 1, 1).into_iter().fold(gains, Parameter::with_shard);
        Self(registry.add(gains))
    }
}

impl Module for Gains {
    fn forward(&self, pass: &mut Pass<'_>, mut input: Tensor) -> Result<Tensor> {
        let (columns, kept) = (input.columns(), input.copy()?);
        for row in input.data_mut().chunks_exact_mut(columns) {
            row.iter_mut().zip(pass.weights(self.0)).for_each(|(x, gain)| *x *= gain);
        }
        pass.save(kept);
        Ok(input)
    }

    fn backward(&self, pass: &mut Pass<'_>, mut gradient: Tensor) -> Result<Tensor> {
        let input: Tensor = pass.restore();
        let columns = input.columns();
        pass.accumulate(self.0, |_, sum| {
            let sum = sum.host();
            for (x, dy) in input.data().chunks_exact(columns).zip(gradient.data().chunks_exact(columns)) {
                sum.iter_mut().zip(x.iter().zip(dy)).for_each(|(sum, (x, dy))| *sum += x * dy);
            }
            Ok(())
        })?;
        for row in gradient.data_mut().chunks_exact_mut(columns) {
            row.iter_mut().zip(pass.weights(self.0)).for_each(|(dy, gain)| *dy *= gain);
        }
        Ok(gradient)
    }
}

fn layer(registry: &mut Registry, split: &TensorParallel) -> Sequential {
    let first = registry.scope("into", |r| split.linear(r, 4, 10, LinearInit::fan_in(4)));
    let gains = registry.scope("gains", |r| Gains::new(r, split, 10));
    let last = registry.scope("out", |r| split.linear(r, 10, 4, LinearInit::fan_in(10)));
    Sequential(vec![first, Box::new(gains), last])
}

fn plan() -> ParallelPlan {
    ParallelPlan::new([
        ("*.into", ParallelStyle::Column { blocks: 1, grain: 1 }),
        ("m.out", ParallelStyle::Row { grain: 1 }),
    ])
}

#[test]
fn sharded_layer_matches_unsharded() {
    let [reference, slope] =
        forward_and_backward(6, 4, |registry| layer(registry, &TensorParallel::default()));
    for parts in [2, 3, 4] {
        for [output, gradient] in run_ranks(parts, |group| {
            let split = TensorParallel::new(Some(group.into()), false, plan());
            forward_and_backward(6, 4, |registry| layer(registry, &split))
        }) {
            let is_near =
                |left: &[f32], right: &[f32]| left.iter().zip(right).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(is_near(&output, &reference) && is_near(&gradient, &slope), "{parts} parts");
        }
    }
}

/// Returns the output of `make`'s module, for an input that is equal on all ranks.
fn forward<M: Module>(rows: usize, columns: usize, make: impl FnOnce(&mut Registry) -> M) -> Vec<f32> {
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let (_, module) = registry.unit("m", make);
    let mut strategy = LocalStrategy::new(registry.finish(), &memory, 3);
    let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
    let input = Tensor::from_slice(&memory, rows, columns, &random_values(1, rows * columns));
    module.forward(&mut pass, input).unwrap().data().to_vec()
}

/// Returns the features `range` of each row.
fn columns_of(rows: &[f32], columns: usize, range: std::ops::Range<usize>) -> Vec<f32> {
    rows.chunks_exact(columns).flat_map(|row| &row[range.clone()]).copied().collect()
}

#[test]
fn column_parallel_outputs_are_slices_of_the_whole() {
    let plan = || ParallelPlan::new([("m", ParallelStyle::Column { blocks: 1, grain: 1 })]);
    for (inputs, outputs) in [(8, 12), (33, 60), (256, 192)] {
        let outputs_of = |split: &TensorParallel| {
            forward(6, inputs, |r| split.linear(r, inputs, outputs, LinearInit::fan_in(inputs)))
        };
        let reference = outputs_of(&TensorParallel::default());
        for parts in [2, 3, 4] {
            let each = run_ranks(parts, |group| {
                let start = group.traffic_stats().unwrap().bytes;
                let split = TensorParallel::new(Some(group.clone().into()), false, plan());
                (outputs_of(&split), group.traffic_stats().unwrap().bytes - start)
            });
            let width = outputs / parts;
            for (rank, (output, sent)) in each.into_iter().enumerate() {
                let slice = columns_of(&reference, outputs, rank * width..(rank + 1) * width);
                // Kernels round the columns at the edge of a matrix in another order.
                let most = if width.is_multiple_of(16) { 0.0 } else { 1e-6 };
                let is_near = |(left, right): (&f32, &f32)| (left - right).abs() <= most;
                let what = format!("rank {rank} of {parts}, {inputs} x {outputs}");
                assert!(output.len() == slice.len() && output.iter().zip(&slice).all(is_near), "{what}");
                assert_eq!(sent, 0, "forward sends nothing");
            }
        }
    }
}

#[test]
fn unmatched_plan_rule_suggests_names() {
    let split =
        TensorParallel::new(None, false, ParallelPlan::new([("m.int", ParallelStyle::Row { grain: 1 })]));
    let mut registry = Registry::default();
    registry.unit("m", |registry| layer(registry, &split));
    let error = split.check().unwrap_err().to_string();
    assert!(error.contains("`m.int`") && error.contains("near are `m.into`, `m.out`"), "{error}");
}

#[test]
fn indivisible_rows_are_rejected_with_numbers() {
    run_ranks(2, |group| {
        let (split, memory) =
            (TensorParallel::new(Some(group.into()), true, ParallelPlan::default()), Allocator::default());
        let mut strategy = LocalStrategy::new(Inventory::default(), &memory, 0);
        let pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        let error = split.row_range(&pass, 7).unwrap_err().to_string();
        assert!(error.contains("7 rows") && error.contains("2 equal parts"), "{error}");
    });
}
