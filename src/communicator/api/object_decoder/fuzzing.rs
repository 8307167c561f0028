//! Fuzz target: bytes of a peer, decoded as objects of several types.

use super::decode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A value with all that serde knows.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Value {
    Nothing,
    Number(i128),
    Text { text: String, letter: char },
    Pair(f32, Option<bool>),
    List(Vec<Value>),
    Map(BTreeMap<u16, (Box<Value>, ())>),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Chain {
    pub(crate) next: Option<Box<Chain>>,
}

/// Decodes bytes as several types. Decoded objects are encoded and decoded again.
pub(crate) fn fuzz(bytes: &[u8]) {
    check::<Value>(bytes);
    check::<Chain>(bytes);
    check::<Vec<Vec<()>>>(bytes);
    check::<BTreeMap<String, Option<(u8, i64)>>>(bytes);
    check::<(Vec<u32>, [bool; 3], Option<char>)>(bytes);
}

fn check<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    let Ok(object) = decode::<T>(bytes) else { return };
    let encoded = postcard::to_allocvec(&object).expect("what was decoded");
    // Numbers in other forms may have been longer, and a limit counts the bytes.
    if let Ok(again) = decode::<T>(&encoded) {
        assert_eq!(postcard::to_allocvec(&again), Ok(encoded));
    }
}
