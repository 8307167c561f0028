//! Data of a run: numbered samples, and batches of them for the model.

use crate::config::{Config, Data, DataKind};
use crate::data::{DatasetId, SequenceChunk, Standardizer, Table, TokenBatch, TokenFile, TokenWindows, text};
use crate::error::{Error, Result};
use crate::models::OwnedBatch;
use crate::random::{hash_iter, hash_numbers};
use std::path::Path;
use std::sync::Arc;

/// Numbered samples of one kind.
pub enum Samples {
    /// Sequences of tokens.
    Tokens(TokenWindows),
    /// Rows of a table.
    Rows(Table),
}

/// Training and validation data of a run.
pub struct DataLoader {
    /// Training samples.
    pub training: Arc<Samples>,
    /// Validation samples; `None` if there are none.
    pub validation: Option<Samples>,
    /// Number of text files that were read.
    pub documents: Option<usize>,
    /// Dimensions that the model must match.
    pub dims: DataDims,
}

/// Dimensions of the data for the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataDims {
    /// Vocabulary size.
    Tokens(usize),
    /// Number of features per row, and number of classes.
    Rows(usize, usize),
}

impl DataLoader {
    /// Opens the data of the configuration.
    ///
    /// # Errors
    /// Names the file, or the settings that do not fit together.
    pub fn open(config: &Config) -> Result<Self> {
        let (data, path) = (&config.data, Path::new(&config.data.path));
        check_exists("data.path", &data.path)?;
        match data.kind {
            DataKind::Text => Self::text(data, config.model.context),
            DataKind::Tokens => Self::tokens(data, config.model.context),
            DataKind::Table => Self::table(Table::read(path)?, data.validation, config.seed),
        }
    }

    fn text(data: &Data, sequence: usize) -> Result<Self> {
        let text = text::read(Path::new(&data.path), &data.extensions, data.validation)?;
        let windows = |tokens| TokenWindows::new(tokens, sequence).map(Samples::Tokens);
        let enough = text.validation.len() > sequence;
        let validation = enough.then(|| windows(text.validation)).transpose()?;
        let extents = DataDims::Tokens(text::VOCAB_SIZE as usize);
        let documents = Some(text.documents);
        let training = Arc::new(windows(text.training)?);
        Ok(Self { training, validation, documents, dims: extents })
    }

    fn tokens(data: &Data, sequence: usize) -> Result<Self> {
        let open = |path: &str| {
            let file = TokenFile::open(Path::new(path), data.vocabulary)?;
            TokenWindows::new(file, sequence).map(Samples::Tokens)
        };
        let held_back = Some(&data.validation_path).filter(|path| !path.is_empty());
        held_back.map_or(Ok(()), |path| check_exists("data.validation_path", path))?;
        let validation = held_back.map(|path| open(path)).transpose()?;
        let dims = DataDims::Tokens(data.vocabulary as usize);
        Ok(Self { training: Arc::new(open(&data.path)?), validation, documents: None, dims })
    }

    fn table(table: Table, share: f64, seed: u32) -> Result<Self> {
        let extents = DataDims::Rows(table.columns, table.classes()?);
        let (mut training, mut validation) = table.split(share, u64::from(seed));
        let scaling = Standardizer::fit(&training);
        scaling.apply(&mut training);
        scaling.apply(&mut validation);
        let validation = (validation.rows() > 0).then_some(Samples::Rows(validation));
        let training = Arc::new(Samples::Rows(training));
        Ok(Self { training, validation, documents: None, dims: extents })
    }
}

/// Checks that the path of setting `key` exists.
fn check_exists(key: &str, path: &str) -> Result<()> {
    std::fs::metadata(path).map(drop).map_err(|error| Error::file(path, format!("{key}: {error}")))
}

impl Samples {
    /// Returns the number of samples.
    pub fn count(&self) -> u64 {
        match self {
            Samples::Tokens(windows) => windows.count(),
            Samples::Rows(table) => table.rows() as u64,
        }
    }

    /// Returns an identity of the data: its name, number of samples, and a hash of some samples.
    ///
    /// # Errors
    /// Fails if a file cannot be read.
    pub fn dataset(&self, name: &str) -> Result<DatasetId> {
        let samples = self.count();
        let looked_at = samples.min(MAX_HASHED_SAMPLES);
        let numbers: Vec<u64> = (0..looked_at).map(|part| part * samples / looked_at).collect();
        let hash = hash_batch(&self.batch(&numbers, SequenceChunk::WHOLE)?);
        Ok(DatasetId { name: name.to_owned(), samples, hash })
    }

    /// Returns the samples of these numbers: a chunk of each sequence, or whole rows.
    ///
    /// # Errors
    /// Fails if a file cannot be read, or sequences cannot be split evenly.
    pub fn batch(&self, numbers: &[u64], chunk: SequenceChunk) -> Result<OwnedBatch> {
        Ok(match self {
            Samples::Tokens(windows) => OwnedBatch::Tokens(windows.batch(numbers, chunk)?),
            Samples::Rows(table) => {
                let Table { features, targets, .. } = table.select(numbers);
                let labels = targets.into_iter().map(|target| target as u32).collect();
                OwnedBatch::Samples { features, labels }
            }
        })
    }
}

/// Returns a hash of a batch.
fn hash_batch(batch: &OwnedBatch) -> u64 {
    let of = |numbers: &[u32]| hash_iter(numbers.len(), numbers.iter().map(|&number| u64::from(number)));
    match batch {
        OwnedBatch::Tokens(TokenBatch { inputs, targets, .. }) => hash_numbers(&[of(inputs), of(targets)]),
        OwnedBatch::Samples { features, labels } => {
            let bits = features.iter().map(|feature| u64::from(feature.to_bits()));
            hash_numbers(&[hash_iter(features.len(), bits), of(labels)])
        }
    }
}

/// Maximum number of samples in the hash of the data.
const MAX_HASHED_SAMPLES: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_standardized_by_training_statistics() {
        let text: String = (0..40).map(|row| format!("{},{},{}\n", row, 7, row % 3)).collect();
        let feed = DataLoader::table(Table::parse(&text).unwrap(), 0.25, 1).unwrap();
        assert_eq!(feed.dims, DataDims::Rows(2, 3));
        let (training, validation) = (&feed.training, feed.validation.unwrap());
        assert_eq!((training.count(), validation.count()), (30, 10));
        let OwnedBatch::Samples { features, labels } =
            training.batch(&[0, 1, 2], SequenceChunk::WHOLE).unwrap()
        else {
            panic!("rows")
        };
        assert!(features.iter().all(|feature| feature.abs() < 2.0) && labels.iter().all(|&label| label < 3));
        assert!(DataLoader::table(Table::parse("1,0.5\n").unwrap(), 0.0, 1).is_err());
    }
}
