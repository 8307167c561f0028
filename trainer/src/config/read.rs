//! Reads a configuration from text. Errors name the line and the nearest valid key.
//!
//! The defaults, written as a table, are the list of valid keys. A preset (`model.shape`,
//! `model.from`) sets its keys before the other keys of a file, and at its place among overrides.

use super::Config;
use super::renamed_keys::{common_name, common_value_of, is_redundant, present_name, removed_key};
use crate::file_kind;
use std::ops::Range;
use std::path::Path;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};
use unisono_nn::error::{Error, Result};

/// Configuration, and the paths of the keys that were given.
pub(super) struct Given {
    pub(super) config: Config,
    pub(super) keys: Vec<String>,
}

/// Reads the defaults, changed by a file.
pub(super) fn file(path: &Path) -> Result<Given> {
    let text = file_kind::read_text(path, "a configuration in TOML")?;
    parse(&text).map_err(|what| file_kind::recognized(path, "a configuration in TOML", what))
}

/// Reads the defaults, changed by text.
pub(super) fn parse(text: &str) -> std::result::Result<Given, String> {
    let config = parse_values(text)?;
    let keys = text.parse().map(|table| key_paths(&table, "")).unwrap_or_default();
    Ok(Given { config, keys })
}

fn parse_values(text: &str) -> std::result::Result<Config, String> {
    let failed = |error: toml::de::Error| with_line(text, error.span(), &in_plain_words(error.message()));
    let document = DeTable::parse(text).map_err(failed)?;
    let known = to_table(&Config::default()).map_err(|error| error.to_string())?;
    // The conversion below ignores unknown keys, so that a misspelled key would silently have its
    // default.
    if let Some((span, key)) = find_unknown_key(document.get_ref(), &known, &[]) {
        return Err(with_line(text, Some(span), &unknown_key_message(&key, &known)));
    }
    let value_of = |path: &str| {
        let (section, key) = path.split_once('.')?;
        document.get_ref().get(section)?.get_ref().as_table()?.get(key)?.get_ref().as_str()
    };
    let config: Config =
        toml::from_str(text).map_err(|error| failed(error) + &answer(common_value_of(value_of)))?;
    let model = document.get_ref().get("model").and_then(|model| model.get_ref().as_table());
    let [has_shape, has_folder] =
        ["shape", "from"].map(|key| model.is_some_and(|model| model.contains_key(key)));
    if !(has_shape || has_folder) {
        return Ok(config);
    }
    let mut preset = Config::default();
    (preset.model.shape, preset.model.from) = (config.model.shape, config.model.from);
    preset.apply_presets(has_shape, has_folder).map_err(|error| error.to_string())?;
    let mut table = to_table(&preset).map_err(|error| error.to_string())?;
    merge(&mut table, toml::from_str(text).map_err(failed)?);
    table.try_into().map_err(failed)
}

/// Formats the answer to a value, after an error message.
fn answer(known: Option<&str>) -> String {
    known.map_or(String::new(), |known| format!("; {known}"))
}

/// Sets the values of `given` in `table`.
fn merge(table: &mut Table, given: Table) {
    for (key, value) in given {
        match (table.get_mut(&key), value) {
            (Some(Value::Table(section)), Value::Table(given)) => merge(section, given),
            (_, value) => drop(table.insert(key, value)),
        }
    }
}

/// Applies overrides `section.key=value` to `config`, one after the other.
pub(super) fn with_overrides(config: Config, changes: &[String]) -> Result<Config> {
    // A preset sets several keys, which only later overrides may change.
    changes.iter().try_fold(config, |config, change| with_override(&config, change))
}

/// Applies an override `section.key=value` to `config`.
fn with_override(config: &Config, change: &str) -> Result<Config> {
    let failed = |what: &str| Error::invalid(format!("`{change}`: {what}"));
    let split = change.split_once('=').filter(|(key, _)| !key.trim().is_empty());
    let (key, value) = split.ok_or_else(|| failed("an override is `section.key=value`"))?;
    let mut table = to_table(config)?;
    let Some(place) = find_key(&mut table, key.trim()) else {
        let key: Vec<&str> = key.trim().split('.').collect();
        return Err(failed(&unknown_key_message(&key, &table)));
    };
    *place = parse_value(value.trim(), place);
    let mut config: Config = table.try_into().map_err(|error: toml::de::Error| {
        let known = common_value_of(|other| (other == key.trim()).then_some(value.trim()));
        failed(&format!("{}{}", in_plain_words(error.message()), answer(known)))
    })?;
    config.apply_presets(key.trim() == "model.shape", key.trim() == "model.from")?;
    Ok(config)
}

/// Returns every key with its value as a table.
pub(super) fn to_table(config: &Config) -> Result<Table> {
    Table::try_from(config).map_err(|error| Error::invalid(error.to_string()))
}

