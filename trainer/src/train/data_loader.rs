//! Data of a run: numbered sequences of tokens.

use crate::config::{Config, Data, DataKind};
use crate::data::{DatasetId, TokenFile, TokenWindows, text};
use crate::progress::WorkProgress;
use std::path::Path;
use std::sync::Arc;
use unisono_nn::batch::TokenBatch;
use unisono_nn::error::{Error, Result};
use unisono_nn::random::{hash_iter, hash_numbers};
use unisono_parallel::context_parallel::SequenceChunk;

/// Training and validation data of a run.
pub(super) struct DataLoader {
    /// Training samples.
    pub training: Arc<TokenWindows>,
    /// Validation samples; `None` if there are none.
    pub validation: Option<TokenWindows>,
    /// Number of text files that were read.
    pub documents: Option<usize>,
    /// Number of links among text files that were not followed: to folders, and to nothing.
    pub skipped_links: usize,
}

impl DataLoader {
    /// Opens the data of the configuration.
    ///
    /// # Errors
    /// Names the file, or the settings that do not fit together.
    pub(super) fn open(config: &Config) -> Result<Self> {
        let (data, sequence) = (&config.data, config.model.context);
        check_exists("data.path", &data.path)?;
        match data.kind {
            DataKind::Text => Self::text(data, sequence),
            DataKind::Tokens => Self::tokens(data, sequence),
        }
    }

    fn text(data: &Data, sequence: usize) -> Result<Self> {
        let text = text::read(Path::new(&data.path), &data.extensions, data.validation)?;
        let windows = |tokens| TokenWindows::new(tokens, sequence);
        // A text that makes no window is an error of `TokenWindows`, but a short corpus must still
        // train.
        let enough = text.validation.len() > sequence;
        let validation = enough.then(|| windows(text.validation)).transpose()?;
        let training = Arc::new(windows(text.training)?);
        Ok(Self { training, validation, documents: Some(text.documents), skipped_links: text.skipped_links })
    }

    fn tokens(data: &Data, sequence: usize) -> Result<Self> {
        let open =
            |path: &str| TokenWindows::new(TokenFile::open(Path::new(path), data.vocabulary)?, sequence);
        let held_back = Some(&data.validation_path).filter(|path| !path.is_empty());
        held_back.map_or(Ok(()), |path| check_exists("data.validation_path", path))?;
        let validation = held_back.map(|path| open(path)).transpose()?;
        let training = Arc::new(open(&data.path)?);
        Ok(Self { training, validation, documents: None, skipped_links: 0 })
    }

    /// Examines this rank's part of token files for tokens beyond the vocabulary, which the model
    /// could meet after hours. The ranks together examine a file of up to 1 GiB whole, and 1 GiB of
    /// a longer file. Rank 0 shows the progress.
    ///
    /// # Errors
    /// Names the file and the token.
    pub(super) fn examine(&self, rank: usize, ranks: usize) -> Result<()> {
        let is_shown = rank == 0 && self.documents.is_none();
        let mut progress = is_shown.then(|| WorkProgress::new("MiB of tokens"));
        let mut show = |done, count| progress.iter_mut().for_each(|progress| progress.show(done, count));
        let mut windows = self.validation.iter().chain([&*self.training]);
        windows.try_for_each(|tokens| tokens.examine(rank, ranks, &mut show))
    }
}

/// Checks that the path of setting `key` exists.
///
/// # Errors
/// Names the path, and the file that was probably meant: Megatron names its files without
/// extension.
pub(super) fn check_exists(key: &str, path: &str) -> Result<()> {
    let meant = format!("{path}.bin");
    let hint = if Path::new(&meant).is_file() { format!("; there is `{meant}`") } else { String::new() };
    std::fs::metadata(path).map(drop).map_err(|error| Error::file(path, format!("{key}: {error}{hint}")))
}

/// Returns an identity of the samples: their name, number, and a hash of some of them.
///
/// # Errors
/// Fails if a file cannot be read.
pub(super) fn dataset_id(samples: &TokenWindows, name: &str) -> Result<DatasetId> {
    let count = samples.count();
    let looked_at = count.min(MAX_HASHED_SAMPLES);
    // The samples are spread over the data, because two sets can begin with the same files.
    let numbers: Vec<u64> = (0..looked_at).map(|part| part * count / looked_at).collect();
    let TokenBatch { inputs, targets, .. } = samples.batch(&numbers, SequenceChunk::WHOLE)?;
    let hash_of = |numbers: &[u32]| hash_iter(numbers.len(), numbers.iter().map(|&number| u64::from(number)));
    let hash = hash_numbers(&[hash_of(&inputs), hash_of(&targets)]);
    Ok(DatasetId { name: name.to_owned(), samples: count, hash })
}

/// Maximum number of samples in the hash of the data.
const MAX_HASHED_SAMPLES: u64 = 4096;
