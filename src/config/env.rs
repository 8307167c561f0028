//! Settings from the environment.

use crate::config::Config;
use crate::config::check::limits;
use crate::config::shown::assignment;
use crate::error::{Error, Result};
use crate::schedule::Algorithm;
use crate::tuning::TuningTable;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;
use unisono_transports::text::without_secrets;

impl Config {
    /// Returns the defaults, changed by the `UNISONO_*` variables of the environment.
    ///
    /// Names that begin with `UNISONO_EXT_` belong to bindings and wrappers, and are ignored here.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) names a variable that is unknown
    /// or has an invalid value.
    ///
    /// ```
    /// let config = unisono::Config::from_env()?;
    /// assert!(config.channels >= 1);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn from_env() -> Result<Self> {
        let variables = std::env::vars_os();
        let texts = |(name, value): (OsString, OsString)| {
            (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        };
        let config = Self::from_vars(variables.map(texts))?;
        tracing::debug!(?config, "settings");
        Ok(config)
    }

    pub(crate) fn from_vars(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let mut config = Self::default();
        for (name, value) in variables {
            let setting = name.strip_prefix(ENV_PREFIX).filter(|name| !name.starts_with(WRAPPER_PREFIX));
            let Some(setting) = setting else { continue };
            config.set(setting, &value).map_err(|refusal| {
                let service = kubernetes_service(setting, &value);
                let advice = service.map(|service| {
                    format!(
                        ": Kubernetes sets it for the Service `{service}`; give the pods \
                         `enableServiceLinks: false`, or the Service another name"
                    )
                });
                refusal.of(&name, &value, &advice.unwrap_or_default())
            })?;
        }
        Ok(config)
    }

    /// Returns the same settings with some of them changed, by name and value.
    ///
    /// A name is the name of a variable, such as `UNISONO_TIMEOUT_MS`. The prefix can be left out,
    /// and letters can have any case, as in `timeout_ms`. If a name occurs twice, the later value
    /// is used.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) names the first pair whose name
    /// is no setting, or whose value the setting cannot have.
    ///
    /// ```
    /// # use unisono::Config;
    /// let config = Config::default().with_settings([("timeout_ms", "500"), ("channels", "2")])?;
    /// assert_eq!((config.timeout.as_millis(), config.channels), (500, 2));
    /// assert!(Config::default().with_settings([("timeout", "1")]).is_err());
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn with_settings<'a>(
        mut self,
        settings: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self> {
        for (name, value) in settings {
            let upper = name.to_ascii_uppercase();
            let setting = upper.strip_prefix(ENV_PREFIX).unwrap_or(&upper);
            let changed = match setting {
                "LOG" | "ID" | "SECRET" | "SECRET_FILE" => {
                    Err(Refusal::Name("only the environment has this".to_owned()))
                }
                _ => self.set(setting, value),
            };
            changed.map_err(|refusal| refusal.of(name, value, ""))?;
        }
        Ok(self)
    }

