//! Saves weights.

use super::files::{FileIndex, INDEX, WEIGHTS};
use super::layout::{FileTensor, Layout};
use crate::checkpoint::{ModelFiles, SavedBy, folder, refused_names};
use crate::data::TOKENIZER;
use crate::output_file::OutputFile;
use half::bf16;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::json;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use unisono::Communicator;
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::{Dtype, Inventory, Parameter, ParameterId, ShardSpec, UnitId};
use unisono_nn::step_plan::Direction;
use unisono_nn::strategy::host_weights;
use unisono_parallel::data_parallel::DataParallel;
use unisono_reducers::{pack, unpack};

/// Element type and size of files.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// Element type.
    pub dtype: Dtype,
    /// Bytes of tensors after which another file begins. A larger tensor has a file of its own.
    pub max_bytes: usize,
}

impl Default for FileOptions {
    /// Returns 32 bits, and files of 5 GB as Hugging Face's libraries write them.
    fn default() -> Self {
        Self { dtype: Dtype::F32, max_bytes: 5_000_000_000 }
    }
}

/// Saves the weights to the folder at `path`. Rank 0 writes, and holds one parameter at a time. All
/// ranks must call this; `tensor` is the tensor parallel group, if there is one.
///
/// # Errors
/// Fails on every rank if a file cannot be written. Previous files in the folder stay intact then.
pub fn save(
    path: &Path,
    files: (Layout, FileOptions),
    who: SavedBy<'_>,
    tensor: Option<&Communicator>,
    strategy: &mut dyn DataParallel,
    inventory: &Inventory,
) -> Result<()> {
    save_with_progress(path, files, who, tensor, strategy, inventory, &mut |_, _| ())
}

