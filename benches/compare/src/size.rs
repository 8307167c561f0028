//! Sizes as people write them.

/// Bytes of `8`, `32K`, `1M` or `1G`.
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.trim().to_ascii_uppercase() {
        text if text.ends_with('K') => (text[..text.len() - 1].to_owned(), 10),
        text if text.ends_with('M') => (text[..text.len() - 1].to_owned(), 20),
        text if text.ends_with('G') => (text[..text.len() - 1].to_owned(), 30),
        text => (text, 0),
    };
    let number: usize = digits.parse().map_err(|_| format!("`{text}` is no size; write 8, 32K or 1M"))?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if bytes >= 4 => Ok(bytes),
        _ => Err(format!("`{text}` is no size from one float32 to what memory holds")),
    }
}

/// `8 B`, `1 KiB`, `16 MiB`.
pub(crate) fn show(bytes: usize) -> String {
    let units = ["B", "KiB", "MiB", "GiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024 && value.is_multiple_of(1024) && unit + 1 < units.len() {
        (value, unit) = (value / 1024, unit + 1);
    }
    format!("{value} {}", units[unit])
}

/// With commas, as benchmarks read them.
pub(crate) fn list(sizes: &[usize]) -> String {
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes, shown) in
            [("8", 8, "8 B"), ("32k", 32 << 10, "32 KiB"), ("1M", 1 << 20, "1 MiB"), ("3000", 3000, "3000 B")]
        {
            assert_eq!((parse(text), show(bytes).as_str()), (Ok(bytes), shown));
        }
        assert!(["", "K", "-1", "2", "99999999999G"].iter().all(|text| parse(text).is_err()));
    }
}