    /// Sets one value by its name in the environment, without the prefix.
    pub(crate) fn set(&mut self, setting: &str, value: &str) -> std::result::Result<(), Refusal> {
        match setting {
            "TIMEOUT_MS" => {
                self.timeout = Duration::from_millis(parse_number(value, limits::TIMEOUT_MS)? as u64)
            }
            "JOIN_TIMEOUT_MS" => {
                self.join_timeout = Duration::from_millis(parse_number(value, limits::TIMEOUT_MS)? as u64)
            }
            "TRANSPORT" => self.transport = value.parse()?,
            "CHANNELS" => self.channels = parse_number(value, 1..=usize::MAX)?.min(*limits::CHANNELS.end()),
            "FIFO_DEPTH" => self.fifo_depth = parse_number(value, limits::FIFO_DEPTH)?,
            "FIFO_SLOT_BYTES" => {
                self.fifo_slot_bytes = parse_number(value, limits::FIFO_SLOT_BYTES)?.next_multiple_of(4096)
            }
            "SYMMETRIC_HEAP_BYTES" => {
                self.symmetric_heap_bytes =
                    parse_number(value, limits::SYMMETRIC_HEAP_BYTES)?.next_multiple_of(4096)
            }
            "SHM_WINDOW_BYTES" => {
                self.shm_window_bytes = parse_number(value, limits::WINDOW_BYTES)?.next_multiple_of(4096)
            }
            "WAIT" => self.wait = value.parse()?,
            "SOCKETS_PER_PEER" => self.sockets_per_peer = parse_number(value, limits::SOCKETS_PER_PEER)?,
            "ENCRYPTION" => self.encryption = parse_switch(value)?,
            "BIND_ADDR" => self.bind_addr = Some(value.parse()?),
            "REDUCTION_ORDER" => self.reduction_order = value.parse()?,
            "ALGO" => self.algorithms = parse_algorithms(value)?,
            "TUNING_FILE" => {
                let text = std::fs::read_to_string(value).map_err(|error| error.to_string())?;
                self.tuning_table = TuningTable::parse(&text)?;
            }
            "NONTEMPORAL_MIN_BYTES" => self.nontemporal_min_bytes = parse_number(value, 0..=usize::MAX)?,
            "GPU_CHANNELS" => {
                self.gpu.channels = parse_number(value, 1..=usize::MAX)?.min(*limits::CHANNELS.end())
            }
            "GPU_FIFO_DEPTH" => {
                self.gpu.fifo_depth = parse_number(value, 3..=usize::MAX)?.min(*limits::GPU_FIFO_DEPTH.end())
            }
            "GPU_FIFO_SLOT_BYTES" => {
                self.gpu.fifo_slot_bytes =
                    parse_number(value, limits::GPU_FIFO_SLOT_BYTES)?.next_multiple_of(4096)
            }
            "GPU_WINDOW_BYTES" => {
                self.gpu.window_bytes = parse_number(value, limits::WINDOW_BYTES)?.next_multiple_of(4096)
            }
            "GPU_P2P" => self.gpu.peer_to_peer = parse_switch(value)?,
            "GPU_LL128" => self.gpu.ll128 = parse_switch(value)?,
            "GPU_TIMEOUT_MS" => {
                self.gpu.timeout = Duration::from_millis(parse_number(value, limits::TIMEOUT_MS)? as u64)
            }
            "GPU_LAUNCH" => self.gpu.launch = value.parse()?,
            "CACHE_BYTES" => self.cache_bytes = parse_number(value, limits::CACHE_BYTES)?,
            "FLIGHT_RECORDER_DIR" => self.flight_recorder_dir = Some(PathBuf::from(value)),
            "TRACE_DIR" => self.trace_dir = Some(PathBuf::from(value)),
            "CHECK_FINITE" => self.check_finite = parse_switch(value)?,
            "STATUS_SERVER" => self.status_server = parse_switch(value)?,
            "LOG" | "ID" | "SECRET" | "SECRET_FILE" => {}
            other => return Err(Refusal::Name(unknown_setting(other))),
        }
        Ok(())
    }
}

/// The reason why a pair of name and value is refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The name is not the name of a setting. The value can be anything, for example a secret under
    /// a misspelled name.
    Name(String),
    /// The setting cannot have this value.
    Value(String),
}

impl Refusal {
    /// Returns the error about a pair, which shows the value only if its name is known.
    fn of(self, name: &str, value: &str, advice: &str) -> Error {
        let (pair, why) = match self {
            Refusal::Name(why) => (without_secrets(name), why),
            Refusal::Value(why) => (assignment(name, value), without_secrets(&why)),
        };
        Error::invalid_usage(format!("{pair}: {why}{advice}"))
    }
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Refusal::Value(why)
    }
}

/// Parses names of algorithms, in the form that `--algo` and `UNISONO_ALGO` have.
///
/// # Errors
/// The error names an unknown algorithm and lists the known ones.
///
/// ```
/// let algorithms = unisono::parse_algorithms("all_reduce=ring,broadcast=linear").unwrap();
/// assert_eq!(algorithms.len(), 2);
/// assert!(unisono::parse_algorithms("rign").unwrap_err().contains("no algorithm `rign`"));
/// ```
pub fn parse_algorithms(text: &str) -> std::result::Result<Vec<&'static Algorithm>, String> {
    let (known, mut chosen) = (Algorithm::all(), Vec::new());
    for item in text.split(',').filter(|item| !item.is_empty() && *item != "auto") {
        let (collective, name) = item.split_once('=').unwrap_or(("", item));
        let former_count = chosen.len();
        let rows = known.iter().copied().filter(|row| row.name == name);
        chosen.extend(rows.filter(|row| collective.is_empty() || row.collective.name() == collective));
        if chosen.len() == former_count {
            let names: std::collections::BTreeSet<_> = known.iter().map(|row| row.name).collect();
            return Err(format!("no algorithm `{item}`; there are {names:?}"));
        }
    }
    Ok(chosen)
}

