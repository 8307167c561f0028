//! Formats sections, tables and numbers of reports.

/// Joins sections with their titles. Omits sections without a body.
pub fn sections(parts: &[(&str, String)]) -> String {
    let told = parts.iter().filter(|(_, body)| !body.is_empty());
    told.map(|(title, body)| format!("{title}\n{}\n", indented(body))).collect::<Vec<_>>().join("\n")
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Formats rows of cells as a table. The first row is the heading. The first column is left
/// aligned, the others right.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell: &String| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        });
        cells.collect::<String>().trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns a row of cells.
pub(crate) fn row_of<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Formats bytes in GB or a smaller unit.
pub(crate) fn size(bytes: f64) -> String {
    scaled(bytes, &[(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")])
}

/// Formats seconds or a smaller unit.
pub(crate) fn time(seconds: f64) -> String {
    scaled(seconds, &[(1.0, "s"), (1e-3, "ms"), (1e-6, "us")])
}

/// Formats a number of floating-point operations, without a unit.
pub(crate) fn format_flops(number: f64) -> String {
    scaled(number, &[(1e12, "T"), (1e9, "G"), (1e6, "M"), (1.0, "")])
}

/// Formats a number of parameters.
pub(crate) fn count(number: f64) -> String {
    scaled(number, &[(1e9, "b"), (1e6, "m"), (1e3, "k"), (1.0, "")])
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let fits = units.iter().find(|(unit, _)| value >= *unit);
    let (unit, name) = fits.or(units.last()).copied().unwrap_or((1.0, ""));
    let number = value / unit;
    let digits = if number >= 100.0 {
        0
    } else if number >= 10.0 {
        1
    } else {
        2
    };
    format!("{number:.digits$} {name}").trim_end().to_owned()
}
