//! Loads checkpoints.

use super::manifest::{MANIFEST, Manifest, TrainProgress};
use super::model_files::ModelFiles;
use super::shard::{ShardReader, hash_file, unpadded_count};
use super::write::SavedBy;
use std::path::Path;
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::Inventory;
use unisono_parallel::data_parallel::{DataParallel, LocalShard};

/// Loads the checkpoint in `folder` into `strategy`, saved on any mesh, and returns its progress.
/// All ranks must call this.
///
/// # Errors
/// Fails on every rank if the checkpoint is damaged, or of another model.
pub fn load(
    folder: &Path,
    who: SavedBy<'_>,
    strategy: &mut dyn DataParallel,
    inventory: &Inventory,
) -> Result<TrainProgress> {
    let checked = Manifest::read(folder).and_then(|manifest| {
        manifest.check_parameters(inventory, folder)?;
        verify(folder, who, &manifest)?;
        Ok(manifest)
    });
    // All files are checked before the first weight changes. A damaged file then leaves no rank
    // with parts of two states.
    let manifest = who.agree_on_result(checked, "checking a checkpoint")?;
    let made = strategy.alloc_moments(&|parameter| manifest.moments(parameter));
    let filled = made.and_then(|()| fill(folder, &manifest, strategy, inventory));
    who.agree_on_result(filled, "reading a checkpoint")?;
    // Each rank has read its shards only. The agreement above comes first, because a rank that
    // failed would leave the others waiting here.
    strategy.broadcast_params()?;
    Ok(manifest.progress)
}

/// Checks the manifest and all files of the checkpoint in `folder`.
///
/// # Errors
/// Names the file that is damaged or missing.
pub fn verify_files(folder: &Path) -> Result<()> {
    verify(folder, SavedBy::default(), &Manifest::read(folder)?)
}

/// Adds the last good checkpoint beside `folder` to the error of a damaged checkpoint. Other errors
/// are returned as they are.
pub(crate) fn with_last_good(error: Error, folder: &Path) -> Error {
    let Error::File { path, what } = error else { return error };
    let is_there = path.starts_with(folder) && folder.join(MANIFEST).is_file();
    let is_damaged = is_there && verify_files(folder).is_err();
    let Some(root) = folder.parent().filter(|_| is_damaged) else { return Error::File { path, what } };
    let others =
        super::list(root).into_iter().map(|(_, other)| other).filter(|other| other < &folder.to_owned());
    let good = others.rev().find(|other| verify_files(other).is_ok());
    let remedy = match good {
        Some(good) => format!(
            "the last good checkpoint is `{}`: `rm -r {}` and resume again to go on from it",
            good.display(),
            folder.display()
        ),
        None => "no earlier checkpoint is good".to_owned(),
    };
    Error::File { path, what: format!("{what}; {remedy}") }
}

/// Compares the files with the manifest. Ranks share the work.
fn verify(folder: &Path, who: SavedBy<'_>, manifest: &Manifest) -> Result<()> {
    ModelFiles::check_listed(folder, &manifest.model_files)?;
    for saved_file in manifest.files().skip(who.rank()).step_by(who.size()) {
        let path = folder.join(&saved_file.file);
        // A link could lead out of the folder, and what is read can be copied by `export`.
        let is_link = std::fs::symlink_metadata(&path).is_ok_and(|metadata| !metadata.is_file());
        if is_link {
            return Err(Error::file(path, "no file but a link or a device: a checkpoint has files only"));
        }
        if (saved_file.sha256.clone(), saved_file.bytes) != hash_file(&path)? {
            return Err(Error::file(path, "not the bytes that were saved: the file is damaged"));
        }
    }
    Ok(())
}

fn fill(
    folder: &Path,
    manifest: &Manifest,
    strategy: &mut dyn DataParallel,
    inventory: &Inventory,
) -> Result<()> {
    let open = |shard: &super::SavedFile| ShardReader::open(&folder.join(&shard.file));
    let mut readers = manifest.shards.iter().map(open).collect::<Result<Vec<_>>>()?;
    strategy.for_each_shard(&mut |kept: LocalShard<'_>| {
        let parameter = &inventory[kept.parameter];
        let expected = unpadded_count(inventory, kept.parameter, &kept.range);
        let kinds = std::iter::once(kept.weights).chain(kept.moments.iter_mut().map(|moment| &mut **moment));
        for (kind, values) in kinds.enumerate() {
            let found = readers.iter_mut().map(|reader| reader.fill(parameter, &kept.range, kind, values));
            let found: usize = found.sum::<Result<usize>>()?;
            if found != expected {
                let what = format!("{} has {found} of {expected} elements (kind {kind})", parameter.name);
                return Err(Error::file(folder, what));
            }
        }
        Ok(())
    })
}
