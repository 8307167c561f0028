//! Description of a run, printed before its first step.

use super::data_loader::DataLoader;
use super::report::{print_line, with_separators};
use crate::config::{Config, DeviceKind, Strategy};
use crate::models::{Family, GptConfig};
use std::fmt;
use unisono_nn::counted;
use unisono_nn::ops::InstructionSets;
use unisono_nn::parameter::{Parameter, ShardSpec, Unit};
use unisono_parallel::data_parallel::ParallelKind;
use unisono_plan::cost::{CostModel, classes_in_memory, in_memory};

/// Description of a run in a few lines.
pub(super) struct RunHeader<'a> {
    pub(super) config: &'a Config,
    pub(super) plan: &'a CostModel<'a>,
    pub(super) loader: &'a DataLoader,
    /// Strategy of each unit of the model.
    pub(super) units: &'a [ParallelKind],
    /// Predicted bytes of a rank by class.
    pub(super) formulas: [usize; 5],
}

impl RunHeader<'_> {
    /// Prints the description.
    pub(super) fn print(&self) {
        self.to_string().lines().for_each(print_line);
    }

    fn model(&self) -> String {
        let (model, inventory) = (&self.config.model, self.plan.inventory);
        let count = |parameter: &&Parameter| parameter.global_shape().iter().product::<usize>();
        let total: usize = inventory.parameters.iter().map(|parameter| count(&parameter)).sum();
        let trained: usize = inventory
            .parameters
            .iter()
            .filter(|parameter| parameter.trainable)
            .map(|parameter| count(&parameter))
            .sum();
        let shape = format!(
            "{}, {}, width {}, {}, context {}",
            self.architecture(),
            counted(model.layers, "layer"),
            model.width,
            counted(model.heads, "head"),
            model.context
        );
        let frozen = match total - trained {
            0 => String::new(),
            frozen => format!(", {} of them frozen", with_separators(frozen)),
        };
        format!("{shape}: {} parameters{frozen}", with_separators(total))
    }

    /// Returns the family of the model.
    fn architecture(&self) -> &'static str {
        let gpt = self.config.gpt_config();
        let family = Family::of(&gpt).or_else(|_| Family::of(&GptConfig { experts: None, ..gpt.clone() }));
        match family {
            Ok(Family::Gpt2) | Err(_) => "gpt",
            Ok(family) => family.name(),
        }
    }

    fn data(&self) -> String {
        let Config { data, model, .. } = self.config;
        let documents = self.loader.documents.map_or(String::new(), |count| match count {
            1 => "1 file, ".to_owned(),
            count => format!("{} files, ", with_separators(count)),
        });
        let samples = self.loader.training.count() as usize;
        let held_back = self.loader.validation.as_ref().map_or(0, |samples| samples.count() as usize);
        let size = format!(
            "{} tokens of {} kinds in {} sequences",
            with_separators(samples * model.context),
            data.vocabulary_size(),
            with_separators(samples)
        );
        let held_back = match held_back {
            0 => "none for validation".to_owned(),
            count => format!("{} more for validation", with_separators(count)),
        };
        let links = match self.loader.skipped_links {
            0 => String::new(),
            count => format!("; not followed: {} to folders or to nothing", counted(count, "link")),
        };
        format!("`{}`: {documents}{size}, {held_back}{links}", data.path)
    }

    fn batch(&self) -> String {
        let (config, global) = (self.config, self.plan.batch.global());
        let (tokens, steps) = (with_separators(global * config.model.context), config.schedule.steps);
        let epochs = steps as f64 * global as f64 / self.loader.training.count().max(1) as f64;
        let (steps, verb) = (counted(steps as usize, "step"), if steps == 1 { "is" } else { "are" });
        format!("{tokens} tokens a step, {}; {steps} {verb} {epochs:.2} epochs", self.plan.batch)
    }

    /// Returns the padding of sequences, if ranks do not divide them evenly.
    fn sequences(&self) -> Option<String> {
        let config = self.config;
        let (context, padding) = (config.model.context, config.sequence_padding());
        let positions = counted(padding, "position");
        let what = format!("{positions} of padding after {context}, so that ranks have equal parts");
        (padding > 0).then_some(what)
    }

    /// Returns the sharded parameters with padding, the largest share first.
    fn padding(&self) -> Option<String> {
        let matrices = self.plan.inventory.parameters.iter().filter(|parameter| parameter.shape.len() > 1);
        let share = |parameter: &Parameter| parameter.shard.as_ref().map_or(0.0, ShardSpec::padding_fraction);
        let mut padded: Vec<_> = matrices.map(|parameter| (share(parameter), &parameter.name)).collect();
        padded.retain(|&(share, _)| share > 0.0);
        padded.sort_by(|left, right| right.0.total_cmp(&left.0));
        let (share, name) = padded.first()?;
        let more = match padded.len() {
            1 => String::new(),
            count => format!(", and at most that of {} more", count - 1),
        };
        Some(format!(
            "{:.1} % of {name}{more}, so that {} ranks have equal parts",
            100.0 * share,
            self.tensor()
        ))
    }

    fn tensor(&self) -> usize {
        self.plan.mesh.degrees().tensor
    }

    /// Returns the experts of a block, and the ranks that share them.
    fn experts(&self) -> Option<String> {
        let gpt = self.config.gpt_config();
        let experts = gpt.experts.as_ref()?;
        let shared = match experts.shared {
            0 => String::new(),
            shared => format!(" and {shared} shared"),
        };
        let place = match self.plan.mesh.degrees().expert {
            1 => "all on every rank".to_owned(),
            ranks => format!("{} on each of {ranks} ranks", experts.count / ranks),
        };
        Some(format!(
            "{} of {} features in each of {} blocks, {} per token{shared}; {place}",
            experts.count,
            experts.hidden_width(gpt.ffn_width()),
            gpt.layers - experts.first_dense,
            experts.per_token,
        ))
    }

    /// Returns the loss of a model that has learned nothing.
    fn baseline(&self) -> String {
        let tokens = self.config.data.vocabulary_size();
        format!("loss {:.4} if all {tokens} answers are equally probable", (tokens as f64).ln())
    }

    fn ranks(&self) -> String {
        let Config { device, threads, .. } = self.config;
        let place = match device {
            DeviceKind::Cpu if *threads == 1 => "1 thread each".to_owned(),
            DeviceKind::Cpu => format!("{threads} threads each"),
            DeviceKind::Cuda => "on GPUs".to_owned(),
            DeviceKind::Software => "on the software GPU".to_owned(),
        };
        format!("{}, {place}", self.plan.mesh.summary())
    }

    /// Returns the strategy, or each strategy with its units.
    fn strategy(&self) -> String {
        let units: Vec<_> = self.units.iter().zip(&self.plan.inventory.units).collect();
        let runs: Vec<_> = units.chunk_by(|unit, next| unit.0 == next.0).collect();
        let part = |run: &&[(&ParallelKind, &Unit)]| match run {
            [(kind, _), ..] if runs.len() == 1 => kind.name().to_owned(),
            [(kind, first), .., (_, last)] => format!("{} for {} to {}", kind.name(), first.name, last.name),
            [(kind, only)] => format!("{} for {}", kind.name(), only.name),
            [] => String::new(),
        };
        let kinds = runs.iter().map(part).collect::<Vec<_>>().join(", ");
        let Strategy { shard_ranks, replicate_below, .. } = self.config.strategy;
        let shards_state = self.units.iter().any(|kind| kind.shards_state());
        let groups = match shards_state && shard_ranks > 0 {
            true => format!(", state divided within groups of {}", counted(shard_ranks, "data rank")),
            false => String::new(),
        };
        let small = match shards_state && replicate_below > 0 {
            true => format!(", parameters below {} elements replicated", with_separators(replicate_below)),
            false => String::new(),
        };
        format!("{kinds}{groups}{small}")
    }

    fn memory(&self) -> String {
        let sum = in_memory(self.formulas);
        let (unit, name) = if sum >= 10 << 30 { (30, "GiB") } else { (20, "MiB") };
        let number = |bytes: usize| format!("{:.1}", bytes as f64 / f64::from(1 << unit));
        let classes = classes_in_memory(self.formulas, number);
        let loads = if self.config.experts.count > 0 { ", with equal loads of experts" } else { "" };
        format!("{} {name} a rank by formula: {classes}{loads}", number(sum))
    }

    fn checkpoints(&self) -> String {
        let checkpoint = &self.config.checkpoint;
        let end = if checkpoint.last { Some("after the last step".to_owned()) } else { None };
        let each =
            (checkpoint.every > 0).then(|| format!("every {}", counted(checkpoint.every as usize, "step")));
        let times: Vec<_> = each.into_iter().chain(end).collect();
        match times.is_empty() {
            true => "none: checkpoint.every = 0, checkpoint.last = false".to_owned(),
            false => format!("`{}`, {}", checkpoint.folder, times.join(" and ")),
        }
    }
}

impl fmt::Display for RunHeader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = [
            ("model", Some(self.model())),
            ("experts", self.experts()),
            ("data", Some(self.data())),
            ("ranks", Some(self.ranks())),
            ("processor", Some(InstructionSets::current().to_string())),
            ("batch", Some(self.batch())),
            ("strategy", Some(self.strategy())),
            ("sequences", self.sequences()),
            ("padding", self.padding()),
            ("untrained", Some(self.baseline())),
            ("memory", Some(self.memory())),
            ("checkpoints", Some(self.checkpoints())),
        ];
        let known = lines.into_iter().filter_map(|(name, text)| Some((name, text?)));
        known.into_iter().try_for_each(|(name, text)| writeln!(f, "{name:<12}{text}"))
    }
}
