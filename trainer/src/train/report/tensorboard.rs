//! Step records as event files of TensorBoard: records of TFRecord with a scalar summary each.

use super::StepRecord;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use unisono_nn::error::{Error, Result};

/// Writer of one event file.
pub(super) struct EventWriter {
    path: PathBuf,
    file: File,
}

impl EventWriter {
    /// Creates an event file in `folder`, for a run that goes on after `step`. TensorBoard drops
    /// the events of earlier files after this step.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) fn create(folder: &Path, step: u64) -> Result<Self> {
        let failed = |error| Error::file(folder, format!("log.tensorboard: {error}"));
        std::fs::create_dir_all(folder).map_err(failed)?;
        let name = format!("events.out.tfevents.{:.6}.{}", now(), std::process::id());
        let path = folder.join(name);
        let file = File::create(&path).map_err(failed)?;
        let mut writer = Self { path, file };
        writer.write_event(&event(now(), 0, &bytes_field(FILE_VERSION, b"brain.Event:2")))?;
        let start = varint_field(STATUS, START);
        writer.write_event(&event(now(), step + 1, &bytes_field(SESSION_LOG, &start)))?;
        Ok(writer)
    }

    /// Writes the scalars of a step.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) fn write(&mut self, record: &StepRecord) -> Result<()> {
        let values: Vec<u8> = scalars(record).iter().flat_map(|&(tag, value)| scalar(tag, value)).collect();
        self.write_event(&event(now(), record.step, &bytes_field(SUMMARY, &values)))
    }

    fn write_event(&mut self, event: &[u8]) -> Result<()> {
        self.file.write_all(&tf_record(event)).map_err(|error| Error::file(&self.path, error))
    }
}

/// Returns the scalars of a step with their tags.
fn scalars(record: &StepRecord) -> Vec<(&'static str, f64)> {
    let validation = record.validation.map(|loss| ("loss/validation", loss));
    let perplexity = record.perplexity.map(|perplexity| ("perplexity/validation", perplexity));
    let always = [
        ("loss/train", record.loss),
        ("optimizer/gradient_norm", record.grad_norm),
        ("optimizer/learning_rate", record.lr),
        ("time/step_seconds", record.seconds),
        ("time/exposed_seconds", record.exposed_seconds),
        ("time/tokens_per_second", record.tokens_per_second),
        ("time/mfu", record.mfu),
        ("memory/state_bytes", record.memory as f64),
    ];
    always.into_iter().chain(validation).chain(perplexity).collect()
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

// Numbers of the fields in TensorFlow's event.proto and summary.proto.
const WALL_TIME: u8 = 1;
const STEP: u8 = 2;
const FILE_VERSION: u8 = 3;
const SUMMARY: u8 = 5;
const SESSION_LOG: u8 = 7;
const STATUS: u8 = 1;
const VALUE: u8 = 1;
const TAG: u8 = 1;
const SIMPLE_VALUE: u8 = 2;
/// Status of a session that begins.
const START: u64 = 1;

/// Encodes an `Event` with the field `what`.
fn event(wall_time: f64, step: u64, what: &[u8]) -> Vec<u8> {
    let time = [&[WALL_TIME << 3 | 1][..], &wall_time.to_le_bytes()].concat();
    [time, varint_field(STEP, step), what.to_vec()].concat()
}

/// Encodes a `Summary.Value`.
fn scalar(tag: &str, value: f64) -> Vec<u8> {
    let number = [&[SIMPLE_VALUE << 3 | 5][..], &(value as f32).to_le_bytes()].concat();
    bytes_field(VALUE, &[bytes_field(TAG, tag.as_bytes()), number].concat())
}

fn bytes_field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &varint(bytes.len() as u64), bytes].concat()
}

fn varint_field(number: u8, value: u64) -> Vec<u8> {
    [&[number << 3][..], &varint(value)].concat()
}

/// Encodes a number in groups of seven bits, the lowest first.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Frames data as a TFRecord: length and data, each followed by its masked checksum.
fn tf_record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length).to_le_bytes(), data, &masked_crc(data).to_le_bytes()].concat()
}

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Returns the CRC-32C of `bytes` (Castagnoli's polynomial, reflected).
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_match_published_values() {
        // RFC 3720, B.4, and the check value of CRC-32C.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn event_has_the_bytes_that_tensorboard_writes() {
        // tensorboard 2.21: RecordWriter.write(Event(wall_time=1.5, step=300, summary=...)).
        let summary = bytes_field(SUMMARY, &scalar("loss/train", 2.5));
        let bytes = tf_record(&event(1.5, 300, &summary));
        assert_eq!(bytes, GOLDEN);
    }

    #[test]
    fn file_has_a_record_for_each_step() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path(), 4).unwrap();
        let record = StepRecord { step: 5, loss: 2.0, validation: Some(1.0), ..StepRecord::default() };
        writer.write(&record).unwrap();
        let bytes = std::fs::read(&writer.path).unwrap();
        let mut remaining = &bytes[..];
        let mut events = Vec::new();
        while !remaining.is_empty() {
            let length = u64::from_le_bytes(remaining[..8].try_into().unwrap()) as usize;
            let (framed, tail) = remaining.split_at(16 + length);
            assert_eq!(tf_record(&framed[12..12 + length]), framed);
            events.push(framed[12..12 + length].to_vec());
            remaining = tail;
        }
        assert_eq!(events.len(), 3);
        let has = |event: &[u8], part: &[u8]| event.windows(part.len()).any(|found| found == part);
        assert!(has(&events[0], b"brain.Event:2") && has(&events[1], &varint_field(STEP, 5)));
        for (tag, value) in [("loss/train", 2.0), ("loss/validation", 1.0)] {
            assert!(has(&events[2], &scalar(tag, value)), "{tag}");
        }
    }

    const GOLDEN: [u8; 49] = [
        33, 0, 0, 0, 0, 0, 0, 0, 1, 123, 236, 246, 9, 0, 0, 0, 0, 0, 0, 248, 63, 16, 172, 2, 42, 19, 10, 17,
        10, 10, 108, 111, 115, 115, 47, 116, 114, 97, 105, 110, 21, 0, 0, 32, 64, 157, 195, 175, 134,
    ];
}
