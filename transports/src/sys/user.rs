//! The user of this process, as others see it.

use std::fs::read_to_string;
use std::io::{ErrorKind, Result};

/// Returns the number of this process's user.
pub fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns true if `uid` is the user of this process and no other.
///
/// A user namespace shows all users that it has no number for as one, the overflow user. If this
/// process runs as one of them, an equal number may be that of anybody.
///
/// # Errors
/// Returns the system's error if it does not tell which users have a number, for example because
/// too many files are open.
pub fn is_own(uid: u32) -> Result<bool> {
    Ok(uid == own() && is_distinct(uid)?)
}

/// Returns true if the number of this process's user means no other user.
///
/// # Errors
/// As [`is_own`].
pub fn own_is_distinct() -> Result<bool> {
    is_distinct(own())
}

fn is_distinct(uid: u32) -> Result<bool> {
    let overflow = read_to_string("/proc/sys/kernel/overflowuid").ok();
    let overflow = overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL_OVERFLOW_UID);
    if uid != overflow {
        return Ok(true);
    }
    // Without the file there is nothing that sets this user apart. Another error says nothing
    // about the user, and must not be taken for that.
    match read_to_string("/proc/self/uid_map") {
        Ok(map) => Ok(is_mapped(uid, &map)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns true if a map of users, with the first number inside, the first number outside and the
/// count in each line, has a user with this number inside.
pub(crate) fn is_mapped(uid: u32, map: &str) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&u64::from(uid))
    })
}

const USUAL_OVERFLOW_UID: u32 = 65_534;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_users_with_a_number_of_their_own_are_mapped() {
        let (host, container) = ("         0          0 4294967295\n", "0 100000 65536\n");
        let rootless = "         0       1000          1\n";
        assert!(is_mapped(65_534, host) && is_mapped(65_534, container) && is_mapped(0, rootless));
        assert!(!is_mapped(65_534, rootless) && !is_mapped(65_536, container) && !is_mapped(0, ""));
        assert!(!is_mapped(1, "1 2") && !is_mapped(1, "a b c"));
    }

    #[test]
    fn another_user_is_not_the_own_one() {
        let uid = own();
        assert_eq!(is_own(uid).unwrap(), own_is_distinct().unwrap());
        assert!(!is_own(uid + 1).unwrap());
    }
}
