//! The legend of a drawing, and the text of what is wrong below it.

use crate::schedule::check::Violation;
use std::fmt::Write;

/// A kind of mark, and what it means.
pub(super) struct Entry {
    /// Class of the marks in the drawing.
    pub(super) class: &'static str,
    meaning: &'static str,
}

impl Entry {
    pub(super) const ALL: [Entry; 7] = [
        Entry { class: "message lane0", meaning: "message" },
        Entry { class: "message lane1", meaning: "message on lane 1" },
        Entry { class: "signal", meaning: "signal" },
        Entry { class: "window", meaning: "read or written in a peer's memory" },
        Entry { class: "moved", meaning: "stored" },
        Entry { class: "combined", meaning: "combined" },
        Entry { class: "fault", meaning: "step to look at" },
    ];

    /// A sample of the mark, around the middle of a field that begins at `x`.
    fn sample(&self, x: f64, y: f64) -> String {
        let (class, middle) = (self.class, x + SAMPLE_WIDTH / 2.0);
        match class {
            "moved" | "combined" | "fault" => {
                format!(r#"<circle class="{class}" cx="{middle:.0}" cy="{y:.0}" r="4.5"/>"#)
            }
            _ => format!(r#"<path class="{class}" d="M{x:.0} {y:.0}h{SAMPLE_WIDTH:.0}"/>"#),
        }
    }
}

/// Draws the entries, and below them what is wrong, in lines that fit `width`. Returns the marks
/// and the height of the whole drawing.
pub(super) fn draw(entries: &[Entry], violation: Option<&Violation>, width: f64, top: f64) -> (String, f64) {
    let (mut text, mut x, mut y) = (String::new(), LEFT, top);
    for entry in entries {
        let needed = SAMPLE_WIDTH + GAP + entry.meaning.len() as f64 * CHAR_WIDTH;
        if x > LEFT && x + needed > width - LEFT {
            (x, y) = (LEFT, y + LINE_HEIGHT);
        }
        let (label, base) = (x + SAMPLE_WIDTH + GAP, y + 4.0);
        let (sample, meaning) = (entry.sample(x, y), entry.meaning);
        let _ =
            writeln!(text, r#"{sample}<text class="legend" x="{label:.0}" y="{base:.0}">{meaning}</text>"#);
        x += needed + 2.0 * GAP;
    }
    let letters = ((width - 2.0 * LEFT) / CHAR_WIDTH) as usize;
    for line in violation.iter().flat_map(|violation| lines(&format!("wrong: {violation}"), letters)) {
        y += LINE_HEIGHT;
        let (line, base) = (escaped(&line), y + 4.0);
        let _ = writeln!(text, r#"<text class="wrong" x="{LEFT:.0}" y="{base:.0}">{line}</text>"#);
    }
    (text, y + LINE_HEIGHT)
}

/// Breaks a text between words into lines of at most `letters` letters, where words allow it.
fn lines(text: &str, letters: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is a line");
        if !line.is_empty() && line.len() + 1 + word.len() > letters {
            lines.push(word.to_owned());
        } else {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
    }
    lines
}

/// Returns a text as it stands in a file of markup.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const LEFT: f64 = 24.0;
const SAMPLE_WIDTH: f64 = 22.0;
const GAP: f64 = 8.0;
/// Width of a letter.
const CHAR_WIDTH: f64 = 6.4;
const LINE_HEIGHT: f64 = 18.0;
