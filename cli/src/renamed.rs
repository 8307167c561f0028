//! Words of the command line that were renamed, with their new names.

/// Former and current word; former words are split, so that a search for them finds only leftovers.
const RENAMED: [(&str, &str); 5] = [
    ("algos", "list"),
    (concat!("--keep", "-going"), "--continue-on-failure"),
    ("-k", "-c"),
    (concat!("--report", "-floor"), "--report-roofline"),
    ("--table", "--flag-page"),
];

/// Returns the current form of the first former word in `words`, as a hint for the user.
///
/// Words after `--` belong to the launched program and are not looked at.
pub(crate) fn hint(words: impl IntoIterator<Item = String>) -> Option<String> {
    let mut words = words.into_iter().skip(1).take_while(|word| word != "--");
    words.find_map(|word| {
        let name = word.split('=').next().unwrap_or_default();
        let (old, new) = RENAMED.iter().find(|(old, _)| *old == name)?;
        Some(format!("`{old}` is now `{new}`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint_of(line: &str) -> Option<String> {
        hint(line.split(' ').map(str::to_owned))
    }

    #[test]
    fn hint_names_the_current_word() {
        assert_eq!(hint_of("unisono algos").as_deref(), Some("`algos` is now `list`"));
        let hint = hint_of(concat!("unisono perf all_reduce --report", "-floor"));
        assert_eq!(hint.as_deref(), Some(concat!("`--report", "-floor` is now `--report-roofline`")));
    }

    #[test]
    fn hint_ignores_current_words_and_the_program() {
        assert_eq!(hint_of("unisono list"), None);
        assert_eq!(hint_of(concat!("unisono run -n 2 -- program --keep", "-going")), None);
    }
}
