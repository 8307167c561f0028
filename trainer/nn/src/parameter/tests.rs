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
                repeats: 1,
            };
            assert_eq!(join_shards(parts, cut, &shape, Init::Normal(0.02)), uncut);
        }
    }
}

/// Returns part `part` of `parts` of a layer of queries, keys and values whose heads are single
/// rows. It has `heads` heads of keys, and `ratio` heads of queries for each of them.
fn attention_part(heads: usize, ratio: usize, parts: usize, part: usize) -> Parameter {
    let cut = ShardSpec {
        dim: 0,
        global_size: heads * (ratio + 2),
        block_count: 3,
        first_block_ratio: ratio,
        granularity: 1,
        shard_count: parts,
        shard_index: part,
        repeats: parts / heads,
    };
    let shape = [heads * (ratio + 2), 5];
    assert!(cut.is_valid(&shape) && cut.padding_fraction() == 0.0, "{cut:?}");
    Parameter::new("w", &shape, Init::Normal(0.02)).with_shard(cut)
}

#[test]
fn repeated_shards_divide_queries_and_copy_keys() {
    for (heads, ratio, parts) in [(1, 2, 2), (1, 4, 4), (2, 4, 4), (2, 4, 8), (3, 2, 6), (2, 6, 4)] {
        let shape = [heads * (ratio + 2), 5];
        let (elements, queries) = (shape[0] * 5, heads * ratio * 5);
        let mut uncut = vec![0.0; elements];
        Parameter::new("w", &shape, Init::Normal(0.02)).initialize(7, 0..elements, &mut uncut);
        let (mut copies, mut counted) = (vec![0; elements], vec![0; elements]);
        for part in 0..parts {
            let parameter = attention_part(heads, ratio, parts, part);
            let mut values = vec![0.0; parameter.count()];
            parameter.initialize(7, 0..values.len(), &mut values);
            let (repeated, first) = (parameter.repeated_elements(), parameter.counted_elements(part));
            assert_eq!(repeated.len(), 2 * 5, "a head of keys, and one of values");
            for (index, value) in values.into_iter().enumerate() {
                let place = parameter.global_index(index).expect("no padding");
                assert_eq!((uncut[place], parameter.local_index(place)), (value, Some(index)));
                assert_eq!(repeated.contains(&index), place >= queries);
                copies[place] += 1;
                counted[place] += usize::from(index < first);
            }
            let rows = |(local, global, count): (usize, usize, usize)| (local..local + count).zip(global..);
            for (local, global) in parameter.shard.iter().flat_map(ShardSpec::runs).flat_map(rows) {
                assert_eq!(parameter.global_index(5 * local), Some(5 * global), "runs agree");
            }
        }
        let expected = |place: usize| if place < queries { 1 } else { parts / heads };
        assert!(copies.iter().enumerate().all(|(place, &count)| count == expected(place)), "{copies:?}");
        assert!(counted.iter().all(|&count| count == 1), "{counted:?}");
    }
}

#[test]
fn repeats_of_files_must_divide() {
    let shape = [8, 5];
    let cut = attention_part(2, 2, 4, 0).shard.expect("a part");
    let is_valid = |change: ShardSpec| change.is_valid(&shape);
    assert!(is_valid(cut.clone()));
    for repeats in [0, 3, 4, usize::MAX] {
        assert!(!is_valid(ShardSpec { repeats, ..cut.clone() }), "{repeats}");
    }
    let columns = ShardSpec { dim: 1, ..cut.clone() };
    assert!(!columns.is_valid(&[5, 8]), "only rows are repeated");
    let text = serde_json::to_string(&cut).expect("a text").replace(",\"repeats\":2", "");
    assert_eq!(serde_json::from_str::<ShardSpec>(&text).expect("a shard").repeats, 1, "{text}");
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
