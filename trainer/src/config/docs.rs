//! Documentation of the keys, from the doc comments of the schema.

use crate::config::{Config, read};
use serde_json::Value;
use std::fmt;
use toml::de::DeTable;
use unisono_nn::error::{Error, Result};

/// Section or key of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyDoc {
    /// Path of the section or key.
    pub key: String,
    /// Default as TOML; `None` for a section.
    pub default: Option<String>,
    /// Effect of the key.
    pub text: String,
    /// Valid values of a key that has few, each with its meaning.
    pub values: Vec<(String, String)>,
}

impl KeyDoc {
    /// Returns all sections and keys.
    pub fn all() -> Vec<Self> {
        let schema = schemars::schema_for!(Config);
        let defaults = read::to_table(&Config::default()).unwrap_or_default();
        let mut docs = Vec::new();
        collect(schema.as_value(), schema.as_value(), &defaults, "", &mut docs);
        docs
    }

    /// Returns the key or section `key` with all keys in it; all if `key` is empty.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown key, with its present name or the nearest key.
    pub fn find(key: &str) -> Result<Vec<Self>> {
        let is_in = |path: &str| {
            path.strip_prefix(key).is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('.'))
        };
        let mut docs = Self::all();
        docs.retain(|doc| key.is_empty() || is_in(&doc.key));
        match docs.is_empty() {
            true => Err(Error::invalid(read::unknown_key(key)?)),
            false => Ok(docs),
        }
    }

    /// Returns the lines of a comment: the effect, and the values.
    fn comment(&self) -> Vec<String> {
        let values: Vec<_> = self.values.iter().map(|(value, _)| value.as_str()).collect();
        let values =
            if values.is_empty() { String::new() } else { format!(" Values: {}.", values.join(", ")) };
        wrapped(&format!("{}{values}", self.text), COMMENT_WIDTH)
    }
}

/// Prints the key with its default, its effect, and the meaning of each value.
impl fmt::Display for KeyDoc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.default {
            Some(default) => writeln!(f, "{} = {default}", self.key)?,
            None => writeln!(f, "[{}]", self.key)?,
        }
        wrapped(&self.text, COMMENT_WIDTH).iter().try_for_each(|line| writeln!(f, "    {line}"))?;
        for (value, text) in &self.values {
            let lines = wrapped(&format!("{value}: {text}"), COMMENT_WIDTH);
            lines.iter().enumerate().try_for_each(|(number, line)| {
                writeln!(f, "      {}{line}", if number > 0 { "  " } else { "" })
            })?;
        }
        Ok(())
    }
}

impl Config {
    /// Returns the text of a file with every key of this configuration, and a comment on each.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a number is too large for TOML.
    pub fn to_commented_toml(&self) -> Result<String> {
        let text = self.to_toml()?;
        let document = DeTable::parse(&text).map_err(|error| Error::invalid(error.message()))?;
        let mut starts = Vec::new();
        key_starts(document.get_ref(), "", &mut starts);
        starts.sort();
        let (docs, mut commented, mut done) = (KeyDoc::all(), String::new(), 0);
        for (start, key) in starts {
            let line = text[..start].rfind('\n').map_or(0, |end| end + 1);
            commented.push_str(&text[done..line]);
            let doc = docs.iter().find(|doc| doc.key == key);
            for comment in doc.map(KeyDoc::comment).unwrap_or_default() {
                commented.push_str(&format!("# {comment}\n"));
            }
            done = line;
        }
        Ok(commented + &text[done..])
    }
}

/// Adds the start of each key of a document, with its path.
fn key_starts(table: &DeTable<'_>, prefix: &str, starts: &mut Vec<(usize, String)>) {
    for (key, value) in table {
        let path = format!("{prefix}{}", key.get_ref());
        if let Some(section) = value.get_ref().as_table() {
            key_starts(section, &format!("{path}."), starts);
        }
        starts.push((key.span().start, path));
    }
}

