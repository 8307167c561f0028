//! The tag of a message.

/// Four words that the sender attaches and the receiver compares. Transports do not interpret them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Tag(pub [u64; 4]);

impl Tag {
    /// Returns the words as 32 bytes, little-endian.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (place, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads the words from 32 bytes, little-endian.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let mut words = [0; 4];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(place.try_into().expect("chunks of eight"));
        }
        Self(words)
    }
}
