//! Decoding of objects that other ranks encoded, within limits.
//!
//! Bytes of one rank must not make another rank recurse until its stack overflows, reserve memory
//! for elements that do not exist, or loop over elements that have no bytes. So a layer between
//! serde and postcard counts how deeply values are nested, and how many elements sequences and maps
//! have.

#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::communicator) mod fuzzing;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};
use std::cell::Cell;

/// Decodes an object. No byte may be left over.
pub(in crate::communicator) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let limits = Limits {
        bytes: bytes.len(),
        depth: Cell::new(DEPTH_MAX),
        elements: Cell::new(bytes.len().saturating_add(ELEMENTS_WITHOUT_BYTES_MAX)),
        refusal: Cell::new(None),
    };
    let mut decoder = postcard::Deserializer::from_bytes(bytes);
    let decoded = T::deserialize(Limited { inner: &mut decoder, limits: &limits });
    if let Some(refusal) = limits.refusal.take() {
        return Err(refusal);
    }
    let object = decoded.map_err(|error| error.to_string())?;
    match decoder.finalize() {
        Ok([]) => Ok(object),
        Ok(tail) => Err(format!("{} bytes are left over", tail.len())),
        Err(error) => Err(error.to_string()),
    }
}

/// The remaining limits of one object.
struct Limits {
    /// Length of the whole object.
    bytes: usize,
    /// Number of values that may still be nested.
    depth: Cell<usize>,
    /// Number of elements that sequences and maps may still have.
    elements: Cell<usize>,
    /// The limit that was exceeded. It is kept here because postcard's errors have no text.
    refusal: Cell<Option<String>>,
}

impl Limits {
    fn refuse<R, E: Error>(&self, what: String) -> Result<R, E> {
        self.refusal.set(Some(what));
        Err(E::custom("a limit was exceeded"))
    }

    /// Decodes a value that may contain values of its own type.
    fn nested<R, E: Error>(&self, decode: impl FnOnce() -> Result<R, E>) -> Result<R, E> {
        let Some(left) = self.depth.get().checked_sub(1) else {
            return self.refuse(format!("its values are nested more than {DEPTH_MAX} deep"));
        };
        self.depth.set(left);
        let decoded = decode();
        self.depth.set(left + 1);
        decoded
    }

    /// Counts elements of a sequence or a map.
    fn count<E: Error>(&self, elements: usize) -> Result<(), E> {
        match self.elements.get().checked_sub(elements) {
            Some(left) => {
                self.elements.set(left);
                Ok(())
            }
            None => self.refuse(format!("it has more elements than its {} bytes hold", self.bytes)),
        }
    }
}

/// A part of serde's interface, within limits.
struct Limited<'l, I> {
    inner: I,
    limits: &'l Limits,
}

/// Passes calls on, with the visitor under the same limits.
macro_rules! pass_on {
    ($($method:ident($($name:ident: $type:ty),*);)*) => {$(
        fn $method<V: Visitor<'de>>(self, $($name: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method($($name,)* LimitedVisitor { inner: visitor, limits: self.limits, counts: false })
        }
    )*};
}

/// Passes calls on for values that may contain values of their own type.
macro_rules! pass_on_nested {
    ($counts:expr; $($method:ident($($name:ident: $type:ty),*);)*) => {$(
        fn $method<V: Visitor<'de>>(self, $($name: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            let Self { inner, limits } = self;
            limits.nested(|| inner.$method($($name,)* LimitedVisitor { inner: visitor, limits, counts: $counts }))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Limited<'_, D> {
    type Error = D::Error;

    pass_on! {
        deserialize_any(); deserialize_bool(); deserialize_i8(); deserialize_i16(); deserialize_i32();
        deserialize_i64(); deserialize_i128(); deserialize_u8(); deserialize_u16(); deserialize_u32();
        deserialize_u64(); deserialize_u128(); deserialize_f32(); deserialize_f64(); deserialize_char();
        deserialize_str(); deserialize_string(); deserialize_bytes(); deserialize_byte_buf();
        deserialize_unit(); deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str); deserialize_tuple(length: usize);
        deserialize_tuple_struct(name: &'static str, length: usize);
        deserialize_struct(name: &'static str, fields: &'static [&'static str]);
        deserialize_identifier(); deserialize_ignored_any();
    }

    pass_on_nested! {
        true; deserialize_seq(); deserialize_map();
    }

    pass_on_nested! {
        false; deserialize_option();
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// A visitor whose values are under limits.
struct LimitedVisitor<'l, V> {
    inner: V,
    limits: &'l Limits,
    /// True for the visitor of a sequence or a map, whose number of elements is announced by the
    /// peer.
    counts: bool,
}

impl<'l, V> LimitedVisitor<'l, V> {
    /// Counts the announced number of elements. postcard gives no number if there are more elements
    /// than bytes. Then each element is counted when it is decoded.
    fn elements<A, E: Error>(&self, inner: A, announced: Option<usize>) -> Result<Elements<'l, A>, E> {
        if self.counts {
            self.limits.count(announced.unwrap_or(0))?;
        }
        Ok(Elements { inner, limits: self.limits, counts: self.counts && announced.is_none() })
    }
}

/// Passes values on that contain no others.
macro_rules! pass_values_on {
    ($($method:ident($type:ty);)*) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for LimitedVisitor<'_, V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.expecting(formatter)
    }

    pass_values_on! {
        visit_bool(bool); visit_i8(i8); visit_i16(i16); visit_i32(i32); visit_i64(i64); visit_i128(i128);
        visit_u8(u8); visit_u16(u16); visit_u32(u32); visit_u64(u64); visit_u128(u128); visit_f32(f32);
        visit_f64(f64); visit_char(char); visit_str(&str); visit_borrowed_str(&'de str);
        visit_string(String); visit_bytes(&[u8]); visit_borrowed_bytes(&'de [u8]); visit_byte_buf(Vec<u8>);
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Limited { inner: value, limits: self.limits })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Limited { inner: value, limits: self.limits })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<V::Value, A::Error> {
        let announced = elements.size_hint();
        let elements = self.elements(elements, announced)?;
        self.inner.visit_seq(elements)
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        let announced = entries.size_hint();
        let entries = self.elements(entries, announced)?;
        self.inner.visit_map(entries)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(Limited { inner: variant, limits: self.limits })
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Limited<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Limited { inner: value, limits: self.limits })
    }
}

/// The elements of a sequence or a map, under limits.
struct Elements<'l, A> {
    inner: A,
    limits: &'l Limits,
    /// True if each element is counted.
    counts: bool,
}

impl<A> Elements<'_, A> {
    fn count<E: Error>(&self) -> Result<(), E> {
        if self.counts { self.limits.count(1) } else { Ok(()) }
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Elements<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.count()?;
        self.inner.next_element_seed(Limited { inner: seed, limits: self.limits })
    }

    /// Memory is reserved for no more elements than there are bytes.
    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint().map(|elements| elements.min(self.limits.bytes))
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Elements<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.count()?;
        self.inner.next_key_seed(Limited { inner: seed, limits: self.limits })
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.next_value_seed(Limited { inner: seed, limits: self.limits })
    }

    /// Returns the same hint as for a sequence.
    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint().map(|entries| entries.min(self.limits.bytes))
    }
}

