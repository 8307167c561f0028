//! Saves checkpoints.

use super::folder;
use super::manifest::{MANIFEST, Manifest, SavedFile, TrainProgress};
use super::model_files::RunFiles;
use super::shard::{ShardWriter, hash_file};
use crate::data::TOKENIZER;
use std::path::{Path, PathBuf};
use unisono::{Communicator, Max};
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::{Inventory, ParameterId};
use unisono_parallel::data_parallel::{DataParallel, LocalShard};

/// Position of the rank that saves or loads.
#[derive(Clone, Copy, Default)]
pub struct SavedBy<'a> {
    /// All ranks of the job; `None` if this rank is alone.
    pub world: Option<&'a Communicator>,
    /// Rank in the tensor parallel group.
    pub tensor_rank: usize,
}

impl SavedBy<'_> {
    pub(crate) fn rank(&self) -> usize {
        self.world.map_or(0, Communicator::rank)
    }

    pub(super) fn size(&self) -> usize {
        self.world.map_or(1, Communicator::size)
    }

    /// Returns this rank's error if it has one, and an error on every other rank if any rank has
    /// one.
    pub(crate) fn agree_on_result<T>(&self, result: Result<T>, doing: &str) -> Result<T> {
        let Some(world) = self.world else { return result };
        // No rank knows which one fails, so all of them ask for the highest rank with an error.
        let mut failed = [if result.is_err() { self.rank() as i64 } else { -1 }];
        world.all_reduce(&mut failed, Max)?;
        match failed {
            [-1] => result,
            [rank] => result.and(Err(Error::invalid(format!("{doing} failed on rank {rank}")))),
        }
    }
}

/// Saves the state of all ranks as the checkpoint of `progress.step` below `root`, and returns its
/// folder. Keeps the last `keep` checkpoints up to it. All ranks must call this.
///
/// # Errors
/// Fails on every rank if any rank cannot write a file. Earlier checkpoints stay complete.
pub fn save(
    root: &Path,
    who: SavedBy<'_>,
    strategy: &mut dyn DataParallel,
    inventory: &Inventory,
    progress: TrainProgress,
    setup: &RunSetup,
    keep: usize,
) -> Result<PathBuf> {
    Snapshot::take(root, who, strategy, inventory, progress, setup)?.write(who.world, keep)
}

/// Part of a checkpoint that stays the same during a run.
#[derive(Clone, Debug, Default)]
pub struct RunSetup {
    /// Configuration of the run, as TOML.
    pub configuration: String,
    /// Files that the checkpoint contains; only on rank 0.
    pub files: RunFiles,
}

/// Copy of a rank's state, to be written as its part of a checkpoint.
pub(crate) struct Snapshot {
    root: PathBuf,
    manifest: Manifest,
    /// State of this rank; `None` if other ranks write all that it has.
    shard: Option<ShardWriter>,
    /// See [`RunSetup`].
    files: RunFiles,
}

impl Snapshot {
    /// Copies the state of this rank. All ranks must call this.
    ///
    /// # Errors
    /// Fails on every rank if the folder of the checkpoint cannot be made, or a copy fails.
    pub(crate) fn take(
        root: &Path,
        who: SavedBy<'_>,
        strategy: &mut dyn DataParallel,
        inventory: &Inventory,
        progress: TrainProgress,
        setup: &RunSetup,
    ) -> Result<Self> {
        let step = progress.step;
        let begun = if who.rank() == 0 { folder::create_temporary(root, step).map(drop) } else { Ok(()) };
        // All ranks write into the folder that rank 0 makes, so they wait for it here.
        who.agree_on_result(begun, "making the folder of a checkpoint")?;
        let copied = copy_shard(who, strategy, inventory);
        let (mut moments, shard) = who.agree_on_result(copied, "copying the state of a checkpoint")?;
        // A rank knows the moments only of those parameters whose state it keeps.
        who.world.map_or(Ok(()), |world| world.all_reduce(&mut moments, Max))?;
        let manifest = Manifest::new(inventory, progress, &moments, &setup.configuration);
        Ok(Self { root: root.to_owned(), manifest, shard, files: setup.files.clone() })
    }

    /// Returns the folder that the checkpoint will have.
    pub(crate) fn folder(&self) -> PathBuf {
        folder::step_dir(&self.root, self.manifest.progress.step)
    }

    /// Writes the checkpoint, and returns its folder. The ranks of `world` must call this, with
    /// their snapshots of the same step.
    ///
    /// # Errors
    /// Fails on every rank if any rank cannot write a file. Earlier checkpoints stay complete, and
    /// what was written of this one is removed.
    pub(crate) fn write(self, world: Option<&Communicator>, keep: usize) -> Result<PathBuf> {
        let who = SavedBy { world, ..SavedBy::default() };
        let path = folder::temporary_dir(&self.root, self.manifest.progress.step);
        let written = self.write_parts(who, &path, keep);
        if written.is_err() && who.rank() == 0 {
            // The disk may be full. The error of writing says more than one of removing.
            let _ = std::fs::remove_dir_all(&path);
        }
        written
    }

