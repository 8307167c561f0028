//! Fuzz target: configurations, of files, of checkpoints and of the command line.

use super::{Config, read};

/// Reads bytes as a configuration, and as overrides of it, each after a zero byte.
pub(crate) fn fuzz(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut parts = text.split('\0');
    let file = parts.next().unwrap_or_default();
    if !names_model(file) {
        let _ = read::parse(file);
    }
    let changes: Vec<String> = parts.filter(|change| !names_model(change)).map(str::to_owned).collect();
    let Ok(config) = Config::from_checkpoint(file) else { return };
    check(&config);
    if let Ok(changed) = config.with_override(&changes) {
        check(&changed);
    }
}

/// Returns true for text that may set `model.from`, which makes a configuration read a folder.
fn names_model(text: &str) -> bool {
    text.contains("from") || text.contains('\\')
}

/// Uses a configuration, and reads it again as it is written.
fn check(config: &Config) {
    let _ = (config.settings(), config.peak_rate(), config.resume_invariants());
    let Ok(text) = config.to_toml() else { return };
    let again = Config::from_checkpoint(&text).expect("a configuration as it is written");
    let mut plain = config.clone();
    plain.model.from.clear();
    assert_eq!(again.to_toml().ok(), plain.to_toml().ok());
}
