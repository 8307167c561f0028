//! Damaged and forged checkpoints: rejected by name, without reading or allocating their data.

use crate::checkpoint::shard::hash_file;
use crate::checkpoint::tests::{save_on_one_rank, strategy};
use crate::checkpoint::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use unisono_nn::parameter::Dtype;
use unisono_parallel::testing::inventory;

const SHARD: &str = "rank-00000.safetensors";

/// Change of a valid checkpoint.
enum Corruption {
    /// Change of the manifest.
    Manifest(fn(&mut Value)),
    /// Change of the header of the tensor file, as text.
    Header(fn(&Value) -> String),
    /// Change of the bytes of the tensor file.
    Bytes(fn(&mut Vec<u8>)),
}

/// Rewrites the manifest in `folder`, with a valid checksum, as a forger would do.
pub(crate) fn rewrite(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    manifest["checksum"] = "0".repeat(64).into();
    let checksum = super::manifest::checksum_of(&manifest.to_string());
    manifest["checksum"] = checksum.into();
    std::fs::write(path, manifest.to_string()).unwrap();
}

impl Corruption {
    /// Applies the change. The manifest gets the digest of the result, as a forger would do.
    fn apply(self, folder: &Path) {
        let path = folder.join(SHARD);
        let mut bytes = std::fs::read(&path).unwrap();
        match self {
            Corruption::Manifest(change) => return rewrite(folder, change),
            Corruption::Bytes(change) => change(&mut bytes),
            Corruption::Header(change) => {
                let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
                let header = change(&serde_json::from_slice(&bytes[8..8 + length]).unwrap());
                let start = (header.len() as u64).to_le_bytes();
                bytes.splice(..8 + length, start.into_iter().chain(header.into_bytes()));
            }
        }
        std::fs::write(&path, bytes).unwrap();
        let (sha256, length) = hash_file(&path).unwrap();
        rewrite(folder, |manifest| {
            manifest["shards"][0]["sha256"] = sha256.into();
            manifest["shards"][0]["bytes"] = length.into();
        });
    }
}

/// Returns a header whose first tensor is changed.
fn first_tensor(header: &Value, change: impl FnOnce(String, Value) -> (String, Value)) -> String {
    let mut header = header.as_object().unwrap().clone();
    let name = header.keys().find(|name| *name != "__metadata__").unwrap().clone();
    let tensor = header.remove(&name).unwrap();
    let (name, tensor) = change(name, tensor);
    header.insert(name, tensor);
    Value::from(header).to_string()
}

/// Returns a header with this shard of the first tensor's parameter.
fn with_cut(header: &Value, cut: Value) -> String {
    let mut parameter = String::new();
    first_tensor(header, |name, tensor| {
        parameter = name.rsplitn(3, '/').last().unwrap().to_owned();
        (name, tensor)
    });
    let mut header = header.clone();
    header["__metadata__"]["shard_specs"] = json!({ parameter: cut }).to_string().into();
    header.to_string()
}

