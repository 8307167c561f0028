//! Manifest of a checkpoint.

use crate::data::{DatasetId, Position};
use crate::file_kind;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashSet};
use std::io::ErrorKind;
use std::path::Path;
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::{Inventory, Parameter};

/// Name of the manifest file.
pub(super) const MANIFEST: &str = "manifest.json";
/// Contents that a reader expects, for errors.
const WANTED: &str = "a manifest of a checkpoint";
const FORMAT: u32 = 4;
/// Limit on moments per element, above that of any optimizer.
const MAX_MOMENTS: usize = 8;

/// Progress of a run; equal on all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainProgress {
    /// Number of steps taken.
    pub step: u64,
    /// Position of all ranks together in the data.
    pub position: Position,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Identity of the data.
    pub data: DatasetId,
    /// Settings that must not change, with their values.
    #[serde(default)]
    pub invariants: BTreeMap<String, String>,
}

impl TrainProgress {
    /// Rejects a configuration whose value in `settings` differs for a key that `counts` selects.
    ///
    /// # Errors
    /// Names `folder`, the key, both values, and the remedy.
    pub fn check_invariants(
        &self,
        settings: &BTreeMap<String, String>,
        folder: &Path,
        counts: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let pair = |(key, saved)| settings.get(key).map(|present| (key, saved, present));
        let mut compared = self.invariants.iter().filter(|(key, _)| counts(key)).filter_map(pair);
        match compared.find(|(_, saved, present)| saved != present) {
            Some((key, saved, present)) => {
                let what =
                    format!("saved with {key} = {saved}, and this run has {present}; set {key}={saved}");
                Err(Error::file(folder, what))
            }
            None => Ok(()),
        }
    }
}

/// Parameter in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedParameter {
    /// Path in the model.
    pub name: String,
    /// Shape of the whole tensor.
    pub shape: Vec<usize>,
    /// Number of moments per element.
    pub moments: usize,
}

/// File of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedFile {
    /// File name in the folder.
    pub file: String,
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
}

/// Contents of a checkpoint except for the tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    format: u32,
    /// SHA-256 in hexadecimal of the manifest's file, with 64 zeros here.
    checksum: String,
    /// Progress of the run.
    pub progress: TrainProgress,
    /// Configuration of the run, for information.
    pub configuration: String,
    /// All parameters.
    pub parameters: Vec<SavedParameter>,
    /// All tensor files.
    pub shards: Vec<SavedFile>,
    /// File of the tokenizer, if the run has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<SavedFile>,
    /// Files of the model's folder that say how to use it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub model_files: Vec<SavedFile>,
}

/// Checksum while the checksum is computed.
const BLANK: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Returns the SHA-256 of a text in hexadecimal.
pub(super) fn checksum_of(text: &str) -> String {
    super::shard::hexadecimal(Sha256::digest(text.as_bytes()).as_slice())
}

/// Field that every format of the manifest has. It is read first, because the rest may differ.
#[derive(Deserialize)]
struct Header {
    format: u32,
}

/// Builds the message for another format, with both numbers and a remedy.
fn wrong_format_message(format: u32) -> String {
    format!(
        "checkpoint format {format}, but this program reads format {FORMAT}; \
         resume with the version that wrote it, or set checkpoint.folder to another folder"
    )
}

/// Reads bytes as a manifest, with the checksum that they have and with the right one, and resumes
/// from it.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    use crate::data::{LastBatch, Sampler};
    use unisono_nn::parameter::Init;
    let (text, path) = (String::from_utf8_lossy(bytes), Path::new(MANIFEST));
    let _ = Manifest::parse(&text, path);
    let Ok(given) = serde_json::from_str::<Manifest>(&text) else { return };
    let text = given.to_text().expect("what was read");
    let Ok(manifest) = Manifest::parse(&text, path) else { return };
    assert!(manifest.files().all(|saved_file| !saved_file.file.contains('/') && saved_file.file != ".."));
    let parameters = vec![Parameter::new("w", &[4, 2], Init::Zeros)];
    let _ = manifest.check_parameters(&Inventory { parameters, units: Vec::new() }, path);
    let TrainProgress { position, invariants, .. } = &manifest.progress;
    let _ = manifest.progress.check_invariants(invariants, path, |_| true);
    for last_batch in [LastBatch::Drop, LastBatch::Pad] {
        let mut sampler = Sampler::new(10, 4, Some(7), last_batch).expect("batches");
        if sampler.resume(*position).is_ok() {
            (0..4).for_each(|_| assert!(sampler.next_or_new_epoch().iter().all(|&sample| sample < 10)));
        }
    }
}

