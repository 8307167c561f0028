//! Numbers of things in texts.

/// Formats a number of things by the name of one: with an `s` unless the number is 1.
///
/// ```
/// use unisono_trainer::counted;
/// assert_eq!([counted(1, "rank"), counted(2, "rank")], ["1 rank", "2 ranks"]);
/// ```
pub fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}