/// Adds the documentation of each property of an object in a JSON schema.
fn collect(root: &Value, object: &Value, defaults: &toml::Table, prefix: &str, docs: &mut Vec<KeyDoc>) {
    for (key, property) in object["properties"].as_object().into_iter().flatten() {
        let (path, definition) = (format!("{prefix}{key}"), resolve(root, property));
        let default = defaults.get(key);
        let section = default.and_then(toml::Value::as_table);
        docs.push(KeyDoc {
            key: path.clone(),
            default: default.filter(|_| section.is_none()).map(toml::Value::to_string),
            text: description(property).or_else(|| description(definition)).unwrap_or_default(),
            values: values(definition),
        });
        if let Some(section) = section {
            collect(root, definition, section, &format!("{path}."), docs);
        }
    }
}

/// Returns the definition of a property that is of a named type, or else the property.
fn resolve<'a>(root: &'a Value, property: &'a Value) -> &'a Value {
    let reference = property["$ref"].as_str().or_else(|| property["allOf"][0]["$ref"].as_str());
    let path = reference.and_then(|reference| reference.strip_prefix('#'));
    path.and_then(|path| root.pointer(path)).unwrap_or(property)
}

/// Returns the doc comment, on one line and without its links.
fn description(schema: &Value) -> Option<String> {
    let text = schema["description"].as_str()?.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(text.replace(['[', ']'], ""))
}

/// Returns the values of an enumeration, each with its meaning.
fn values(schema: &Value) -> Vec<(String, String)> {
    let variant = |variant: &Value| {
        let value = variant["const"].as_str()?.to_owned();
        Some((value, description(variant).unwrap_or_default()))
    };
    schema["oneOf"].as_array().into_iter().flatten().filter_map(variant).collect()
}

/// Breaks text into lines of at most `width` characters.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("a line");
        match line.is_empty() {
            true => line.push_str(word),
            false if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            false => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Width of the text of a comment.
const COMMENT_WIDTH: usize = 90;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_text_and_enumerations_have_values() {
        let docs = KeyDoc::all();
        let known = read::all_keys().unwrap();
        let mut documented: Vec<_> = docs.iter().map(|doc| doc.key.clone()).collect();
        documented.sort();
        assert_eq!(documented, known);
        for doc in &docs {
            assert!(doc.text.ends_with(['.', '`']) && !doc.text.contains("::"), "{}: {}", doc.key, doc.text);
            doc.values.iter().for_each(|(value, text)| assert!(!text.is_empty(), "{}: {value}", doc.key));
            // A word of a list is a string, so only enumerations need values.
            let is_word = doc.default.as_ref().is_some_and(|default| default.starts_with('"'));
            let free = [
                "path",
                "folder",
                "file",
                "plot",
                "trace",
                "offload",
                "prompt",
                "schedule",
                "tensorboard",
                "from",
                "tokenizer",
                "end_of_text",
            ];
            let is_free = free.iter().any(|name| doc.key.ends_with(name));
            assert!(!is_word || is_free || doc.values.len() > 1, "{}: {:?}", doc.key, doc.values);
        }
    }

    #[test]
    fn commented_config_reads_as_the_same() {
        let mut config = Config::default();
        config.data.path = "a\nwidth = 3\n[model]\n".to_owned();
        config.model.width = 64;
        let text = config.to_commented_toml().unwrap();
        assert_eq!(Config::parse(&text, &[]).unwrap(), config);
        assert!(text.contains("# Number of features per token.\nwidth = 64\n"), "{text}");
        assert!(text.contains("# Model to train.\n[model]\n"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }

    #[test]
    fn key_and_section_are_found_and_unknown_keys_are_refused() {
        let found = |key: &str| KeyDoc::find(key).unwrap();
        assert_eq!(found("model.width").len(), 1);
        let kind = &found("strategy.kind")[0];
        assert!(kind.to_string().contains("zero3: Also shards weights"), "{kind}");
        assert!(found("mesh").len() > 4 && found("").len() > 60);
        let error = KeyDoc::find("model.widht").unwrap_err().to_string();
        assert!(error.ends_with("the nearest is `model.width`"), "{error}");
    }
}
