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

/// Bytes of a tokenizer's file, if there is one, and the files of the model.
pub(crate) type RunFiles = (Option<Arc<[u8]>>, ModelFiles);

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
        let beside = match Path::new(tokenizer) {
            path if path.file_name() == Some(TOKENIZER.as_ref()) => path.parent(),
            _ => Some(Path::new(model)).filter(|_| tokenizer.is_empty() && !model.is_empty()),
        };
        beside.map_or(Ok(()), |folder| found.add(folder, &OF_TOKENIZER))?;
        Ok(found)
    }

    /// Reads the files of the checkpoint in `folder` that its manifest lists, and its tokenizer.
    pub(crate) fn of_checkpoint(folder: &Path, manifest: &Manifest) -> Result<RunFiles> {
        let mut found = Self::default();
        for own in &manifest.model_files {
            found.add(folder, &[&own.file])?;
        }
        let tokenizer = manifest.tokenizer.as_ref().map(|own| read_file(&folder.join(&own.file)));
        Ok((tokenizer.transpose()?, found))
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
            self.0.extend(other.0.into_iter().filter(|(name, _)| OF_MODEL.contains(&name.as_str())));
        }
    }

    /// Takes the files of a tokenizer from `other`, in place of those here.
    pub(crate) fn with_tokenizer_of(self, other: Self) -> Self {
        let is_of_model = |name: &str| OF_MODEL.contains(&name);
        let own = self.0.into_iter().filter(|(name, _)| is_of_model(name));
        Self(own.chain(other.0.into_iter().filter(|(name, _)| !is_of_model(name))).collect())
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
        if let Some(own) = listed.iter().find(|own| !Self::names().any(|name| name == own.file)) {
            return Err(Error::file(folder, format!("`{}` is not the name of a file of a model", own.file)));
        }
        let is_listed = |name: &&str| listed.iter().any(|own| own.file == *name);
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

fn read_file(path: &Path) -> Result<Arc<[u8]>> {
    std::fs::read(path).map(Arc::from).map_err(|error| Error::file(path, error))
}
