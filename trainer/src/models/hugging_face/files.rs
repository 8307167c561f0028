//! Files of weights: one, or several with an index.

use crate::checkpoint::TensorFile;
use crate::file_kind;
use safetensors::tensor::TensorInfo;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use unisono_nn::error::{Error, Result};

/// Name of the file of a model with one file.
pub(super) const WEIGHTS: &str = "model.safetensors";
/// Name of the index of a model with several files.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// Index of several files.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct FileIndex {
    #[serde(default)]
    pub(super) metadata: BTreeMap<String, serde_json::Value>,
    /// File of each tensor.
    pub(super) weight_map: BTreeMap<String, String>,
}

/// Open files of a model.
pub(super) struct WeightFiles {
    path: PathBuf,
    files: Vec<TensorFile>,
}

impl WeightFiles {
    /// Opens the weights at `path`: a file, or the folder of a model.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let paths = match path.is_dir() {
            true => paths_in(path)?,
            false => vec![path.to_owned()],
        };
        let files = paths.iter().map(|path| TensorFile::open(path)).collect::<Result<_>>()?;
        Ok(Self { path: path.to_owned(), files })
    }

    /// Builds an error about these files.
    pub(super) fn error(&self, what: impl ToString) -> Error {
        match &self.files[..] {
            [file] => Error::file(file.path(), what),
            _ => Error::file(&self.path, what),
        }
    }

    /// Returns all tensors with their names.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (String, &TensorInfo)> {
        self.files.iter().flat_map(|file| file.metadata().tensors())
    }

    /// Returns the file number and description of a tensor, with `prefix` before its name or
    /// without.
    pub(super) fn find(&self, name: &str, prefix: &str) -> Option<(usize, &TensorInfo)> {
        let numbered = || self.files.iter().enumerate();
        let named = |name: &str| {
            let mut found =
                numbered().filter_map(|(number, file)| Some((number, file.metadata().info(name)?)));
            found.next()
        };
        named(name).or_else(|| named(&format!("{prefix}{name}")))
    }

    /// Reads `count` bytes at `offset` of the tensors of a file.
    pub(super) fn read(&mut self, file: usize, offset: usize, count: usize) -> Result<Vec<u8>> {
        self.files[file].read(offset, count)
    }
}

/// Returns the files of the model in a folder.
fn paths_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let path = folder.join(INDEX);
    if !path.is_file() {
        let weights = folder.join(WEIGHTS);
        return if weights.exists() { Ok(vec![weights]) } else { Err(no_weights(folder)) };
    }
    let text = file_kind::read_text(&path, "an index of weights")?;
    let (paths, single) = (paths_of_index(&text, folder)?, folder.join(WEIGHTS));
    if single.exists() && !paths.contains(&single) {
        let what = format!(
            "it has {WEIGHTS} and {INDEX}, which does not list it: some readers take the one and some the other; \
             remove the one that does not belong to the model"
        );
        return Err(Error::file(folder, what));
    }
    Ok(paths)
}

/// Builds an error about a folder without weights that can be read. It names weights in other
/// formats.
fn no_weights(folder: &Path) -> Error {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let is_other = |name: &&String| {
        [".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack"].iter().any(|end| name.ends_with(end))
    };
    let what = match names.iter().find(is_other) {
        Some(other) => format!(
            "it has `{other}`, and neither {WEIGHTS} nor {INDEX}, which are read here: write them with \
             transformers, AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OTHER)"
        ),
        None => format!("it has neither {WEIGHTS} nor {INDEX}: name the folder of a whole model"),
    };
    Error::file(folder, what)
}

/// Returns the files that the text of an index in `folder` names.
pub(super) fn paths_of_index(text: &str, folder: &Path) -> Result<Vec<PathBuf>> {
    let path = folder.join(INDEX);
    let index: FileIndex = serde_json::from_str(text)
        .map_err(|error| file_kind::unreadable(&path, "an index of weights", error))?;
    let names: BTreeSet<&String> = index.weight_map.values().collect();
    // A name with folders could be that of any file of the reader.
    match names.iter().find(|name| Path::new(name).file_name() != Some(name.as_ref())) {
        Some(name) => Err(Error::file(path, format!("`{name}` is not the name of a file"))),
        None if names.is_empty() => Err(Error::file(path, "an index without files")),
        None => Ok(names.into_iter().map(|name| folder.join(name)).collect()),
    }
}
