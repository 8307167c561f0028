use super::*;

/// Joins the shards of a parameter.
fn join_shards(parts: usize, cut: impl Fn(usize) -> ShardSpec, shape: &[usize], init: Init) -> Vec<f32> {
    let mut tensor = vec![f32::NAN; shape.iter().product()];
    for part in 0..parts {
        let parameter = Parameter::new("w", shape, init).with_shard(cut(part));
        let mut values = vec![0.0; parameter.count()];
        parameter.initialize(7, 0..values.len(), &mut values);
        for (index, value) in values.into_iter().enumerate() {
            match parameter.global_index(index) {
                Some(at) => {
                    assert!(std::mem::replace(&mut tensor[at], value).is_nan(), "twice");
                    assert_eq!(parameter.local_index(at), Some(index));
                }
                None => assert_eq!(value, 0.0),
            }
        }
    }
    tensor
}

#[test]
fn shards_of_any_spec_make_the_global_tensor() {
    let shape = [6, 4, 5];
    let mut uncut = vec![0.0; 120];
    Parameter::new("w", &shape, Init::Normal(0.02)).initialize(7, 0..120, &mut uncut);
    for parts in 1..=7 {
        for (dimension, blocks, ratio, grain) in [
            (0, 1, 1, 1),
            (0, 3, 1, 2),
            (0, 3, 1, 1),
            (1, 2, 1, 1),
            (2, 1, 1, 5),
            (0, 1, 1, 3),
            (0, 3, 4, 1),
            (1, 3, 2, 1),
            (0, 2, 2, 1),
            (0, 2, 2, 2),
        ] {
            let size = shape[dimension];
            let cut = |part| ShardSpec {
                dim: dimension,
                global_size: size,
                block_count: blocks,
                first_block_ratio: ratio,
                granularity: grain,
                shard_count: parts,
                shard_index: part,
            };
            assert_eq!(join_shards(parts, cut, &shape, Init::Normal(0.02)), uncut);
        }
    }
}

#[test]
fn normal_init_is_normally_distributed() {
    let parameter = Parameter::new("w", &[1 << 16], Init::Normal(2.0));
    let mut values = vec![0.0; 1 << 16];
    parameter.initialize(1, 0..1 << 16, &mut values);
    let mean = values.iter().sum::<f32>() / 65536.0;
    let variance = values.iter().map(|value| value * value).sum::<f32>() / 65536.0;
    assert!(mean.abs() < 0.03 && (variance - 4.0).abs() < 0.1, "mean {mean}, variance {variance}");
}

#[test]
fn units_know_own_and_shared_parameters() {
    let mut registry = Registry::default();
    let (_, token) = registry.unit("wte", |r| r.add(Parameter::new("weight", &[8, 4], Init::Zeros)));
    let (second, _) =
        registry.unit("h.0", |r| r.scope("mlp", |r| r.add(Parameter::new("bias", &[4], Init::Ones))));
    let (head, ()) = registry.unit("head", |r| r.share_parameter(token));
    let inventory = registry.finish();
    assert_eq!(inventory.find("h.0.mlp.bias").map(|id| inventory.unit_of(id)), Some(second));
    assert_eq!((inventory[head].shared.clone(), inventory[token].use_count), (vec![token], 2));
    assert_eq!(inventory[token].weight_decay, WeightDecay::OfOptimizer);
    assert_eq!(inventory.parameters[1].weight_decay, WeightDecay::None);
}