/// Saves weights as [`save`] does. Calls `progress` with the number of units that are done, and of
/// all.
///
/// # Errors
/// Fails as [`save`] does.
pub(crate) fn save_with_progress(
    path: &Path,
    (layout, options): (Layout, FileOptions),
    who: SavedBy<'_>,
    tensor: Option<&Communicator>,
    strategy: &mut dyn DataParallel,
    inventory: &Inventory,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<()> {
    let mut writer = match who.rank() {
        0 => Writer::create(path, layout, options, inventory).map(Some),
        _ => Ok(None),
    };
    for unit in (0..inventory.units.len()).map(UnitId) {
        progress(unit.0, inventory.units.len());
        strategy.pre_unit(unit, Direction::Forward)?;
        for id in inventory[unit].parameters.clone().map(ParameterId) {
            let parts = gather(tensor, &inventory[id], &host_weights(strategy, id)?)?;
            // After a write error, collectives continue, because other ranks take part in them.
            writer = writer.and_then(|writer| match writer {
                Some(writer) => writer.write(&inventory[id], &parts).map(Some),
                None => Ok(None),
            });
        }
        strategy.post_unit(unit, Direction::Forward)?;
    }
    strategy.wait_all()?;
    let finished = writer.and_then(|writer| writer.map_or(Ok(()), Writer::publish));
    who.agree_on_result(finished, "writing a file of weights")
}

/// Gathers the shards of a parameter from all ranks of `tensor`; one copy if it is replicated.
fn gather(tensor: Option<&Communicator>, parameter: &Parameter, part: &[f32]) -> Result<Vec<f32>> {
    let Some(tensor) = tensor.filter(|_| parameter.shard.is_some()) else { return Ok(part.to_vec()) };
    let mut parts = vec![0.0; tensor.size() * part.len()];
    tensor.all_gather(part, &mut parts)?;
    Ok(parts)
}

/// Unfinished files of a model.
struct Writer {
    folder: PathBuf,
    layout: Layout,
    dtype: Dtype,
    /// Tensors of each file, in order.
    plan: Vec<Vec<FileTensor>>,
    /// Number of the open file.
    number: usize,
    /// Number of tensors that the open file has.
    written: usize,
    open: Option<BufWriter<File>>,
}

impl Writer {
    /// Plans the files, and creates the folder.
    fn create(folder: &Path, layout: Layout, options: FileOptions, inventory: &Inventory) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(|error| Error::file(folder, error))?;
        let tensors = inventory.parameters.iter().flat_map(|parameter| layout.tensors(parameter));
        let (mut plan, mut bytes) = (vec![Vec::new()], 0);
        for tensor in tensors {
            let size = tensor.range.len() * options.dtype.size();
            if bytes > 0 && bytes + size > options.max_bytes {
                plan.push(Vec::new());
                bytes = 0;
            }
            bytes += size;
            plan.last_mut().expect("one at least").push(tensor);
        }
        Ok(Self {
            folder: folder.to_owned(),
            layout,
            dtype: options.dtype,
            plan,
            number: 0,
            written: 0,
            open: None,
        })
    }

    /// Returns the name of file `number`.
    fn name(&self, number: usize) -> String {
        match self.plan.len() {
            1 => WEIGHTS.to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        }
    }

    fn unfinished(&self, number: usize) -> PathBuf {
        self.folder.join(self.name(number)).with_extension("unfinished")
    }

    /// Appends the tensors of a parameter.
    fn write(mut self, parameter: &Parameter, parts: &[f32]) -> Result<Self> {
        let assembled = assemble(parameter, parts);
        for tensor in self.layout.tensors(parameter) {
            let values = in_file_order(&tensor, &assembled[tensor.range.clone()]);
            let bytes = encode(self.dtype, &values);
            self.append(&bytes)?;
        }
        Ok(self)
    }

    /// Appends one tensor to the open file, or to the next one.
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let number = self.number;
        let path = self.unfinished(number);
        let failed = |error: std::io::Error| Error::file(&path, error);
        if self.open.is_none() {
            let file = File::create(&path).map_err(failed)?;
            let mut file = BufWriter::new(file);
            file.write_all(&self.header(number)?).map_err(failed)?;
            self.open = Some(file);
        }
        self.open.as_mut().expect("opened").write_all(bytes).map_err(failed)?;
        self.written += 1;
        if self.written == self.plan[number].len() {
            // Dropping the writer would flush it as well, and hide an error.
            self.open.take().expect("opened").flush().map_err(failed)?;
            (self.number, self.written) = (number + 1, 0);
        }
        Ok(())
    }

    /// Returns the header of a file.
    fn header(&self, number: usize) -> Result<Vec<u8>> {
        let path = self.unfinished(number);
        let mut end = 0;
        let info = |tensor: &FileTensor| {
            let start = end;
            end += self.dtype.size() * tensor.range.len();
            let dtype = match self.dtype {
                Dtype::F32 => safetensors::Dtype::F32,
                Dtype::Bf16 => safetensors::Dtype::BF16,
            };
            (
                tensor.name.clone(),
                TensorInfo { dtype, shape: tensor.shape.clone(), data_offsets: (start, end) },
            )
        };
        let tensors = self.plan[number].iter().map(info).collect();
        // Hugging Face's readers require this entry.
        let texts = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let metadata = Metadata::new(Some(texts), tensors).map_err(|error| Error::file(&path, error))?;
        let mut header = serde_json::to_vec(&metadata).map_err(|error| Error::file(&path, error))?;
        // The format allows spaces after the header. With them, tensors begin at a multiple of
        // eight.
        header.resize(header.len().next_multiple_of(8), b' ');
        Ok([&(header.len() as u64).to_le_bytes()[..], &header].concat())
    }

    /// Renames the complete files to their final names, and writes the index of several.
    fn publish(self) -> Result<()> {
        let index = self.folder.join(INDEX);
        for number in 0..self.plan.len() {
            let (unfinished, path) = (self.unfinished(number), self.folder.join(self.name(number)));
            // The contents are on disk before the file gets its name, so that a crash leaves no
            // incomplete file of that name.
            folder::fsync(&unfinished)?;
            std::fs::rename(&unfinished, &path).map_err(|error| Error::file(&path, error))?;
        }
        let failed = |error: std::io::Error| Error::file(&index, error);
        if self.plan.len() == 1 {
            // An index of earlier files would hide the new one.
            let removed = if index.exists() { std::fs::remove_file(&index).map_err(failed) } else { Ok(()) };
            return removed.and_then(|()| self.remove_earlier());
        }
        let elements = self.plan.iter().flatten().map(|tensor| tensor.range.len()).sum::<usize>();
        let named =
            self.plan.iter().enumerate().flat_map(|(number, tensors)| {
                tensors.iter().map(move |tensor| (tensor.name.clone(), number))
            });
        let text = FileIndex {
            metadata: [("total_size".to_owned(), json!(elements * self.dtype.size()))].into(),
            weight_map: named.map(|(name, number)| (name, self.name(number))).collect(),
        };
        let text = serde_json::to_string_pretty(&text).map_err(|error| Error::file(&index, error))?;
        // Readers open the files that the index names, so the index follows them.
        OutputFile::write(&index, text)?;
        self.remove_earlier()
    }

    /// Removes the files of earlier exports that this one did not replace. Readers that look for a
    /// single file first, or read all files of the folder, would find earlier weights.
    fn remove_earlier(&self) -> Result<()> {
        let written: Vec<_> = (0..self.plan.len()).map(|number| self.name(number)).collect();
        for name in
            weights_in(&self.folder)?.into_iter().filter(|name| is_exported(name) && !written.contains(name))
        {
            let path = self.folder.join(name);
            std::fs::remove_file(&path).map_err(|error| Error::file(&path, error))?;
        }
        Ok(())
    }
}

