//! Defaults that follow other keys. A default that was not given must not contradict a key that
//! was.

use crate::config::Config;
use crate::optim::LrShape;

impl Config {
    /// Replaces defaults that contradict given keys. `is_given` is true for keys of the file and of
    /// overrides. Defaults that fit stay as they are.
    pub(super) fn follow_given_keys(&mut self, is_given: impl Fn(&str) -> bool) {
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
            let most = (steps / 5).min(steps.saturating_sub(given_warmup.saturating_add(given_decay)));
            if follows_warmup {
                schedule.warmup = schedule.warmup.min(most);
            }
            if follows_decay {
                schedule.decay = schedule.decay.min(most);
            }
        }
        let data = &mut self.data;
        if is_default("data.micro_batch") && !data.global_batch.is_multiple_of(data.micro_batch.max(1)) {
            data.micro_batch = 1;
        }
        let experts = &mut self.experts;
        if is_default("experts.per_token") && experts.count > 0 {
            experts.per_token = experts.per_token.min(experts.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(text: &str, overrides: &[&str]) -> crate::Result<Config> {
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
