//! The data of a run: numbered samples, made into batches that its model can use.

use crate::config::{Config, Data, DataKind};
use crate::data::{Chunk, Dataset, Scaling, Table, TokenBatch, TokenFile, Windows, text};
use crate::error::{Error, Result};
use crate::models::Batch;
use crate::random::{chain, fold};
use std::path::Path;

/// Numbered samples of one kind.
pub enum Samples {
    /// Sequences of tokens.
    Tokens(Windows),
    /// Rows of a table.
    Rows(Table),
}

/// A batch in memory of its own.
pub enum Owned {
    /// Sequences of tokens.
    Tokens(TokenBatch),
    /// Features, and the class of each row.
    Rows(Vec<f32>, Vec<u32>),
}

/// What a run learns from, and what it is judged by.
pub struct Feed {
    /// To learn from.
    pub training: Samples,
    /// To judge by; none if nothing was held back.
    pub validation: Option<Samples>,
    /// What a model must fit.
    pub extents: Extents,
}

/// What a model must know of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extents {
    /// So many different tokens.
    Tokens(usize),
    /// Features of a row, and classes.
    Rows(usize, usize),
}

impl Feed {
    /// Reads what the configuration says.
    ///
    /// # Errors
    /// Names the file; or what does not go together.
    pub fn open(config: &Config) -> Result<Self> {
        let (data, path) = (&config.data, Path::new(&config.data.path));
        exists("data.path", &data.path)?;
        match data.kind {
            DataKind::Text => Self::text(data, config.model.context),
            DataKind::Tokens => Self::tokens(data, config.model.context),
            DataKind::Table => Self::table(Table::read(path)?, data.validation, config.seed),
        }
    }

    fn text(data: &Data, sequence: usize) -> Result<Self> {
        let text = text::read(Path::new(&data.path), &data.extensions, data.validation)?;
        let windows = |tokens| Windows::new(tokens, sequence).map(Samples::Tokens);
        let enough = text.validation.len() > sequence;
        let validation = enough.then(|| windows(text.validation)).transpose()?;
        let extents = Extents::Tokens(text::VOCABULARY as usize);
        Ok(Self { training: windows(text.training)?, validation, extents })
    }

    fn tokens(data: &Data, sequence: usize) -> Result<Self> {
        let open = |path: &str| {
            let file = TokenFile::open(Path::new(path), data.vocabulary)?;
            Windows::new(file, sequence).map(Samples::Tokens)
        };
        let held_back = Some(&data.validation_path).filter(|path| !path.is_empty());
        held_back.map_or(Ok(()), |path| exists("data.validation_path", path))?;
        let validation = held_back.map(|path| open(path)).transpose()?;
        Ok(Self {
            training: open(&data.path)?,
            validation,
            extents: Extents::Tokens(data.vocabulary as usize),
        })
    }

    fn table(table: Table, share: f64, seed: u32) -> Result<Self> {
        let extents = Extents::Rows(table.columns, table.classes()?);
        let (mut training, mut validation) = table.split(share, u64::from(seed));
        let scaling = Scaling::of(&training);
        scaling.apply(&mut training);
        scaling.apply(&mut validation);
        let validation = (validation.rows() > 0).then_some(Samples::Rows(validation));
        Ok(Self { training: Samples::Rows(training), validation, extents })
    }
}

/// That there is what `key` names.
fn exists(key: &str, path: &str) -> Result<()> {
    std::fs::metadata(path).map(drop).map_err(|error| Error::file(path, format!("{key}: {error}")))
}

impl Samples {
    /// How many.
    pub fn count(&self) -> u64 {
        match self {
            Samples::Tokens(windows) => windows.count(),
            Samples::Rows(table) => table.rows() as u64,
        }
    }

    /// What it takes to know them again, under a name: how many, and what some of them are.
    ///
    /// # Errors
    /// Of files.
    pub fn dataset(&self, name: &str) -> Result<Dataset> {
        let samples = self.count();
        let looked_at = samples.min(HASHED_MAX);
        let numbers: Vec<u64> = (0..looked_at).map(|part| part * samples / looked_at).collect();
        let hash = self.batch(&numbers, Chunk::WHOLE)?.hash();
        Ok(Dataset { name: name.to_owned(), samples, hash })
    }

    /// The samples of these numbers: of sequences a chunk, of rows all.
    ///
    /// # Errors
    /// Of files; if sequences cannot be cut so.
    pub fn batch(&self, numbers: &[u64], chunk: Chunk) -> Result<Owned> {
        Ok(match self {
            Samples::Tokens(windows) => Owned::Tokens(windows.batch(numbers, chunk)?),
            Samples::Rows(table) => {
                let Table { features, targets, .. } = table.select(numbers);
                Owned::Rows(features, targets.into_iter().map(|target| target as u32).collect())
            }
        })
    }
}

impl Owned {
    fn hash(&self) -> u64 {
        let of = |numbers: &[u32]| fold(numbers.len(), numbers.iter().map(|&number| u64::from(number)));
        match self {
            Owned::Tokens(TokenBatch { inputs, targets, .. }) => chain(&[of(inputs), of(targets)]),
            Owned::Rows(features, classes) => {
                let bits = features.iter().map(|feature| u64::from(feature.to_bits()));
                chain(&[fold(features.len(), bits), of(classes)])
            }
        }
    }

    /// As models see it.
    pub fn as_batch(&self) -> Batch<'_> {
        match self {
            Owned::Tokens(TokenBatch { inputs, targets, sequence }) => {
                Batch::Tokens { inputs, targets, sequence: *sequence }
            }
            Owned::Rows(features, labels) => Batch::Samples { features, labels },
        }
    }
}

/// Samples that are looked at to know data again.
const HASHED_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_scaled_by_what_training_shows_and_keep_their_classes() {
        let text: String = (0..40).map(|row| format!("{},{},{}\n", row, 7, row % 3)).collect();
        let feed = Feed::table(Table::parse(&text).unwrap(), 0.25, 1).unwrap();
        assert_eq!(feed.extents, Extents::Rows(2, 3));
        let (training, validation) = (&feed.training, feed.validation.unwrap());
        assert_eq!((training.count(), validation.count()), (30, 10));
        let Owned::Rows(features, labels) = training.batch(&[0, 1, 2], Chunk::WHOLE).unwrap() else {
            panic!("rows")
        };
        assert!(features.iter().all(|feature| feature.abs() < 2.0) && labels.iter().all(|&label| label < 3));
        assert!(Feed::table(Table::parse("1,0.5\n").unwrap(), 0.0, 1).is_err());
    }
}
