//! Generation with kept keys and values equals generation from whole sequences.

use super::*;
use unisono_nn::error::Error;
use unisono_nn::modules::{KvCache, row_positions};
use unisono_nn::testing::run_ranks;

/// Generates greedily, and computes every sequence from its beginning.
fn naive(rig: &mut Fixture<Gpt>, prompt: &[u32], count: usize) -> Vec<u32> {
    let (context, classes) = (rig.model.config().context, rig.model.config().vocabulary);
    let (mut tokens, mut start) = (prompt.to_vec(), prompt.len().saturating_sub(context));
    for _ in 0..count {
        if tokens.len() - start > context {
            start = tokens.len() - context.div_ceil(2);
        }
        let mut pass = Pass::new(&mut rig.strategy, &rig.memory, Seeds::default(), 1);
        let logits = rig.model.logits(&mut pass, &tokens[start..], tokens.len() - start).expect("logits");
        tokens.push(Sampling::GREEDY.pick(&logits.row(logits.rows() - 1)[..classes], 0));
    }
    tokens.split_off(prompt.len())
}

fn configs() -> [GptConfig; 4] {
    let llama = GptConfig { kv_heads: 2, ..GptConfig::llama(23, 150, 16, 4, 2) };
    [
        GptConfig::new(23, 12, 16, 2, 2),
        GptConfig { activation_checkpointing: true, context: 12, ..llama.clone() },
        llama.clone(),
        GptConfig { head_dim: Some(8), qk_norm: true, qkv_bias: true, context: 12, ..llama },
    ]
}

fn has_no_cache(pass: &Pass<'_>) -> bool {
    pass.extensions().get::<KvCache>().is_none()
}

#[test]
fn cached_generation_matches_whole_sequences() {
    for config in configs() {
        let context = config.context;
        let mut rig = gpt(config).rough();
        for prompt in [
            vec![4],
            (0..context as u32 - 2).map(|position| position * 7 % 23).collect(),
            vec![3; 2 * context],
        ] {
            let expected = naive(&mut rig, &prompt, 20);
            let Fixture { model, strategy, memory } = &mut rig;
            let mut pass = Pass::new(strategy, memory, Seeds::default(), 1);
            let mut seen = Vec::new();
            let mut each = |token| {
                seen.push(token);
                Ok(true)
            };
            let found = model.generate(&mut pass, &prompt, 20, Sampling::GREEDY, &mut each).expect("tokens");
            assert_eq!((&found, &seen), (&expected, &expected), "context {context}, {} before", prompt.len());
            assert!(has_no_cache(&pass) && pass.keeps() && row_positions(&pass)[0] == 0);
        }
        assert_eq!(rig.memory.usage(unisono_nn::allocator::AllocClass::Activations).current, 0);
    }
}

#[test]
fn generation_ends_on_request_and_after_an_error() {
    let mut rig = gpt(configs()[2].clone()).rough();
    let mut pass = Pass::new(&mut rig.strategy, &rig.memory, Seeds::default(), 1);
    let (mut left, model) = (3, &rig.model);
    let mut each = |_| {
        left -= 1;
        Ok(left > 0)
    };
    assert_eq!(model.generate(&mut pass, &[1], 9, Sampling::GREEDY, &mut each).expect("tokens").len(), 3);
    let failed = model.generate(&mut pass, &[1], 9, Sampling::GREEDY, &mut |_| Err(Error::invalid("full")));
    assert_eq!(failed.expect_err("no room").to_string(), "full");
    assert!(has_no_cache(&pass));
    let unknown = model.generate(&mut pass, &[1, 23], 9, Sampling::GREEDY, &mut |_| Ok(true));
    assert!(unknown.is_err() && has_no_cache(&pass) && pass.keeps());
}

#[test]
fn sharded_heads_generate_the_same_tokens() {
    let [.., plain, normed] = configs();
    for config in [&plain, &normed] {
        assert_sharded_heads_generate_the_same(config);
    }
}

fn assert_sharded_heads_generate_the_same(config: &GptConfig) {
    let texts_of = |ranks| {
        run_ranks(ranks, |group| {
            let tensor = (group.size() > 1).then(|| group.clone().into());
            let split = TensorParallel::new(tensor, true, config.parallel_plan());
            let mut rig = Fixture::new(|registry| Gpt::new(registry, config.clone(), split).expect("legal"));
            let mut pass = Pass::new(&mut rig.strategy, &rig.memory, Seeds::default(), 1);
            let (prompt, sampling) = (
                [4, 5, 6],
                Sampling { temperature: 1.0, top_k: 9, top_p: 0.9, repetition_penalty: 1.3, seed: 3 },
            );
            rig.model.generate(&mut pass, &prompt, 12, sampling, &mut |_| Ok(true)).expect("tokens")
        })
    };
    let expected = texts_of(1).remove(0);
    // Four ranks repeat the two heads of keys and values.
    for ranks in [2, 4] {
        assert!(texts_of(ranks).iter().all(|found| *found == expected), "{ranks} ranks");
    }
}
