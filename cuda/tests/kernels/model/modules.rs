//! Functions of elements and rows, against formulas in f64.

use super::{Memory, bits, device, near, numbers, row, wide};
use crate::emulator::Device;
use std::f64::consts::{FRAC_2_PI, PI};
use unisono_cuda::device::model::{
    CrossEntropy, Dropout, Elementwise, EmbeddingLookup, Gated, Normalize, Rows, ShardedCrossEntropy,
};

/// An activation function and its derivative.
type Function = (&'static str, fn(f64) -> f64);

/// Functions of numbers on both sides of 0, by formulas and by their differences.
const FUNCTIONS: [Function; 2] = [("gelu_tanh", gelu_tanh), ("gelu_exact", gelu_exact)];

fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + (FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// With the normal distribution by Simpson's rule.
fn gelu_exact(x: f64) -> f64 {
    let (steps, density) = (400, |x: f64| (-0.5 * x * x).exp() / (2.0 * PI).sqrt());
    let step = x / f64::from(steps);
    let weight = |index: i32| if index == 0 || index == steps { 1.0 } else { f64::from(2 + 2 * (index % 2)) };
    let integral: f64 = (0..=steps).map(|index| weight(index) * density(step * f64::from(index))).sum();
    x * (0.5 + integral * step / 3.0)
}

fn slope(f: fn(f64) -> f64, x: f64) -> f64 {
    (f(x + 1e-5) - f(x - 1e-5)) / 2e-5
}

#[test]
fn functions_of_elements_are_the_formulas() {
    let Some(device) = device("model-elements.so", &["elements"]) else { return };
    for (turn, length) in [0, 1, 5, 63, 700].into_iter().enumerate() {
        let x: Vec<f32> = numbers(1, length).iter().map(|x| 6.0 * x).collect();
        let dy = numbers(2, length);
        for (kernel, f) in FUNCTIONS {
            let y: Vec<f64> = x.iter().map(|x| f(f64::from(*x))).collect();
            near(&mapped(&device, kernel, turn % 3, &x, &x, [0.0; 2]), &y, 1e-6, kernel);
            let slopes: Vec<f64> =
                x.iter().zip(&dy).map(|(x, dy)| slope(f, f64::from(*x)) * f64::from(*dy)).collect();
            let kernel = format!("{kernel}_backward");
            near(&mapped(&device, &kernel, turn % 3, &x, &dy, [0.0; 2]), &slopes, 2e-6, &kernel);
        }
        let sums: Vec<f32> = x.iter().zip(&dy).map(|(x, dy)| x * 0.5 + dy * -2.0).collect();
        let found = mapped(&device, "weighted_sum", turn % 3, &x, &dy, [0.5, -2.0]);
        assert!(bits(&found) == bits(&sums), "weighted_sum of {length}");
    }
    dropout(&device);
    swiglu(&device);
}

/// In the place of `second`.
fn mapped(
    device: &Device,
    kernel: &str,
    skew: usize,
    first: &[f32],
    second: &[f32],
    factors: [f32; 2],
) -> Vec<f32> {
    let (first, second) = (Memory::of(device, skew, first), Memory::of(device, skew, second));
    let count = first.count as u64;
    let arguments = Elementwise { to: second.at(), one: first.at(), other: second.at(), count, factors };
    device.run(kernel, &arguments, 2, 32).unwrap();
    first.read::<f32>();
    second.read()
}

fn dropout(device: &Device) {
    let drop = |key: [u32; 2], skew: usize| {
        let values = Memory::of(device, skew, &[1.0f32; 4001]);
        let least = 1 << 30;
        let arguments = Dropout { values: values.at(), count: 4001, key, least, factor: 4.0 / 3.0 };
        device.run("dropout", &arguments, 2, 32).unwrap();
        values.read::<f32>()
    };
    let dropped = drop([3, 4], 0);
    let zeros = dropped.iter().filter(|value| **value == 0.0).count();
    assert!((850..1150).contains(&zeros), "{zeros} of a quarter of 4001");
    assert!(dropped.iter().all(|value| [0.0, 4.0 / 3.0].contains(value)));
    assert!(dropped == drop([3, 4], 1), "by index, not by address");
    assert!(dropped != drop([3, 5], 0));
}

fn swiglu(device: &Device) {
    let (rows, width) = (5, 7);
    let (x, dy) = (numbers(3, 2 * rows * width), numbers(4, rows * width));
    let (input, output, of_output) =
        (Memory::of(device, 0, &x), Memory::of(device, 0, &dy), Memory::of(device, 0, &dy));
    let mut arguments =
        Gated { wide: input.at(), narrow: output.at(), rows: rows as u64, width: width as u64 };
    device.run("swiglu", &arguments, 2, 32).unwrap();
    arguments.narrow = of_output.at();
    device.run("swiglu_backward", &arguments, 2, 32).unwrap();
    let (x, dy) = (wide(&x), wide(&dy));
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let gate = |row: usize, column: usize| (x[row * 2 * width + column], x[row * 2 * width + width + column]);
    let (mut y, mut slopes) = (Vec::new(), vec![0.0; x.len()]);
    for (row, column) in (0..rows).flat_map(|row| (0..width).map(move |column| (row, column))) {
        let ((gate, up), dy) = (gate(row, column), dy[row * width + column]);
        y.push(silu(gate) * up);
        slopes[row * 2 * width + column] = dy * up * slope(silu, gate);
        slopes[row * 2 * width + width + column] = dy * silu(gate);
    }
    near(&output.read::<f32>(), &y, 1e-6, "swiglu");
    near(&input.read::<f32>(), &slopes, 2e-6, "swiglu_backward");
    of_output.read::<f32>();
}

#[test]
fn functions_of_rows_are_the_formulas() {
    let Some(device) = device("model-rows.so", &["rows", "loss"]) else { return };
    for (rows, width) in [(1, 1), (3, 19), (7, 40), (5, 100)] {
        biases(&device, rows, width);
        norm(&device, "layer_norm", rows, width);
        norm(&device, "rms_norm", rows, width);
        cross_entropy(&device, rows, width);
        cut_cross_entropy(&device, rows, width);
    }
    tables(&device);
}

fn biases(device: &Device, rows: usize, columns: usize) {
    let (bias, values) = (numbers(1, columns), numbers(2, rows * columns));
    let (matrix, vector) = (Memory::of(device, 0, &values), Memory::of(device, 0, &bias));
    let extents =
        |target, source| Rows { to: target, from: source, rows: rows as u64, columns: columns as u64 };
    device.run("add_rows", &extents(vector.at(), matrix.at()), 2, 64).unwrap();
    let sum = |column: usize| (0..rows).map(|row| f64::from(values[row * columns + column])).sum::<f64>();
    let sums: Vec<f64> = (0..columns).map(|column| f64::from(bias[column]) + sum(column)).collect();
    let more = Memory::of(device, 0, &values);
    device.run("add_to_rows", &extents(more.at(), vector.at()), 2, 32).unwrap();
    device.run("fill_rows", &extents(matrix.at(), vector.at()), 2, 32).unwrap();
    let vector = vector.read::<f32>();
    near(&vector, &sums, 1e-6, "add_rows");
    for (index, found) in more.read::<f32>().into_iter().enumerate() {
        assert_eq!(found, values[index] + vector[index % columns], "add_to_rows");
    }
    assert!(matrix.read::<f32>().chunks(columns).all(|row| row == vector));
}

/// Output, gradients of input and gain, of one row.
fn norm_of_row(kernel: &str, x: &[f64], gain: &[f64], bias: &[f64], dy: &[f64]) -> [Vec<f64>; 3] {
    let count = x.len() as f64;
    let centered = kernel == "layer_norm";
    let mean = if centered { x.iter().sum::<f64>() / count } else { 0.0 };
    let rate = 1.0 / (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count + 1e-5).sqrt();
    let normal: Vec<f64> = x.iter().map(|x| (x - mean) * rate).collect();
    let g: Vec<f64> = dy.iter().zip(gain).map(|(dy, gain)| dy * gain).collect();
    let level = if centered { g.iter().sum::<f64>() / count } else { 0.0 };
    let slope = g.iter().zip(&normal).map(|(g, x)| g * x).sum::<f64>() / count;
    let bias = |column: usize| if centered { bias[column] } else { 0.0 };
    let each = |f: &dyn Fn(usize) -> f64| (0..x.len()).map(f).collect();
    [
        each(&|column| normal[column] * gain[column] + bias(column)),
        each(&|column| (g[column] - level - normal[column] * slope) * rate),
        each(&|column| dy[column] * normal[column]),
    ]
}

fn norm(device: &Device, kernel: &str, rows: usize, width: usize) {
    let (x, dy) = (numbers(3, rows * width), numbers(4, rows * width));
    let vectors = [5, 6, 7].map(|seed| numbers(seed, width));
    let [gain, bias, of_gain] = [0, 1, 2].map(|index| Memory::of(device, 0, &vectors[index]));
    let (input, output) = (Memory::of(device, 0, &x), Memory::of(device, 0, &vec![f32::NAN; rows * width]));
    let (slopes, moments) = (Memory::of(device, 0, &dy), Memory::of(device, 0, &vec![f32::NAN; 2 * rows]));
    let mut arguments = Normalize {
        input: input.at(),
        values: output.at(),
        gain: gain.at(),
        bias: bias.at(),
        moments: moments.at(),
        of_gain: of_gain.at(),
        rows: rows as u64,
        width: width as u64,
        epsilon: 1e-5,
        unused: 0,
    };
    device.run(kernel, &arguments, 2, 32).unwrap();
    arguments.values = slopes.at();
    device.run(&format!("{kernel}_backward_gain"), &arguments, 2, 64).unwrap();
    device.run(&format!("{kernel}_backward"), &arguments, 2, 32).unwrap();
    let (x, dy, [gains, biases, mut sums]) = (wide(&x), wide(&dy), vectors.map(|vector| wide(&vector)));
    let (mut y, mut dx) = (Vec::new(), Vec::new());
    for index in 0..rows {
        let [of_row, back, terms] =
            norm_of_row(kernel, row(&x, width, index), &gains, &biases, row(&dy, width, index));
        y.extend(of_row);
        dx.extend(back);
        sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
    }
    // Alone in its row, a number is as far from the mean as rounding puts it.
    let tolerance = if width == 1 { 1e-3 } else { 5e-6 };
    near(&output.read::<f32>(), &y, tolerance, kernel);
    near(&slopes.read::<f32>(), &dx, tolerance, &format!("{kernel}_backward"));
    near(&of_gain.read::<f32>(), &sums, 1e-5, &format!("{kernel}_backward_gain"));
    [gain, bias, input, moments].into_iter().for_each(|memory| drop(memory.read::<f32>()));
}

fn cross_entropy(device: &Device, rows: usize, classes: usize) {
    let logits: Vec<f32> = numbers(8, rows * classes).iter().map(|x| 30.0 * x).collect();
    let ignored = u32::MAX;
    let targets: Vec<u32> =
        (0..rows).map(|row| if row == 1 { ignored } else { (row * 7 % classes) as u32 }).collect();
    let (memory, labels) = (Memory::of(device, 0, &logits), Memory::of(device, 0, &targets));
    let losses = Memory::of(device, 0, &vec![f32::NAN; rows]);
    take_losses(device, [&memory, &labels, &losses], rows, classes);
    let (found, slopes) = (losses.read::<f32>(), memory.read::<f32>());
    let wide = wide(&logits);
    for (index, target) in targets.iter().enumerate() {
        let x = row(&wide, classes, index);
        let sum: f64 = x.iter().map(|x| x.exp()).sum();
        let counts = f64::from(u8::from(*target != ignored));
        let loss = if *target == ignored { 0.0 } else { sum.ln() - x[*target as usize] };
        near(&found[index..=index], &[loss], 1e-6, "loss");
        let slope = |class: usize| x[class].exp() / sum - f64::from(u8::from(class == *target as usize));
        let expected: Vec<f64> = (0..classes).map(|class| 0.25 * counts * slope(class)).collect();
        near(&slopes[index * classes..][..classes], &expected, 2e-7, "slopes of logits");
    }
    labels.read::<u32>();
}

/// Turns logits into gradients, and `losses` into those of the rows.
fn take_losses(device: &Device, [logits, targets, losses]: [&Memory; 3], rows: usize, classes: usize) {
    let arguments = CrossEntropy {
        logits: logits.at(),
        targets: targets.at(),
        losses: losses.at(),
        rows: rows as u64,
        classes: classes as u64,
        share: 0.25,
        ignored: u32::MAX,
        ignores: 1,
        unused: 0,
    };
    device.run("cross_entropy", &arguments, 2, 32).unwrap();
}

/// The classes of two ranks, the second with padding, against those of one.
fn cut_cross_entropy(device: &Device, rows: usize, classes: usize) {
    let logits: Vec<f32> = numbers(8, rows * classes).iter().map(|x| 30.0 * x).collect();
    let (ignored, columns) = (u32::MAX, classes.div_ceil(2));
    let target = |row: usize| if row == 1 { ignored } else { (row * 7 % classes) as u32 };
    let memory = Memory::of(device, 0, &logits);
    let (labels, losses) = (
        Memory::of(device, 0, &(0..rows).map(target).collect::<Vec<_>>()),
        Memory::of(device, 0, &vec![0.0f32; rows]),
    );
    take_losses(device, [&memory, &labels, &losses], rows, classes);
    let (slopes, losses) = (wide(&memory.read::<f32>()), wide(&losses.read::<f32>()));
    labels.read::<u32>();
    let parts = [0, 1].map(|rank| part_of_classes(&logits, target, [rows, classes, columns, rank]));
    let stage = |kernel: &str, rank: usize, greatest: &[f32], sums: &[f32], logits: &[f32]| {
        let (labels, count) = (&parts[rank].1, classes.min((rank + 1) * columns) - rank * columns);
        let [logits, greatest, sums] = [logits, greatest, sums].map(|values| Memory::of(device, 0, values));
        let labels = Memory::of(device, 0, labels);
        let arguments = ShardedCrossEntropy {
            logits: logits.at(),
            targets: labels.at(),
            max: greatest.at(),
            sums_and_target_logits: sums.at(),
            rows: rows as u64,
            columns: columns as u64,
            count: count as u64,
            share: 0.25,
            ignored,
            ignores: 1,
            unused: 0,
        };
        device.run(kernel, &arguments, 2, 32).unwrap();
        labels.read::<u32>();
        [logits, greatest, sums].map(|memory| memory.read::<f32>())
    };
    let nothing = [vec![f32::NAN; rows], vec![f32::NAN; 2 * rows]];
    let join = |values: &[f32], other: &[f32], f: fn(f32, f32) -> f32| -> Vec<f32> {
        values.iter().zip(other).map(|(value, other)| f(*value, *other)).collect()
    };
    let [first, second] =
        [0, 1].map(|rank| stage("class_max", rank, &nothing[0], &nothing[1], &parts[rank].0));
    let greatest = join(&first[1], &second[1], f32::max);
    let powers = [0, 1].map(|rank| stage("class_exp", rank, &greatest, &nothing[1], &parts[rank].0));
    let sums = join(&powers[0][2], &powers[1][2], |value, second| value + second);
    for rank in [0, 1] {
        let [found, of_rows, _] = stage("class_backward", rank, &greatest, &sums, &powers[rank][0]);
        near(&of_rows, &losses, 2e-6, "losses of cut classes");
        for row in 0..rows {
            for (column, found) in found[row * columns..][..columns].iter().enumerate() {
                let class = rank * columns + column;
                let expected = if class < classes { slopes[row * classes + class] } else { 0.0 };
                near(&[*found], &[expected], 2e-7, "slopes of cut logits");
            }
        }
    }
}

/// A rank's logits, padded with what must not count, and the places of the targets there.
fn part_of_classes(
    logits: &[f32],
    target: impl Fn(usize) -> u32,
    [rows, classes, columns, rank]: [usize; 4],
) -> (Vec<f32>, Vec<u32>) {
    let (mut shard, mut places) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let class = |column: usize| rank * columns + column;
        let here = (0..columns).map(|column| logits[row * classes..][..classes].get(class(column)).copied());
        shard.extend(here.map(|logit| logit.unwrap_or(1e3)));
        let place =
            (0..columns).find(|&column| class(column) == target(row) as usize).unwrap_or(columns) as u32;
        places.push(if target(row) == u32::MAX { u32::MAX } else { place });
    }
    (shard, places)
}

fn tables(device: &Device) {
    // The last of them is elsewhere.
    let (count, width, elsewhere) = (5, 33, 7);
    let (table, indices) = (numbers(1, count * width), [4u32, 0, 4, 2, 2, 4, elsewhere]);
    let slopes = numbers(2, indices.len() * width);
    let (vectors, numbers) = (Memory::of(device, 0, &table), Memory::of(device, 0, &indices));
    let (rows, of_rows) = (Memory::of(device, 0, &slopes), Memory::of(device, 0, &slopes));
    let mut arguments = EmbeddingLookup {
        table: vectors.at(),
        indices: numbers.at(),
        rows: rows.at(),
        count: indices.len() as u64,
        width: width as u64,
        ignored: elsewhere,
        ignores: 1,
    };
    device.run("embed", &arguments, 2, 32).unwrap();
    arguments.rows = of_rows.at();
    device.run("embed_backward", &arguments, 2, 32).unwrap();
    let mut expected = table.clone();
    let found = rows.read::<f32>();
    let (last, found) = (&found[(indices.len() - 1) * width..], &found);
    assert!(last.iter().all(|value| *value == 0.0), "of what is elsewhere");
    for (position, index) in indices[..indices.len() - 1].iter().enumerate() {
        let place = *index as usize * width;
        assert_eq!(bits(&found[position * width..][..width]), bits(&table[place..][..width]));
        for column in 0..width {
            expected[place + column] += slopes[position * width + column];
        }
    }
    assert!(bits(&vectors.read()) == bits(&expected), "added up in order");
    of_rows.read::<f32>();
    numbers.read::<u32>();
}