/// Returns the paths of all sections and keys, in alphabetical order.
#[cfg(test)]
pub(super) fn all_keys() -> Result<Vec<String>> {
    let mut keys = key_paths(&to_table(&Config::default())?, "");
    keys.sort();
    Ok(keys)
}

/// Returns the answer to the unknown key at `path`.
pub(super) fn unknown_key(path: &str) -> Result<String> {
    let key: Vec<&str> = path.split('.').collect();
    Ok(unknown_key_message(&key, &to_table(&Config::default())?))
}

/// Returns the first key of `given` that is not `known`, and its position in the text.
fn find_unknown_key<'a>(
    given: &'a DeTable<'_>,
    known: &Table,
    path: &[&'a str],
) -> Option<(Range<usize>, Vec<&'a str>)> {
    given.iter().find_map(|(key, value)| {
        let path = [path, &[key.get_ref().as_ref()]].concat();
        match (known.get(key.get_ref().as_ref()), value.get_ref()) {
            (None, value) if is_redundant(&path.join("."), value.as_str()) => None,
            (None, _) => Some((key.span(), path)),
            // A table without defaults has keys of the user's choice.
            (Some(Value::Table(known)), DeValue::Table(given)) if !known.is_empty() => {
                find_unknown_key(given, known, &path)
            }
            _ => None,
        }
    })
}

/// Builds the answer to an unknown key: its present name if it was renamed, else the nearest key.
fn unknown_key_message(key: &[&str], known: &Table) -> String {
    let (joined, leaf) = (key.join("."), key.last().copied().unwrap_or_default());
    if let Some(present) = present_name(&joined) {
        return format!("key `{joined}` is now `{present}`; rename it");
    }
    if let Some(answer) = removed_key(&joined) {
        return format!("no key `{joined}`: {answer}");
    }
    if let Some(key) = common_name(&joined) {
        return format!("unknown key `{joined}`; it is called `{key}`");
    }
    let distance = |name: &String| {
        let other = name.rsplit('.').next().unwrap_or_default();
        (strsim::damerau_levenshtein(leaf, other), strsim::damerau_levenshtein(&joined, name))
    };
    let nearest = key_paths(known, "").into_iter().min_by_key(distance).unwrap_or_default();
    let is_near = distance(&nearest).0 <= (leaf.chars().count() / 3).max(1);
    let section = (key.len() > 1).then(|| known.get(key[0])?.as_table()).flatten();
    match section {
        _ if is_near => format!("unknown key `{joined}`; the nearest is `{nearest}`"),
        Some(section) => {
            let keys: Vec<_> = section.keys().map(String::as_str).collect();
            format!("unknown key `{joined}`; section `{}` has {}", key[0], keys.join(", "))
        }
        None => format!("unknown key `{joined}`; `unisono-train keys` lists all keys"),
    }
}

/// Returns the paths of all sections and keys.
fn key_paths(table: &Table, prefix: &str) -> Vec<String> {
    let paths_of = |(key, value): (&String, &Value)| match value {
        Value::Table(section) => {
            [vec![format!("{prefix}{key}")], key_paths(section, &format!("{prefix}{key}."))].concat()
        }
        _ => vec![format!("{prefix}{key}")],
    };
    table.iter().flat_map(paths_of).collect()
}

/// Returns the value at `section.key`.
fn find_key<'a>(table: &'a mut Table, key: &str) -> Option<&'a mut Value> {
    match key.split_once('.') {
        Some((section, subkey)) => find_key(table.get_mut(section)?.as_table_mut()?, subkey),
        None => table.get_mut(key),
    }
}

/// Parses `text` in place of the value `old`: as TOML, as a plain string where a string belongs, or
/// as strings with commas between them where a list belongs.
fn parse_value(text: &str, old: &Value) -> Value {
    let words = || match old {
        Value::Array(_) => Value::Array(text.split(',').map(|word| Value::from(word.trim())).collect()),
        _ => Value::from(text),
    };
    match text.parse::<Value>() {
        // A name such as `1e3` or `true` is valid TOML of another type, and still a string here.
        Ok(value) if value.is_str() || !old.is_str() => value,
        _ => words(),
    }
}

/// Returns a parser's message without names of types of this program.
fn in_plain_words(message: &str) -> String {
    let Some((found, expected)) = message.rsplit_once(", expected ") else { return message.to_owned() };
    let expected = match expected {
        "usize" | "u64" | "u32" => "a whole number",
        "f64" => "a number",
        "a boolean" => "true or false",
        other if other.starts_with("struct ") => "a section with keys",
        other => other,
    };
    format!("{found}, expected {expected}")
}

/// Prefixes `what` with the line at `span`.
fn with_line(text: &str, span: Option<Range<usize>>, what: &str) -> String {
    let Some(span) = span else { return what.to_owned() };
    let earlier = &text[..span.start.min(text.len())];
    let number = earlier.matches('\n').count();
    let line = text.lines().nth(number).unwrap_or_default().trim();
    format!("line {}, `{line}`: {what}", number + 1)
}