impl<'de, 'l, A: EnumAccess<'de>> EnumAccess<'de> for Limited<'l, A> {
    type Error = A::Error;
    type Variant = Limited<'l, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let Self { inner, limits } = self;
        let (value, variant) = inner.variant_seed(Limited { inner: seed, limits })?;
        Ok((value, Limited { inner: variant, limits }))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Limited<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.newtype_variant_seed(Limited { inner: seed, limits: self.limits })
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, A::Error> {
        let visitor = LimitedVisitor { inner: visitor, limits: self.limits, counts: false };
        self.inner.tuple_variant(length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let visitor = LimitedVisitor { inner: visitor, limits: self.limits, counts: false };
        self.inner.struct_variant(fields, visitor)
    }
}

/// Deepest nesting of values that may contain values of their own type: options, sequences, maps
/// and enumerations.
const DEPTH_MAX: usize = 128;
/// Number of elements that are allowed in addition to one for each byte. Elements such as `()` need
/// it, because they have no bytes.
const ELEMENTS_WITHOUT_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::fuzzing::{Chain, Value};
    use super::*;
    use serde::Serialize;
    use std::collections::BTreeMap;

    fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
        postcard::to_allocvec(value).expect("it can be encoded")
    }

    #[test]
    fn decoder_returns_what_was_encoded() {
        let text = Value::Text { text: "text".to_owned(), letter: 'é' };
        let map = BTreeMap::from([(7, (Box::new(Value::Nothing), ())), (9, (Box::new(text), ()))]);
        let value = Value::List(vec![Value::Number(-5), Value::Pair(0.5, Some(true)), Value::Map(map)]);
        assert_eq!(decode(&encoded(&value)), Ok(value));
        assert_eq!(decode(&encoded(&[1.5f64; 20_000].to_vec())), Ok([1.5f64; 20_000].to_vec()));
        assert_eq!(decode::<u8>(&[1, 2]), Err("1 bytes are left over".to_owned()));
        assert!(decode::<u32>(&[200]).is_err());
    }

    #[test]
    fn nesting_has_a_limit() {
        let chain = |links: usize| {
            (0..links).fold(Chain { next: None }, |next, _| Chain { next: Some(Box::new(next)) })
        };
        let deepest = chain(DEPTH_MAX - 1);
        assert_eq!(decode(&encoded(&deepest)), Ok(deepest));
        let refusal = format!("its values are nested more than {DEPTH_MAX} deep");
        assert_eq!(decode::<Chain>(&encoded(&chain(DEPTH_MAX))), Err(refusal.clone()));
        // A byte for each level: a peer's message of a mebibyte.
        assert_eq!(decode::<Chain>(&[1; 1 << 20]), Err(refusal.clone()));
        let lists = [4, 1].repeat(1 << 19);
        assert_eq!(decode::<Value>(&lists), Err(refusal));
    }

    #[test]
    fn announced_elements_have_a_limit() {
        let many = encoded(&(u64::MAX / 2));
        let refusal = Some("it has more elements than its 9 bytes hold".to_owned());
        assert_eq!(decode::<Vec<()>>(&many).err(), refusal);
        assert_eq!(decode::<BTreeMap<(), ()>>(&many).err(), refusal);
        assert!(decode::<Vec<u64>>(&many).is_err());
        assert_eq!(decode(&encoded(&vec![(); 1000])), Ok(vec![(); 1000]));
        // Several sequences share one limit.
        let units = encoded(&vec![vec![(); ELEMENTS_WITHOUT_BYTES_MAX / 2 + 10]; 3]);
        assert!(decode::<Vec<Vec<()>>>(&units).is_err());
    }
}
