//! Files of a model's folder that say how to use the model, kept from the folder to the export.

use super::file_rules::{FileRule, kept_names};
use super::manifest::{Manifest, SavedFile};
use crate::data::TOKENIZER;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use unisono_nn::error::{Error, Result};

/// Folder of chat templates besides the usual one, in the folder of a model. They belong to the
/// tokenizer. A checkpoint has no such folder, and its template `NAME.jinja` is the file
/// `additional_chat_templates.NAME.jinja`.
const TEMPLATES: &str = "additional_chat_templates";

/// Files of a model's folder besides weights and `tokenizer.json`: their bytes, by their names in
/// checkpoints.
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
    /// Returns the names of all such files besides templates.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        kept_names(|_| true)
    }

    /// Returns the path of a file in the folder of a model, by its name in checkpoints.
    pub(crate) fn path_in_folder(name: &str) -> PathBuf {
        match template_name(name) {
            Some(template) => Path::new(TEMPLATES).join(template),
            None => PathBuf::from(name),
        }
    }

    /// Returns the templates in the folder of a model, by their names in checkpoints.
    ///
    /// # Errors
    /// Names the folder of templates, if it cannot be read.
    pub(crate) fn templates_in(folder: &Path) -> Result<Vec<String>> {
        let templates = folder.join(TEMPLATES);
        if !templates.is_dir() {
            return Ok(Vec::new());
        }
        let failed = |error: std::io::Error| Error::file(&templates, error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&templates).map_err(failed)? {
            let name = format!("{TEMPLATES}.{}", entry.map_err(failed)?.file_name().to_string_lossy());
            if template_name(&name).is_some() {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Reads the files of the model in the folder `model`, and those beside the tokenizer at the
    /// path `tokenizer`. An empty path stands for none.
    ///
    /// # Errors
    /// Names a file that cannot be read.
    pub(crate) fn read(model: &str, tokenizer: &str) -> Result<Self> {
        let mut found = Self::default();
        if !model.is_empty() {
            found.add(Path::new(model), kept_names(|rule| rule == FileRule::OfModel))?;
        }
        let tokenizer_folder = match Path::new(tokenizer) {
            path if path.file_name() == Some(TOKENIZER.as_ref()) => path.parent(),
            _ => Some(Path::new(model)).filter(|_| tokenizer.is_empty() && !model.is_empty()),
        };
        if let Some(folder) = tokenizer_folder {
            found.add(folder, kept_names(|rule| rule == FileRule::OfTokenizer))?;
            for name in Self::templates_in(folder)? {
                let path = folder.join(Self::path_in_folder(&name));
                found.0.insert(name, read_file(&path)?);
            }
        }
        Ok(found)
    }

    /// Reads the files of the checkpoint in `folder` that its manifest lists.
    pub(crate) fn of_checkpoint(folder: &Path, manifest: &Manifest) -> Result<Self> {
        let mut found = Self::default();
        for saved_file in &manifest.model_files {
            found.add(folder, [saved_file.file.as_str()])?;
        }
        Ok(found)
    }

    /// Reads those of the files `names` that `folder` has.
    fn add<'a>(&mut self, folder: &Path, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        for name in names {
            let path = folder.join(name);
            if path.is_file() {
                self.0.insert(name.to_owned(), read_file(&path)?);
            }
        }
        Ok(())
    }

    /// Takes the files of a model from `other` if there are none here.
    pub(crate) fn or_model_of(&mut self, other: Self) {
        if !self.0.keys().any(|name| is_of_model(name)) {
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

    /// Returns all files with their names in checkpoints.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(name, bytes)| (name.as_str(), &**bytes))
    }

    /// Checks the files of the checkpoint in `folder` that a manifest lists. Readers of a tokenizer
    /// look for such files beside it, so there are no others.
    ///
    /// # Errors
    /// Names a file that is listed under another name, or is there and not listed.
    pub(super) fn check_listed(folder: &Path, listed: &[SavedFile]) -> Result<()> {
        let is_known = |saved_file: &SavedFile| {
            Self::names().any(|name| name == saved_file.file) || template_name(&saved_file.file).is_some()
        };
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
    kept_names(|rule| rule == FileRule::OfModel).any(|other| other == name)
}

/// Returns the name of a template in its folder, by its name in checkpoints; `None` for others.
fn template_name(name: &str) -> Option<&str> {
    let template = name.strip_prefix(TEMPLATES)?.strip_prefix('.')?;
    let is_file_name = Path::new(template).file_name() == Some(template.as_ref());
    (is_file_name && template.ends_with(".jinja")).then_some(template)
}

fn read_file(path: &Path) -> Result<Arc<[u8]>> {
    std::fs::read(path).map(Arc::from).map_err(|error| Error::file(path, error))
}
