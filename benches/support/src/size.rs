//! Sizes in bytes, as users write and read them.

/// Returns the bytes of `64`, `64K`, `64M` or `64G`, with an optional `B`, in powers of 1024.
///
/// # Errors
///
/// Returns a message that quotes `text` if the number, the unit or the range is wrong.
///
/// ```
/// assert_eq!(unisono_bench_support::size::parse("32K"), Ok(32 << 10));
/// ```
pub fn parse(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let (digits, unit) = match text.char_indices().find(|(_, letter)| !letter.is_ascii_digit()) {
        Some((at, _)) => text.split_at(at),
        None => (text, ""),
    };
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" => 10,
        "M" | "MB" => 20,
        "G" | "GB" => 30,
        _ => return Err(format!("`{text}` has the unknown unit `{unit}`; use K, M or G")),
    };
    let number: usize =
        digits.parse().map_err(|_| format!("`{text}` is not a size; write for example 8, 32K or 1M"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is larger than memory can be"))
}

/// Formats bytes in the largest unit that divides them: `8 B`, `1 KiB`, `16 MiB`.
pub fn show(bytes: usize) -> String {
    let units = ["B", "KiB", "MiB", "GiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024 && value.is_multiple_of(1024) && unit + 1 < units.len() {
        (value, unit) = (value / 1024, unit + 1);
    }
    format!("{value} {}", units[unit])
}

/// Joins sizes with commas, the form that `--sizes` accepts.
pub fn list(sizes: &[usize]) -> String {
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_units_are_powers_of_1024() {
        assert_eq!(
            [parse("8"), parse("4K"), parse("64M"), parse("1g"), parse("2KB")],
            [Ok(8), Ok(4096), Ok(64 << 20), Ok(1 << 30), Ok(2048)]
        );
        assert!(parse("4T").is_err() && parse("K").is_err() && parse("99999999999G").is_err());
    }

    #[test]
    fn parse_error_quotes_the_text() {
        for text in ["", "-1", "4T", "8BB", "1.5K", "99999999999G"] {
            assert!(parse(text).is_err_and(|why| why.contains(&format!("`{text}`"))), "{text}");
        }
    }

    #[test]
    fn show_returns_what_parse_read() {
        for (text, bytes, shown) in
            [("8", 8, "8 B"), ("32k", 32 << 10, "32 KiB"), ("1M", 1 << 20, "1 MiB"), ("3000", 3000, "3000 B")]
        {
            assert_eq!((parse(text), show(bytes).as_str()), (Ok(bytes), shown));
        }
    }
}