/// Name of the change, the change, and a word of the error.
const CHANGES: [(&str, Corruption, &str); 18] = [
    (
        "another format",
        Corruption::Manifest(|m| *m = json!({ "format": 2 })),
        "checkpoint format 2, but this program reads format 4",
    ),
    ("truncated", Corruption::Bytes(|bytes| bytes.truncate(bytes.len() - 5)), "where the header promises"),
    ("cut within its header", Corruption::Bytes(|bytes| bytes.truncate(50)), SHARD),
    ("empty", Corruption::Bytes(Vec::clear), SHARD),
    (
        "an oversized header",
        Corruption::Bytes(|bytes| bytes[..8].fill(0xff)),
        "a header of 18446744073709551615 bytes",
    ),
    ("a header that is no text", Corruption::Bytes(|bytes| bytes[8..20].fill(0xff)), SHARD),
    ("a tensor beyond the end", Corruption::Header(out_of_range), SHARD),
    ("one name twice", Corruption::Header(duplicated), "duplicated"),
    (
        "a name of no piece",
        Corruption::Header(|header| first_tensor(header, |_, t| ("../x".to_owned(), t))),
        "no checkpoint has",
    ),
    ("a piece beyond all memory", Corruption::Header(far), "no checkpoint has"),
    (
        "a shard that overflows",
        Corruption::Header(|header| with_cut(header, truncated(0, usize::MAX, 3))),
        "impossible shard",
    ),
    (
        "a shard of no part",
        Corruption::Header(|header| with_cut(header, truncated(0, 1, 0))),
        "impossible shard",
    ),
    (
        "a shard of a missing dimension",
        Corruption::Header(|header| with_cut(header, truncated(9, 1, 1))),
        "impossible shard",
    ),
    (
        "a path out of the folder",
        Corruption::Manifest(|m| m["shards"][0]["file"] = "../../etc/passwd".into()),
        "is not the name of a file",
    ),
    (
        "an absolute path",
        Corruption::Manifest(|m| m["shards"][0]["file"] = "/etc/passwd".into()),
        "is not the name of a file",
    ),
    (
        "another shape",
        Corruption::Manifest(|m| m["parameters"][0]["shape"] = json!([3, 1u64 << 60])),
        "the model has",
    ),
    ("a parameter twice", Corruption::Manifest(same_parameter), "duplicated"),
    (
        "moments beyond all memory",
        Corruption::Manifest(|m| m["parameters"][0]["moments"] = json!(1u64 << 60)),
        "moments",
    ),
];

fn truncated(dimension: usize, size: usize, parts: usize) -> Value {
    json!({ "dim": dimension, "global_size": size, "block_count": 1, "granularity": 1, "shard_count": parts, "shard_index": 2 })
}

fn out_of_range(header: &Value) -> String {
    first_tensor(header, |name, mut tensor| {
        tensor["data_offsets"][1] = json!(1u64 << 60);
        (name, tensor)
    })
}

fn duplicated(header: &Value) -> String {
    let mut text = String::new();
    first_tensor(header, |name, tensor| {
        text = format!("{{{}:{tensor},", Value::from(name.as_str()));
        (name, tensor)
    });
    text + &header.to_string()[1..]
}

fn far(header: &Value) -> String {
    first_tensor(header, |name, tensor| {
        (format!("{}/{}", name.rsplit_once('/').unwrap().0, usize::MAX), tensor)
    })
}

fn same_parameter(manifest: &mut Value) {
    let first = manifest["parameters"][0].clone();
    manifest["parameters"].as_array_mut().unwrap().push(first);
}

fn valid_checkpoint(root: &Path) -> PathBuf {
    let inventory = inventory(Dtype::F32);
    let mut strategy = strategy(&inventory);
    save(
        root,
        save_on_one_rank(),
        &mut *strategy,
        &inventory,
        TrainProgress::default(),
        &RunSetup::default(),
        1,
    )
    .unwrap()
}

#[test]
fn corrupt_checkpoints_are_rejected() {
    for (what, change, word) in CHANGES {
        let root = tempfile::tempdir().unwrap();
        let folder = valid_checkpoint(root.path());
        let inventory = inventory(Dtype::F32);
        load(&folder, save_on_one_rank(), &mut *strategy(&inventory), &inventory).expect("it is sound");
        change.apply(&folder);
        let error = load(&folder, save_on_one_rank(), &mut *strategy(&inventory), &inventory)
            .expect_err(what)
            .to_string();
        assert!(error.contains(word), "{what}: {error}");
    }
}

#[test]
fn changed_manifest_is_damaged_whatever_has_changed() {
    let root = tempfile::tempdir().unwrap();
    let folder = valid_checkpoint(root.path());
    let path = folder.join("manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    verify_files(&folder).expect("it is sound");
    for place in (0..text.len()).step_by(7) {
        let mut bytes = text.clone().into_bytes();
        bytes[place] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let error = verify_files(&folder).expect_err(&format!("byte {place}")).to_string();
        assert!(error.contains("manifest.json"), "{error}");
    }
    std::fs::write(&path, text.replace("\"step\": 0", "\"step\": 1000000000000000000")).unwrap();
    let error = verify_files(&folder).unwrap_err().to_string();
    assert!(error.ends_with("the manifest is damaged"), "{error}");
}
