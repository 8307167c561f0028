//! Makes texts that come from outside safe for terminals and logs, and writes bytes as hexadecimal
//! digits.

use std::borrow::Cow;

/// Returns the text in which every character that controls a terminal is replaced by its escape,
/// for example `\u{1b}`.
///
/// Errors show texts that come from peers, files and the environment. An escape sequence in such a
/// text could change the title of a terminal, hide lines, or imitate other output. Line ends and
/// tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        match steers(letter) {
            true => shown.extend(letter.escape_unicode()),
            false => shown.push(letter),
        }
    }
    Cow::Owned(shown)
}

/// Returns true for control characters, and for characters that change the direction of text.
fn steers(letter: char) -> bool {
    match letter {
        '\n' | '\t' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        letter => letter.is_control(),
    }
}

/// Returns the text as [`printable`] does, without long runs of hexadecimal digits, which may be
/// a secret.
pub fn without_secrets(text: &str) -> String {
    let text = printable(text);
    let (mut shown, mut remaining) = (String::with_capacity(text.len()), &*text);
    while !remaining.is_empty() {
        let digits = remaining.find(|letter: char| !letter.is_ascii_hexdigit()).unwrap_or(remaining.len());
        let (run, tail) = remaining.split_at(digits);
        shown.push_str(if digits < SECRET_DIGITS { run } else { HIDDEN });
        let others = tail.find(|letter: char| letter.is_ascii_hexdigit()).unwrap_or(tail.len());
        shown.push_str(&tail[..others]);
        remaining = &tail[others..];
    }
    shown
}

/// The number of hexadecimal digits from which a text may be a part of a secret. Numbers have fewer
/// digits.
const SECRET_DIGITS: usize = 24;
/// The text that replaces digits that are not shown.
const HIDDEN: &str = "(digits that are not shown)";

/// Returns two hexadecimal digits for each byte.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses two hexadecimal digits for each byte, and nothing else.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_escapes_what_steers_a_terminal() {
        for (text, shown) in [
            ("plain é\n\ttext", "plain é\n\ttext"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("a\rb\u{7f}\u{9b}0m\0", "a\\u{d}b\\u{7f}\\u{9b}0m\\u{0}"),
            ("\u{202e}txt.exe", "\\u{202e}txt.exe"),
        ] {
            assert_eq!(printable(text), shown);
            assert_eq!(printable(shown), shown, "what is shown stays");
        }
    }

    #[test]
    fn without_secrets_hides_runs_of_digits() {
        let secret = "5A0f".repeat(16);
        for (text, shown) in [
            ("", ""),
            ("a bad 18446744073709551615", "a bad 18446744073709551615"),
            ("0", "0"),
            ("\u{1b}x", "\\u{1b}x"),
        ] {
            assert_eq!(without_secrets(text), shown);
        }
        for (prefix, suffix) in [("", ""), ("10.0.0.1:5/", ""), ("`", "` is none"), ("x", "g")] {
            let shown = without_secrets(&format!("{prefix}{secret}{suffix}"));
            assert_eq!(shown, format!("{prefix}{HIDDEN}{suffix}"));
        }
        assert!(!without_secrets(&secret[..63]).contains("5A0f5A0f"));
    }

    #[test]
    fn hexadecimal_digits_round_trip_and_nothing_else_is_parsed() {
        assert_eq!(from_hex::<3>(&to_hex(&[0, 0x5a, 0xff])), Some([0, 0x5a, 0xff]));
        for wrong in ["005aff0", "005af", "+05aff", "00 aff", "00é5a"] {
            assert_eq!(from_hex::<3>(wrong), None, "{wrong}");
        }
    }
}