impl Manifest {
    /// Creates the manifest for the parameters of `inventory`. Files are added as they are written.
    pub(super) fn new(
        inventory: &Inventory,
        progress: TrainProgress,
        moments: &[u64],
        configuration: &str,
    ) -> Self {
        let saved = |(parameter, &moments): (&Parameter, &u64)| {
            let (name, shape) = (parameter.name.clone(), parameter.global_shape());
            SavedParameter { name, shape, moments: moments as usize }
        };
        Self {
            format: FORMAT,
            checksum: BLANK.to_owned(),
            progress,
            configuration: configuration.to_owned(),
            parameters: inventory.parameters.iter().zip(moments).map(saved).collect(),
            shards: Vec::new(),
            tokenizer: None,
            model_files: Vec::new(),
        }
    }

    /// Returns all files of the checkpoint except for the manifest.
    pub(super) fn files(&self) -> impl Iterator<Item = &SavedFile> {
        self.shards.iter().chain(&self.tokenizer).chain(&self.model_files)
    }

    /// Reads the manifest in `folder`.
    ///
    /// # Errors
    /// Fails if there is none, or if it has another format.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(MANIFEST);
        if path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return Err(Error::file(&path, "there is no checkpoint here"));
        }
        let text = file_kind::read_text(&path, WANTED)?;
        Self::parse(&text, &path)
    }

    /// Reads the text of the manifest at `path`.
    fn parse(text: &str, path: &Path) -> Result<Self> {
        let damaged =
            |error| file_kind::recognized(path, WANTED, format!("the manifest is damaged: {error}"));
        let Header { format } = serde_json::from_str(text).map_err(damaged)?;
        if format != FORMAT {
            return Err(Error::file(path, wrong_format_message(format)));
        }
        let manifest: Self = serde_json::from_str(text).map_err(damaged)?;
        // The checksum is of the text and not of what was parsed, so that it also finds changes
        // that parsing ignores.
        if checksum_of(&text.replacen(&manifest.checksum, BLANK, 1)) != manifest.checksum {
            return Err(Error::file(path, "not the text that was saved: the manifest is damaged"));
        }
        // A path with folders could name any file of the reader, and `export` would copy it.
        let is_elsewhere = |saved_file: &&SavedFile| {
            Path::new(&saved_file.file).file_name() != Some(saved_file.file.as_ref())
        };
        if let Some(saved_file) = manifest.files().find(is_elsewhere) {
            return Err(Error::file(path, format!("`{}` is not the name of a file", saved_file.file)));
        }
        Ok(manifest)
    }

    /// Returns the text of the manifest's file, with its checksum.
    pub(super) fn to_text(&self) -> serde_json::Result<String> {
        let blank = Self { checksum: BLANK.to_owned(), ..self.clone() };
        let text = serde_json::to_string_pretty(&blank)?;
        // The checksum comes before all text of the run.
        Ok(text.replacen(BLANK, &checksum_of(&text), 1))
    }

    /// Returns the number of saved moments of a parameter.
    pub(super) fn moments(&self, parameter: &Parameter) -> usize {
        let saved = self.parameters.iter().find(|saved| saved.name == parameter.name);
        saved.map_or(0, |saved| saved.moments)
    }

    /// Checks that `inventory` has the same parameters. Padding and shards may differ.
    pub(super) fn check_parameters(&self, inventory: &Inventory, folder: &Path) -> Result<()> {
        let wrong = |what: String| Err(Error::file(folder, what));
        let mut names = HashSet::new();
        for saved in &self.parameters {
            // Readers take the first parameter of a name, and would ignore the second.
            if !names.insert(&saved.name) {
                return wrong(format!("parameter {} is duplicated", saved.name));
            }
            // Readers allocate as many moments as this number says.
            if saved.moments > MAX_MOMENTS {
                return wrong(format!("{} moments of each element of {}", saved.moments, saved.name));
            }
        }
        for parameter in &inventory.parameters {
            let Some(saved) = self.parameters.iter().find(|saved| saved.name == parameter.name) else {
                return wrong(format!("no parameter {}", parameter.name));
            };
            let shape = parameter.global_shape();
            if saved.shape != shape {
                return wrong(format!("{} was {:?}, the model has {shape:?}", saved.name, saved.shape));
            }
        }
        match self.parameters.iter().find(|saved| inventory.find(&saved.name).is_none()) {
            Some(saved) => wrong(format!("the model has no parameter {}", saved.name)),
            None => Ok(()),
        }
    }
}