fn parse_number(text: &str, allowed: RangeInclusive<usize>) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(number) if allowed.contains(&number) => Ok(number),
        Ok(number) if number < *allowed.start() => Err(format!("must be at least {}", allowed.start())),
        Ok(_) => Err(format!("must be at most {}", allowed.end())),
        Err(_) => Err("not a whole number".to_owned()),
    }
}

fn parse_switch(text: &str) -> std::result::Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("neither on nor off".to_owned()),
    }
}

/// Returns the name of the Service for which Kubernetes has set a variable. Such a variable begins
/// with [`ENV_PREFIX`] if the name of the Service begins with `unisono`.
fn kubernetes_service(setting: &str, value: &str) -> Option<String> {
    let setting = format!("_{setting}");
    let is_link = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let service = ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT"].iter().find_map(|mark| {
        let (service, tail) = setting.split_once(mark)?;
        let is_of_port = tail.strip_prefix('_').is_some_and(|tail| {
            *mark == "_SERVICE_PORT" || tail.starts_with(|letter: char| letter.is_ascii_digit())
        });
        let is_whole = tail.is_empty() && (*mark != "_PORT" || is_link);
        (is_whole || is_of_port).then_some(service)
    })?;
    // Kubernetes writes names with these letters only. Names with other letters are not shown,
    // because they could control a terminal.
    let is_of_name = |letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_';
    let name = || format!("unisono{service}").to_ascii_lowercase().replace('_', "-");
    service.chars().all(is_of_name).then(name)
}

/// Returns the message for a name that is no setting. If the setting was renamed, the message has
/// its new name.
fn unknown_setting(name: &str) -> String {
    match RENAMED.iter().find(|(old, _)| *old == name) {
        Some((_, new)) => format!("this setting is named {ENV_PREFIX}{new}"),
        None => "no such setting".to_owned(),
    }
}

