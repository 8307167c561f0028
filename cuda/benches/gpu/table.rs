//! Figures under headings, for people and for programs.

/// Rows of figures; the first column is a name.
pub(crate) struct Table {
    pub(crate) title: &'static str,
    pub(crate) columns: &'static [&'static str],
    pub(crate) rows: Vec<(String, Vec<f64>)>,
}

impl Table {
    pub(crate) fn new(title: &'static str, columns: &'static [&'static str]) -> Self {
        Self { title, columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, name: impl Into<String>, figures: impl Into<Vec<f64>>) {
        self.rows.push((name.into(), figures.into()));
    }
}

/// In Markdown.
impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "### {}\n", self.title)?;
        writeln!(f, "| | {} |", self.columns.join(" | "))?;
        writeln!(f, "|---|{}", "--:|".repeat(self.columns.len()))?;
        for (name, figures) in &self.rows {
            let figures: Vec<String> = figures.iter().copied().map(short).collect();
            writeln!(f, "| {name} | {} |", figures.join(" | "))?;
        }
        Ok(())
    }
}

/// Three digits that count.
fn short(figure: f64) -> String {
    match figure {
        _ if figure.fract() == 0.0 => format!("{figure}"),
        _ if figure.abs() >= 100.0 => format!("{figure:.0}"),
        _ if figure.abs() >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

/// All tables of a GPU.
pub(crate) fn to_json(gpu: &str, tables: &[(&str, Table)]) -> String {
    let rows = |table: &Table| {
        let row =
            |(name, figures): &(String, Vec<f64>)| serde_json::json!({"name": name, "figures": figures});
        table.rows.iter().map(row).collect::<Vec<_>>()
    };
    let table = |(name, table): &(&str, Table)| {
        serde_json::json!({
            "experiment": name, "title": table.title, "columns": table.columns, "rows": rows(table)
        })
    };
    let tables: Vec<_> = tables.iter().map(table).collect();
    serde_json::json!({"gpu": gpu, "experiments": tables}).to_string()
}

/// The median.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