/// Checks that the folder of an export has no files that readers would take for a part of it: other
/// weights, an adapter, or files of another model. The files `written`, by their names in
/// checkpoints, are replaced.
///
/// # Errors
/// Names the file.
pub(crate) fn check_folder(folder: &Path, written: &[&str]) -> Result<()> {
    let foreign = |name: &Path| {
        let what = "readers would take it for a part of the exported model, which has no such file: remove it, or \
                    export to another folder";
        Err(Error::file(folder.join(name), what))
    };
    if let Some(name) = weights_in(folder)?.into_iter().find(|name| !is_exported(name)) {
        return foreign(name.as_ref());
    }
    let known = ModelFiles::names().chain(refused_names()).chain([TOKENIZER]).map(str::to_owned);
    let known = known.chain(ModelFiles::templates_in(folder)?);
    let others = known.filter(|name| !written.contains(&name.as_str()));
    let mut paths = others.map(|name| ModelFiles::path_in_folder(&name));
    match paths.find(|path| folder.join(path).symlink_metadata().is_ok()) {
        Some(path) => foreign(&path),
        None => Ok(()),
    }
}

/// Returns the names of the files of weights in a folder; none if there is no folder.
fn weights_in(folder: &Path) -> Result<Vec<String>> {
    let failed = |error: std::io::Error| Error::file(folder, error);
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") {
            names.push(name);
        }
    }
    // The system lists a folder in any order, and an error names the first file that is wrong.
    names.sort();
    Ok(names)
}

/// Returns true for the names that an export gives to its files of weights.
fn is_exported(name: &str) -> bool {
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = name.strip_prefix("model-").and_then(|tail| tail.strip_suffix(".safetensors"));
    let numbers = numbers.and_then(|numbers| numbers.split_once("-of-"));
    name == WEIGHTS || numbers.is_some_and(|(number, count)| is_number(number) && is_number(count))
}

/// Returns the elements of a tensor as the file has them.
fn in_file_order(tensor: &FileTensor, values: &[f32]) -> Vec<f32> {
    let mut ordered = vec![0.0; values.len()];
    for (index, value) in tensor.range.clone().zip(values) {
        ordered[tensor.file_index(index)] = *value;
    }
    ordered
}

/// Returns the bytes of elements.
fn encode(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Dtype::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
    }
}

/// Assembles a whole parameter from its shards.
fn assemble(parameter: &Parameter, parts: &[f32]) -> Vec<f32> {
    let strides = row_major(&parameter.global_shape());
    let mut assembled = vec![0.0; parameter.global_shape().iter().product()];
    for (number, values) in parts.chunks_exact(parameter.count()).enumerate() {
        for (dimension, (here, there, count)) in shard_runs(parameter, number) {
            let mut shape = parameter.shape.clone();
            let shard_strides = row_major(&shape);
            shape[dimension] = count;
            let mut contiguous = vec![0.0; shape.iter().product()];
            let (source_start, target_start) = (here * shard_strides[dimension], there * strides[dimension]);
            pack(&mut contiguous, &values[source_start.min(values.len())..], &shape, &shard_strides);
            let end = assembled.len();
            unpack(&mut assembled[target_start.min(end)..], &contiguous, &shape, &strides);
        }
    }
    assembled
}

/// Returns the strides of a row-major tensor.
fn row_major(shape: &[usize]) -> Vec<usize> {
    (1..=shape.len()).map(|inner| shape[inner..].iter().product()).collect()
}

/// Returns the sharded dimension of part `number` of a parameter, and its runs.
fn shard_runs(parameter: &Parameter, number: usize) -> Vec<(usize, (usize, usize, usize))> {
    match &parameter.shard {
        Some(cut) => {
            ShardSpec { shard_index: number, ..cut.clone() }.runs().map(|run| (cut.dim, run)).collect()
        }
        None => vec![(0, (0, 0, parameter.shape[0]))],
    }
}
