//! Random bytes of the system.

use crate::text::to_hex;
use crate::{Error, Result};
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns random bytes of the system.
///
/// # Errors
/// [`Error::System`] if the system has no random bytes.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let system =
            |source: rustix::io::Errno| Error::System { what: "getrandom".to_owned(), source: source.into() };
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty()).map_err(system)?;
    }
    Ok(bytes)
}

/// Returns two hexadecimal digits for each of so many random bytes: a name that nobody can guess.
///
/// # Errors
/// As [`random`].
pub fn random_hex<const N: usize>() -> Result<String> {
    random::<N>().map(|bytes| to_hex(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_names_have_two_digits_a_byte_and_differ() {
        let names = [(); 2].map(|()| random_hex::<8>().unwrap());
        assert!(names[0].len() == 16 && names[0] != names[1], "{names:?}");
    }
}
