//! Sizes as people write them.

/// Reads `64`, `64K`, `64M` or `64G` (powers of 1024).
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.char_indices().find(|(_, letter)| !letter.is_ascii_digit()) {
        Some((at, _)) => text.split_at(at),
        None => (text, ""),
    };
    let shift = match unit.to_ascii_uppercase().trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(format!("`{unit}` is none of K, M, G")),
    };
    let number: usize = digits.parse().map_err(|_| format!("`{text}` is no size"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is too large"))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn units_are_powers_of_1024() {
        assert_eq!(
            [parse("8"), parse("4K"), parse("64M"), parse("1g")],
            [Ok(8), Ok(4096), Ok(64 << 20), Ok(1 << 30)]
        );
        assert!(parse("4T").is_err() && parse("K").is_err() && parse("99999999999G").is_err());
    }
}
