//! Loads checkpoints.

use super::manifest::{Manifest, TrainProgress};
use super::shard::{ShardReader, hash_file, unpadded_count};
use super::write::SavedBy;
use crate::error::{Error, Result};
use crate::parallel::{DataParallel, LocalShard};
use crate::parameter::Inventory;
use std::path::Path;

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
    let manifest = who.agree_on_result(checked, "checking a checkpoint")?;
    let made = strategy.alloc_moments(&|parameter| manifest.moments(parameter));
    let filled = made.and_then(|()| fill(folder, &manifest, strategy, inventory));
    who.agree_on_result(filled, "reading a checkpoint")?;
    strategy.broadcast_params()?;
    Ok(manifest.progress)
}

/// Compares the files with the manifest. Ranks share the work.
fn verify(folder: &Path, who: SavedBy<'_>, manifest: &Manifest) -> Result<()> {
    for shard in manifest.shards.iter().skip(who.rank()).step_by(who.size()) {
        let path = folder.join(&shard.file);
        if (shard.sha256.clone(), shard.bytes) != hash_file(&path)? {
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
    let open = |shard: &super::ShardFile| ShardReader::open(&folder.join(&shard.file));
    let mut readers = manifest.shards.iter().map(open).collect::<Result<Vec<_>>>()?;
    strategy.for_each_shard(&mut |kept: LocalShard<'_>| {
        let parameter = &inventory[kept.parameter];
        let all = unpadded_count(inventory, kept.parameter, &kept.range);
        let kinds = std::iter::once(kept.weights).chain(kept.moments.iter_mut().map(|moment| &mut **moment));
        for (kind, values) in kinds.enumerate() {
            let found = readers.iter_mut().map(|reader| reader.fill(parameter, &kept.range, kind, values));
            let found: usize = found.sum::<Result<usize>>()?;
            if found != all {
                let what = format!("{} has {found} of {all} elements (kind {kind})", parameter.name);
                return Err(Error::file(folder, what));
            }
        }
        Ok(())
    })
}