    fn write_parts(self, who: SavedBy<'_>, path: &Path, keep: usize) -> Result<PathBuf> {
        let Self { root, mut manifest, shard, files } = self;
        let file = shard.map(|shard| write_shard(path, who.rank(), shard)).transpose();
        // A rank that failed would be missing in the exchange that follows.
        let file = who.agree_on_result(file, "writing a checkpoint")?;
        manifest.shards = gather_shard_files(who, file)?;
        let finished = match who.rank() {
            0 => finish(&root, path, (&mut manifest, files), keep),
            _ => Ok(()),
        };
        who.agree_on_result(finished, "finishing a checkpoint")?;
        Ok(folder::step_dir(&root, manifest.progress.step))
    }
}

/// Copies this rank's part. Returns the number of moments of each parameter as far as known, and
/// the part if it is not empty.
fn copy_shard(
    who: SavedBy<'_>,
    strategy: &mut dyn DataParallel,
    inventory: &Inventory,
) -> Result<(Vec<u64>, Option<ShardWriter>)> {
    let (mut writer, mut is_empty) = (ShardWriter::default(), true);
    let mut moments = vec![0; inventory.parameters.len()];
    let is_copy = |id| strategy.is_copy(ParameterId(id));
    let copies: Vec<bool> = (0..inventory.parameters.len()).map(is_copy).collect();
    strategy.for_each_shard(&mut |kept: LocalShard<'_>| {
        let parameter = &inventory[kept.parameter];
        moments[kept.parameter.0] = kept.moments.len() as u64;
        let (is_copy, start) = (copies[kept.parameter.0], kept.range.start);
        let count =
            parameter.counted_elements(who.tensor_rank).min(kept.range.end).saturating_sub(kept.range.start);
        // Several ranks have this state, and one of them writes it.
        if is_copy || !parameter.residency.is_owner() || count == 0 {
            return Ok(());
        }
        is_empty = false;
        writer.add(parameter, start, 0, &kept.weights[..count]);
        for (index, moment) in kept.moments.iter().enumerate() {
            writer.add(parameter, start, index + 1, &moment[..count]);
        }
        Ok(())
    })?;
    Ok((moments, (!is_empty).then_some(writer)))
}

fn write_shard(path: &Path, rank: usize, shard: ShardWriter) -> Result<SavedFile> {
    let file = shard_file_name(rank);
    shard.write(&path.join(&file))?;
    saved_file(path, file)
}

/// Returns the entry of a file that has been written.
fn saved_file(folder: &Path, file: String) -> Result<SavedFile> {
    let (sha256, bytes) = hash_file(&folder.join(&file))?;
    Ok(SavedFile { file, bytes, sha256 })
}

/// Writes a file and flushes it to disk.
fn write_file(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    std::fs::write(path, contents).map_err(|error| Error::file(path, error))?;
    folder::fsync(path)
}

fn shard_file_name(rank: usize) -> String {
    format!("rank-{rank:05}.safetensors")
}

/// Gathers the file entries of all ranks.
fn gather_shard_files(who: SavedBy<'_>, file: Option<SavedFile>) -> Result<Vec<SavedFile>> {
    let Some(world) = who.world else { return Ok(file.into_iter().collect()) };
    // The ranks of an `all_gather` send equal lengths, so a rank without a file sends an empty
    // record.
    let mine = file.map_or_else(|| vec![0; RECORD_LEN], |file| encode_record(&file));
    let mut records = vec![0; RECORD_LEN * world.size()];
    world.all_gather(&mine, &mut records)?;
    let files =
        records.chunks_exact(RECORD_LEN).enumerate().filter(|(_, record)| record[RECORD_LEN - 1] != 0);
    Ok(files.map(|(rank, record)| decode_record(rank, record)).collect())
}

/// Record length: file length, digest as text, and a flag.
const RECORD_LEN: usize = 8 + 64 + 1;

fn encode_record(file: &SavedFile) -> Vec<u8> {
    [&file.bytes.to_le_bytes()[..], file.sha256.as_bytes(), &[1]].concat()
}

fn decode_record(rank: usize, record: &[u8]) -> SavedFile {
    let bytes = u64::from_le_bytes(record[..8].try_into().expect("eight bytes"));
    SavedFile {
        file: shard_file_name(rank),
        bytes,
        sha256: String::from_utf8_lossy(&record[8..72]).into_owned(),
    }
}

/// Writes the tokenizer, the files of the model and the manifest, and gives the checkpoint its
/// final name.
fn finish(root: &Path, path: &Path, (manifest, files): (&mut Manifest, RunFiles), keep: usize) -> Result<()> {
    for (name, bytes) in files.model.iter() {
        write_file(&path.join(name), bytes)?;
        manifest.model_files.push(saved_file(path, name.to_owned())?);
    }
    if let Some(bytes) = files.tokenizer {
        write_file(&path.join(TOKENIZER), bytes)?;
        manifest.tokenizer = Some(saved_file(path, TOKENIZER.to_owned())?);
    }
    // The manifest is the last file, because `list` takes a folder with a manifest for complete.
    let file = path.join(MANIFEST);
    let text = manifest.to_text().map_err(|error| Error::file(&file, error))?;
    write_file(&file, text)?;
    folder::publish(root, manifest.progress.step, keep).map(drop)
}
