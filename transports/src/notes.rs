//! The protocol of notes between ranks that share memory, apart from its memory.
//!
//! A rank writes its notes on a board of its own, which everybody reads: note
//! `n` onto sheet `n mod SHEETS`. The writer waits for nobody; a reader that
//! is more than [`SHEETS`] notes behind has lost the oldest, and one that
//! reads while a sheet is overwritten notices and reads on from what is left.
//! A rank's last notes are never overwritten, and those say how it ended.
//!
//! Data race freedom, in words: every word is atomic. The stamp is taken away
//! before a sheet is written (release fence) and put back after (release). A
//! reader takes the stamp (acquire), the words, and the stamp again (acquire
//! fence): if both are the one it wants, no word is of another note.

use crate::MAX_NOTE_BYTES;
use crate::sync::{AtomicU64, Ordering, fence};

/// Notes that a board holds.
pub(crate) const SHEETS: u64 = 8;
/// Words of a note's text.
pub(crate) const TEXT_WORDS: usize = MAX_NOTE_BYTES / 8;

/// Where the words of one rank's board are.
pub(crate) trait NoteBoard {
    /// One more than the number of the note that is on this note's sheet; zero if none is.
    fn stamp(&self, number: u64) -> &AtomicU64;
    /// Length of the note on that sheet, in bytes.
    fn length(&self, number: u64) -> &AtomicU64;
    /// The `index`-th of [`TEXT_WORDS`] words of that sheet.
    fn word(&self, number: u64, index: usize) -> &AtomicU64;
}

/// Writes note `number`: its owner counts from 0, and leaves none out.
pub(crate) fn write(board: &impl NoteBoard, number: u64, note: &[u8]) {
    let note = &note[..note.len().min(MAX_NOTE_BYTES)];
    board.stamp(number).store(0, Ordering::Relaxed);
    fence(Ordering::Release);
    board.length(number).store(note.len() as u64, Ordering::Relaxed);
    for (index, bytes) in note.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        board.word(number, index).store(u64::from_le_bytes(word), Ordering::Relaxed);
    }
    board.stamp(number).store(number + 1, Ordering::Release);
}

/// What one rank has read of another's board.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NoteReader {
    next: u64,
}

impl NoteReader {
    /// The next note, if it is there.
    pub(crate) fn read(&mut self, board: &impl NoteBoard) -> Option<Vec<u8>> {
        // One sheet tells which note is the oldest that may be left; it is on one of the sheets from there.
        for _ in 0..=SHEETS {
            // Untrusted stamps may have led to the last number that there is.
            let expected = self.next.checked_add(1)?;
            let stamp = board.stamp(self.next).load(Ordering::Acquire);
            if stamp == expected {
                let text = text(board, self.next);
                fence(Ordering::Acquire);
                if board.stamp(self.next).load(Ordering::Relaxed) == stamp {
                    self.next = expected;
                    return Some(text);
                }
            } else if stamp > expected && stamp < u64::MAX {
                self.next = stamp.saturating_sub(SHEETS).max(expected);
            } else {
                return None;
            }
        }
        None
    }
}

/// What is on the sheet; of a length that its owner may have garbled.
fn text(board: &impl NoteBoard, number: u64) -> Vec<u8> {
    let length = (board.length(number).load(Ordering::Relaxed) as usize).min(MAX_NOTE_BYTES);
    let words = (0..length.div_ceil(8)).map(|index| board.word(number, index).load(Ordering::Relaxed));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Model(Vec<AtomicU64>);

    impl Model {
        fn new() -> Self {
            Self((0..SHEETS as usize * (2 + TEXT_WORDS)).map(|_| AtomicU64::new(0)).collect())
        }

        fn at(&self, number: u64, index: usize) -> &AtomicU64 {
            &self.0[(number % SHEETS) as usize * (2 + TEXT_WORDS) + index]
        }
    }

    impl NoteBoard for Model {
        fn stamp(&self, number: u64) -> &AtomicU64 {
            self.at(number, 0)
        }

        fn length(&self, number: u64) -> &AtomicU64 {
            self.at(number, 1)
        }

        fn word(&self, number: u64, index: usize) -> &AtomicU64 {
            self.at(number, 2 + index)
        }
    }

    #[test]
    fn notes_are_read_in_order_and_the_last_ones_are_never_lost() {
        let (board, mut reader) = (Model::new(), NoteReader::default());
        assert_eq!(reader.read(&board), None);
        for number in 0..SHEETS {
            write(&board, number, &vec![number as u8; number as usize * 100]);
        }
        for number in 0..SHEETS {
            assert_eq!(reader.read(&board), Some(vec![number as u8; number as usize * 100]));
        }
        for number in SHEETS..10 * SHEETS + 3 {
            write(&board, number, &number.to_le_bytes());
        }
        let read: Vec<_> = std::iter::from_fn(|| reader.read(&board)).collect();
        let last: Vec<_> =
            (9 * SHEETS + 3..10 * SHEETS + 3).map(|number| number.to_le_bytes().to_vec()).collect();
        assert_eq!(read, last);
    }

    #[test]
    fn garbage_on_a_board_harms_nobody() {
        for garbage in [1, 2, 9, 1 << 40, u64::MAX - 1, u64::MAX] {
            let (board, mut reader) = (Model::new(), NoteReader::default());
            board.0.iter().for_each(|word| word.store(garbage, Ordering::Relaxed));
            for _ in 0..20 {
                assert!(reader.read(&board).is_none_or(|note| note.len() <= MAX_NOTE_BYTES));
            }
        }
    }

    #[test]
    fn after_the_last_number_there_is_none() {
        let (board, mut reader) = (Model::new(), NoteReader { next: u64::MAX - 1 });
        board.stamp(u64::MAX - 1).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(reader.read(&board), Some(Vec::new()));
        assert_eq!(reader.read(&board), None);
    }

    #[test]
    fn a_reader_never_sees_half_a_note() {
        let board = Model::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..200_000 {
                    write(&board, number, &[number as u8; 64]);
                }
            });
            let (mut reader, mut last) = (NoteReader::default(), 0);
            while last < 200_000 {
                if let Some(note) = reader.read(&board) {
                    assert!(
                        reader.next > last && note == [(reader.next - 1) as u8; 64],
                        "note {}",
                        reader.next
                    );
                    last = reader.next;
                }
            }
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// One sheet that is written twice, of notes of two words.
    #[derive(Default)]
    struct Model {
        words: [AtomicU64; 4],
    }

    impl NoteBoard for Model {
        fn stamp(&self, _: u64) -> &AtomicU64 {
            &self.words[0]
        }

        fn length(&self, _: u64) -> &AtomicU64 {
            &self.words[1]
        }

        fn word(&self, _: u64, index: usize) -> &AtomicU64 {
            &self.words[2 + index]
        }
    }

    #[test]
    fn loom_a_reader_sees_a_whole_note_or_none() {
        loom::model(|| {
            let board = Arc::new(Model::default());
            let theirs = Arc::clone(&board);
            let writing = loom::thread::spawn(move || {
                write(&*theirs, 0, &[1; 16]);
                write(&*theirs, SHEETS, &[2; 16]);
            });
            let mut reader = NoteReader::default();
            if let Some(note) = reader.read(&*board) {
                assert_eq!(note, if reader.next == 1 { [1; 16] } else { [2; 16] });
            }
            writing.join().unwrap();
        });
    }
}
