//! Defaults that follow other keys. A default that was not given must not contradict a key that
//! was.

use crate::config::{Config, Data};
use unisono_parallel::mesh::Mesh;
use unisono_parallel::optimizer::LrShape;

impl Config {
    /// Replaces defaults that contradict given keys, or the number of ranks if it is known.
    /// Defaults that fit stay as they are. `is_given` is true for keys of the file and of
    /// overrides.
    pub(super) fn follow_given_keys(&mut self, is_given: impl Fn(&str) -> bool, ranks: Option<usize>) {
        let is_default = |key: &str| !is_given(key);
        let (steps, schedule) = (self.schedule.steps, &mut self.schedule);
        let is_falling = schedule.shape == LrShape::WarmupStableDecay;
        let too_long =
            |warmup: u64, decay: u64| warmup.saturating_add(if is_falling { decay } else { 0 }) > steps;
        if too_long(schedule.warmup, schedule.decay) {
            let (follows_warmup, follows_decay) =
                (is_default("schedule.warmup"), is_falling && is_default("schedule.decay"));
            let given_warmup = if follows_warmup { 0 } else { schedule.warmup };
            let given_decay = if is_falling && !follows_decay { schedule.decay } else { 0 };
            // The defaults are a fifth of the default number of steps. Given keys leave the limit.
            let limit = (steps / 5).min(steps.saturating_sub(given_warmup.saturating_add(given_decay)));
            if follows_warmup {
                schedule.warmup = schedule.warmup.min(limit);
            }
            if follows_decay {
                schedule.decay = schedule.decay.min(limit);
            }
        }
        if is_default("data.micro_batch") {
            self.data.micro_batch = self.fitting_micro_batch(ranks);
        }
        let experts = &mut self.experts;
        if is_default("experts.per_token") && experts.count > 0 {
            experts.per_token = experts.per_token.min(experts.count);
        }
    }

    /// Returns the largest micro-batch up to the present one that divides the samples of a rank.
    ///
    /// The global batch does not follow the number of ranks, because it decides which steps the run
    /// takes. If it cannot be divided by the ranks, [`Config::batch`] refuses any micro-batch.
    fn fitting_micro_batch(&self, ranks: Option<usize>) -> usize {
        let Data { global_batch, micro_batch, .. } = self.data;
        let mesh = ranks.and_then(|ranks| Mesh::new(ranks, self.mesh).ok());
        let batch_ranks = mesh.map_or(1, |mesh| mesh.batch_data_size());
        let is_divided = global_batch.is_multiple_of(batch_ranks);
        let samples = if is_divided { global_batch / batch_ranks } else { global_batch };
        let mut fitting = (1..=micro_batch).rev().filter(|&micro| samples.is_multiple_of(micro));
        fitting.next().unwrap_or(micro_batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(text: &str, overrides: &[&str]) -> unisono_nn::Result<Config> {
        Config::parse(text, &overrides.iter().map(|&change| change.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn defaults_follow_the_keys_that_are_given() {
        let schedule = |overrides: &[&str]| {
            let schedule = loaded("", overrides).unwrap().schedule;
            (schedule.warmup, schedule.decay)
        };
        assert_eq!(schedule(&["schedule.steps=4"]), (0, 60));
        assert_eq!(schedule(&["schedule.steps=59"]), (11, 60));
        assert_eq!(schedule(&["schedule.steps=60"]), (60, 60), "what fits stays");
        let stable = "schedule.shape=warmup-stable-decay";
        assert_eq!(schedule(&[stable, "schedule.steps=100"]), (20, 20));
        assert_eq!(schedule(&[stable, "schedule.steps=100", "schedule.warmup=90"]), (90, 10));
        assert_eq!(schedule(&[stable, "schedule.steps=100", "schedule.decay=95"]), (5, 95));
        let of_file = loaded("[schedule]\nsteps = 10\nwarmup = 3\n", &[]).unwrap().schedule;
        assert_eq!((of_file.warmup, of_file.steps), (3, 10));
        assert_eq!(loaded("[schedule]\nsteps = 10\n", &[]).unwrap().schedule.warmup, 2);
        let later = loaded("[schedule]\nwarmup = 3\n", &["schedule.steps=5"]).unwrap().schedule;
        assert_eq!(later.warmup, 3);
        for batch in [1, 3] {
            let data = loaded("", &[&format!("data.global_batch={batch}")]).unwrap().data;
            assert_eq!((data.global_batch, data.micro_batch), (batch, 1));
        }
        assert_eq!(loaded("", &["experts.count=1"]).unwrap().experts.per_token, 1);
        assert_eq!(loaded("", &[]).unwrap(), Config::default());
    }

    #[test]
    fn micro_batch_follows_the_number_of_ranks() {
        let micro_batch = |ranks, overrides: &[&str]| {
            let overrides: Vec<String> = overrides.iter().map(|&change| change.to_owned()).collect();
            Config::load_for_ranks(None, &overrides, Some(ranks)).unwrap().data.micro_batch
        };
        for (ranks, expected) in [(1, 2), (2, 2), (4, 2), (8, 1), (3, 2), (0, 2)] {
            assert_eq!(micro_batch(ranks, &[]), expected, "{ranks} ranks");
        }
        assert_eq!(micro_batch(8, &["mesh.tensor=2"]), 2, "ranks with the same sequences");
        assert_eq!(micro_batch(3, &["data.global_batch=9"]), 1);
        assert_eq!(micro_batch(8, &["data.micro_batch=2"]), 2, "a given key stays");
        let config = Config::load_for_ranks(None, &[], Some(8)).unwrap();
        assert!(config.batch(&Mesh::new(8, config.mesh).unwrap()).is_ok());
        let refused = config.batch(&Mesh::new(3, config.mesh).unwrap()).unwrap_err().to_string();
        assert!(refused.contains("6 or 9") && refused.contains("set data.global_batch"), "{refused}");
    }

    #[test]
    fn given_keys_that_contradict_each_other_are_refused() {
        for (text, overrides) in [
            ("", &["schedule.steps=4", "schedule.warmup=5"][..]),
            ("[schedule]\nsteps = 4\nwarmup = 60\n", &[]),
            ("[schedule]\nwarmup = 60\n", &["schedule.steps=4"]),
            ("", &["experts.count=1", "experts.per_token=2"]),
        ] {
            assert!(loaded(text, overrides).is_err(), "{text} {overrides:?}");
        }
        let printed = Config::default().to_toml().unwrap();
        assert!(loaded(&printed, &["schedule.steps=4"]).is_err(), "the file gives every key");
    }
}
