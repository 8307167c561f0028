//! Numbers of things in texts.

/// Formats a number of things by the name of one: with an `s`, or an `es` where English wants it,
/// unless the number is 1.
///
/// ```
/// use unisono_nn::counted;
/// assert_eq!([counted(1, "rank"), counted(2, "rank")], ["1 rank", "2 ranks"]);
/// assert_eq!(counted(2, "micro-batch"), "2 micro-batches");
/// ```
pub fn counted(count: usize, thing: &str) -> String {
    let takes_es = ["s", "x", "z", "ch", "sh"].iter().any(|end| thing.ends_with(end));
    let ending = if takes_es { "es" } else { "s" };
    format!("{count} {thing}{}", if count == 1 { "" } else { ending })
}
