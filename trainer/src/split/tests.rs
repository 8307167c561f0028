mod gone;

use super::*;
use crate::memory::Memory;
use crate::nn::check::numbers;
use crate::parameter::Init;
use crate::pass::Seeds;
use crate::strategy::Local;
use crate::testing::on;

/// Output and gradient of `make`'s module, for an input and a slope of `rows` × `columns` that all ranks have.
fn both_ways<M: Module>(rows: usize, columns: usize, make: impl FnOnce(&mut Registry) -> M) -> [Vec<f32>; 2] {
    let (mut registry, memory) = (Registry::default(), Memory::default());
    let (_, module) = registry.unit("m", make);
    let mut strategy = Local::new(registry.finish(), &memory, 3);
    let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
    let input = Tensor::from(&memory, rows, columns, &numbers(1, rows * columns));
    let output = module.forward(&mut pass, input).unwrap();
    let slope = numbers(2, output.data().len());
    let slope = Tensor::from(&memory, output.rows(), output.columns(), &slope);
    let gradient = module.backward(&mut pass, slope).unwrap();
    [output.data().to_vec(), gradient.data().to_vec()]
}

#[test]
fn each_end_does_forward_what_the_other_does_backward() {
    on(3, |group| {
        let rank = group.rank();
        let of = |sequence, enters: bool| {
            let split = Split::new(Some(group.clone().into()), sequence, Plan::default());
            both_ways(6, 2, |_| -> Box<dyn Module> {
                if enters { Box::new(split.enter()) } else { Box::new(split.leave()) }
            })
        };
        let (input, slope) = (numbers(1, 12), numbers(2, 12));
        let thrice = |values: &[f32]| values.iter().map(|x| x + x + x).collect::<Vec<_>>();
        assert_eq!(of(false, true), [input.clone(), thrice(&slope)]);
        assert_eq!(of(false, false), [thrice(&input), slope.clone()]);
        let [gathered, mine] = of(true, true);
        assert_eq!(gathered, [&input[..], &input, &input].concat());
        assert_eq!(mine, thrice(&numbers(2, 36)[12 * rank..][..12]));
        let [mine, gathered] = of(true, false);
        assert_eq!(mine, thrice(&input[4 * rank..][..4]));
        assert_eq!(gathered, [&slope[..4], &slope[..4], &slope[..4]].concat());
    });
}

/// The recipe of the module's page: a gain for each feature, between a map by columns and one by rows.
struct Gains(crate::parameter::ParameterId);

impl Gains {
    fn new(registry: &mut Registry, split: &Split, features: usize) -> Self {
        let gains = Parameter::new("gain", &[features], Init::Normal(1.0));
        let gains = split.cut(0, features, 1, 1).into_iter().fold(gains, Parameter::cut);
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
            for (x, dy) in input.data().chunks_exact(columns).zip(gradient.data().chunks_exact(columns)) {
                sum.iter_mut().zip(x.iter().zip(dy)).for_each(|(sum, (x, dy))| *sum += x * dy);
            }
        })?;
        for row in gradient.data_mut().chunks_exact_mut(columns) {
            row.iter_mut().zip(pass.weights(self.0)).for_each(|(dy, gain)| *dy *= gain);
        }
        Ok(gradient)
    }
}

fn layer(registry: &mut Registry, split: &Split) -> Sequential {
    let into = registry.scope("into", |r| split.linear(r, 4, 10, Start::fan_in(4)));
    let gains = registry.scope("gains", |r| Gains::new(r, split, 10));
    let out = registry.scope("out", |r| split.linear(r, 10, 4, Start::fan_in(10)));
    Sequential(vec![into, Box::new(gains), out])
}

fn plan() -> Plan {
    Plan::new([("*.into", Style::Column { blocks: 1, grain: 1 }), ("m.out", Style::Row { grain: 1 })])
}

#[test]
fn a_layer_made_by_the_recipe_computes_what_it_does_uncut() {
    let [whole, slope] = both_ways(6, 4, |registry| layer(registry, &Split::default()));
    for parts in [2, 3, 4] {
        for [output, gradient] in on(parts, |group| {
            let split = Split::new(Some(group.into()), false, plan());
            both_ways(6, 4, |registry| layer(registry, &split))
        }) {
            let near = |one: &[f32], other: &[f32]| one.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(near(&output, &whole) && near(&gradient, &slope), "{parts} parts");
        }
    }
}

#[test]
fn a_line_that_names_nothing_is_answered_with_near_names() {
    let split = Split::new(None, false, Plan::new([("m.int", Style::Row { grain: 1 })]));
    let mut registry = Registry::default();
    registry.unit("m", |registry| layer(registry, &split));
    let error = split.check(registry.so_far()).unwrap_err().to_string();
    assert!(error.contains("`m.int`") && error.contains("near are `m.into`, `m.out`"), "{error}");
}

#[test]
fn rows_that_cannot_be_cut_are_refused_with_the_numbers() {
    on(2, |group| {
        let (split, memory) = (Split::new(Some(group.into()), true, Plan::default()), Memory::default());
        let mut strategy = Local::new(Inventory::default(), &memory, 0);
        let pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        let error = split.rows(&pass, 7).unwrap_err().to_string();
        assert!(error.contains("7 rows") && error.contains("2 equal parts"), "{error}");
    });
}