const ENV_PREFIX: &str = "UNISONO_";
/// Begins the names of variables of bindings and wrappers, after [`ENV_PREFIX`].
const WRAPPER_PREFIX: &str = "EXT_";
/// Retired names and their successors, without the prefix.
const RENAMED: &[(&str, &str)] = &[
    ("TABLE", "TUNING_FILE"),
    ("HEAP_BYTES", "SYMMETRIC_HEAP_BYTES"),
    ("SLOTS", "FIFO_DEPTH"),
    ("SLOT_BYTES", "FIFO_SLOT_BYTES"),
    ("GPU_SLOTS", "GPU_FIFO_DEPTH"),
    ("GPU_SLOT_BYTES", "GPU_FIFO_SLOT_BYTES"),
    ("WINDOW_BYTES", "SHM_WINDOW_BYTES"),
    ("STREAM_FROM_BYTES", "NONTEMPORAL_MIN_BYTES"),
    ("SOCKETS", "SOCKETS_PER_PEER"),
    ("BIND", "BIND_ADDR"),
    ("ORDER", "REDUCTION_ORDER"),
    ("DUMP", "FLIGHT_RECORDER_DIR"),
    ("TRACE", "TRACE_DIR"),
    ("DEBUG", "LOG"),
    ("GPU_WIDE_LINES", "GPU_LL128"),
    ("STATUS", "STATUS_SERVER"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Transport;

    #[test]
    fn kubernetes_variables_of_a_service_are_recognized() {
        let service = |name, value| kubernetes_service(name, value);
        for (name, value, expected) in [
            ("PORT", "tcp://10.0.0.7:29500", "unisono"),
            ("SERVICE_HOST", "10.0.0.7", "unisono"),
            ("SERVICE_PORT", "29500", "unisono"),
            ("SERVICE_PORT_RENDEZVOUS", "29500", "unisono"),
            ("PORT_29500_TCP", "tcp://10.0.0.7:29500", "unisono"),
            ("PORT_29500_TCP_ADDR", "10.0.0.7", "unisono"),
            ("MASTER_PORT", "tcp://10.0.0.7:29500", "unisono-master"),
            ("RANK_0_SERVICE_HOST", "10.0.0.7", "unisono-rank-0"),
        ] {
            assert_eq!(service(name, value).as_deref(), Some(expected), "{name}={value}");
        }
        for (name, value) in [
            ("PORT", "29500"),
            ("TIMEOUT", "5"),
            ("PORTS", "tcp://"),
            ("TRANSPORTS", "tcp"),
            ("MASTE\u{12}R_SERVICE_HOST", "10.0.0.7"),
        ] {
            assert_eq!(service(name, value), None, "{name}={value}");
        }
    }

    fn why(refused: std::result::Result<(), Refusal>) -> String {
        let (Refusal::Name(why) | Refusal::Value(why)) = refused.unwrap_err();
        why
    }

    /// The values hold the secret as a number, an id, a value with a typing error, and the contents
    /// of a file that a setting names.
    #[test]
    fn no_error_about_a_setting_shows_a_secret() {
        let secret = "5a".repeat(32);
        let file = std::env::temp_dir().join(format!("unisono-secret-{}", std::process::id()));
        std::fs::write(&file, format!("all_reduce shm 2 {secret} ring")).unwrap();
        let path = file.display().to_string();
        let values = [&*secret, &format!("127.0.0.1:5/{secret}"), &format!("{secret}g"), &path];
        let known = ["TRANSPORT", "CHANNELS", "ENCRYPTION", "BIND_ADDR", "ALGO", "TUNING_FILE", "WAIT"];
        let others = ["SECRETS", "SECRET_HEX", "IDS", "ID", "SECRET", "SECRET_FILE", "SLOTS", "PORT"];
        for (name, value) in known.iter().chain(&others).flat_map(|name| values.map(|value| (name, value))) {
            let name = format!("UNISONO_{name}");
            let pair = [(&*name, value)];
            let errors = [
                Config::from_vars(pair.map(|(name, value)| (name.to_owned(), value.to_owned()))).err(),
                Config::default().with_settings(pair).err(),
            ];
            for error in errors.into_iter().flatten() {
                let text = error.to_string();
                assert!(text.contains(&name) && !text.contains("5a5a5a"), "{text}");
            }
        }
        std::fs::remove_file(&file).unwrap();
        let misspelled = Config::default().with_settings([("UNISONO_SECRETS", "open sesame")]).unwrap_err();
        assert!(misspelled.to_string().starts_with("UNISONO_SECRETS: no such setting"), "{misspelled}");
    }

    #[test]
    fn with_settings_names_the_first_wrong_pair() {
        let config =
            |pairs: &[(&'static str, &'static str)]| Config::default().with_settings(pairs.iter().copied());
        let set = config(&[("UNISONO_CHANNELS", "3"), ("channels", "4"), ("Transport", "tcp")]).unwrap();
        assert_eq!((set.channels, set.transport), (4, Transport::Tcp));
        for (pair, part) in [
            (("channels", "many"), "channels=many: not a whole number"),
            (("slots", "4"), "this setting is named UNISONO_FIFO_DEPTH"),
            (("secret", "x"), "only the environment has this"),
            (("ext_torch", "1"), "no such setting"),
        ] {
            let error = config(&[("channels", "2"), pair]).unwrap_err();
            assert!(error.is_invalid_usage() && error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn config_set_accepts_known_and_rejects_unknown() {
        let mut config = Config::default();
        config.set("TIMEOUT_MS", "250").unwrap();
        config.set("TRANSPORT", "tcp").unwrap();
        assert_eq!((config.timeout.as_millis(), config.transport), (250, Transport::Tcp));
        config.set("ENCRYPTION", "on").unwrap();
        assert!(config.encryption);
        let mut refused = |name, value: &str| why(config.set(name, value));
        assert_eq!(refused("ENCRYPTION", "yes"), "neither on nor off");
        assert_eq!(refused("CHANELS", "4"), "no such setting");
        assert_eq!(refused("CHANNELS", "many"), "not a whole number");
        assert_eq!(refused("TIMEOUT_MS", "1"), "must be at least 100");
        assert!(refused("FIFO_SLOT_BYTES", &usize::MAX.to_string()).starts_with("must be at most"));
        assert!(refused("ALGO", "rign").contains("no algorithm `rign`"));
    }

    #[test]
    fn config_set_answers_old_names_with_new_ones() {
        for &(old, new) in RENAMED {
            let error = why(Config::default().set(old, "1"));
            assert!(error.contains(&format!("UNISONO_{new}")), "{old}: {error}");
            let known = Config::default().set(new, "?");
            assert!(!matches!(known, Err(Refusal::Name(_))), "{new}");
        }
    }

    #[test]
    fn config_set_accepts_only_the_new_order_value() {
        let error = why(Config::default().set("REDUCTION_ORDER", "ranks"));
        assert_eq!(error, "`ranks` is none of any, rank");
        assert_eq!(why(Config::default().set("GPU_LL128", "0")), "neither on nor off");
    }
}
