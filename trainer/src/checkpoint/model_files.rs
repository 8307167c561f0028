//! Files of a model's folder that say how to use the model, kept from the folder to the export.

use super::manifest::{Manifest, SavedFile};
use crate::data::TOKENIZER;
use crate::data::special_tokens::{GENERATION_CONFIG, MODEL_CONFIG, SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Files that belong to a tokenizer, besides `tokenizer.json`.
const OF_TOKENIZER: [&str; 8] = [
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS_MAP,
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "merges.txt",
    "tokenizer.model",
    "vocab.json",
];

/// Files that belong to a model, besides its weights.
const OF_MODEL: [&str; 2] = [MODEL_CONFIG, GENERATION_CONFIG];

/// Files of a model's folder besides weights and `tokenizer.json`: their bytes, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFiles(BTreeMap<String, Arc<[u8]>>);

/// Files besides weights that belong to a run.
///
/// A checkpoint contains them, because one that named a file elsewhere would make its readers open
/// any file that its author chose.
#[derive(Clone, Debug, Default)]
pub struct RunFiles {
    /// Bytes of the tokenizer's file, if the run has a tokenizer.
    pub tokenizer: Option<Arc<[u8]>>,
    /// Files of the model's folder.
    pub model: ModelFiles,
}

impl RunFiles {
    /// Reads the tokenizer at the path `tokenizer`, and the files of [`ModelFiles::read`].
    ///
    /// # Errors
    /// Names a file that cannot be read.
    pub(crate) fn read(model: &str, tokenizer: &str) -> Result<Self> {
        let bytes = Some(tokenizer).filter(|path| !path.is_empty()).map(|path| read_file(Path::new(path)));
        Ok(Self { tokenizer: bytes.transpose()?, model: ModelFiles::read(model, tokenizer)? })
    }

    /// Reads the files of the checkpoint in `folder` that its manifest lists.
    pub(crate) fn of_checkpoint(folder: &Path, manifest: &Manifest) -> Result<Self> {
        let tokenizer =
            manifest.tokenizer.as_ref().map(|saved_file| read_file(&folder.join(&saved_file.file)));
        Ok(Self { tokenizer: tokenizer.transpose()?, model: ModelFiles::of_checkpoint(folder, manifest)? })
    }
}

impl ModelFiles {
    /// Returns the names of all such files.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        OF_MODEL.into_iter().chain(OF_TOKENIZER)
    }

    /// Reads the files of the model in the folder `model`, and those beside the tokenizer at the
    /// path `tokenizer`. An empty path stands for none.
    ///
    /// # Errors
    /// Names a file that cannot be read.
    pub(crate) fn read(model: &str, tokenizer: &str) -> Result<Self> {
        let mut found = Self::default();
        if !model.is_empty() {
            found.add(Path::new(model), &OF_MODEL)?;
        }
        let tokenizer_folder = match Path::new(tokenizer) {
            path if path.file_name() == Some(TOKENIZER.as_ref()) => path.parent(),
            _ => Some(Path::new(model)).filter(|_| tokenizer.is_empty() && !model.is_empty()),
        };
        tokenizer_folder.map_or(Ok(()), |folder| found.add(folder, &OF_TOKENIZER))?;
        Ok(found)
    }

    /// Reads the files of the checkpoint in `folder` that its manifest lists.
    pub(crate) fn of_checkpoint(folder: &Path, manifest: &Manifest) -> Result<Self> {
        let mut found = Self::default();
        for saved_file in &manifest.model_files {
            found.add(folder, &[&saved_file.file])?;
        }
        Ok(found)
    }

    /// Reads those of the files `names` that `folder` has.
    fn add(&mut self, folder: &Path, names: &[&str]) -> Result<()> {
        for name in names {
            let path = folder.join(name);
            if path.is_file() {
                self.0.insert((*name).to_owned(), read_file(&path)?);
            }
        }
        Ok(())
    }

    /// Takes the files of a model from `other` if there are none here.
    pub(crate) fn or_model_of(&mut self, other: Self) {
        if OF_MODEL.iter().all(|name| self.get(name).is_none()) {
            self.0.extend(other.0.into_iter().filter(|(name, _)| is_of_model(name)));
        }
    }

    /// Takes the files of a tokenizer from `other`, in place of those here.
    pub(crate) fn with_tokenizer_of(self, other: Self) -> Self {
        let model_files = self.0.into_iter().filter(|(name, _)| is_of_model(name));
        let tokenizer_files = other.0.into_iter().filter(|(name, _)| !is_of_model(name));
        Self(model_files.chain(tokenizer_files).collect())
    }

    /// Returns the bytes of a file.
    pub(crate) fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(|bytes| &**bytes)
    }

    /// Returns all files with their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(name, bytes)| (name.as_str(), &**bytes))
    }

    /// Checks the files of the checkpoint in `folder` that a manifest lists. Readers of a tokenizer
    /// look for such files beside it, so there are no others.
    ///
    /// # Errors
    /// Names a file that is listed under another name, or is there and not listed.
    pub(super) fn check_listed(folder: &Path, listed: &[SavedFile]) -> Result<()> {
        let is_known = |saved_file: &SavedFile| Self::names().any(|name| name == saved_file.file);
        if let Some(SavedFile { file, .. }) = listed.iter().find(|saved_file| !is_known(saved_file)) {
            return Err(Error::file(folder, format!("`{file}` is not the name of a file of a model")));
        }
        let is_listed = |name: &&str| listed.iter().any(|saved_file| saved_file.file == *name);
        // A link counts, also a broken one: a reader of the tokenizer would follow it.
        let is_there = |name: &&str| folder.join(name).symlink_metadata().is_ok();
        match Self::names().find(|name| is_there(name) && !is_listed(name)) {
            Some(name) => Err(Error::file(
                folder.join(name),
                "not a file of this checkpoint, which does not list it: remove it",
            )),
            None => Ok(()),
        }
    }
}

fn is_of_model(name: &str) -> bool {
    OF_MODEL.contains(&name)
}

fn read_file(path: &Path) -> Result<Arc<[u8]>> {
    std::fs::read(path).map(Arc::from).map_err(|error| Error::file(path, error))
}
