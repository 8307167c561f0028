//! The text form of settings in errors, which hides secrets.

use unisono_transports::text::without_secrets;

/// Returns `NAME=value`, as errors about a variable show it.
///
/// If a variable holds the secret of the job, its value is left out. Other values may hold the
/// secret by mistake, so long runs of hexadecimal digits are left out of them. Characters that
/// control a terminal are escaped.
pub(crate) fn assignment(name: &str, value: &str) -> String {
    match holds_secret(name) {
        true => without_secrets(name),
        false => without_secrets(&format!("{name}={value}")),
    }
}

/// Returns true if the variable holds the secret, or the name of its file, in place of which a user
/// may give the secret itself.
fn holds_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    HOLD_SECRET.contains(&name.strip_prefix("UNISONO_").unwrap_or(&name))
}

const HOLD_SECRET: [&str; 3] = ["ID", "SECRET", "SECRET_FILE"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignment_shows_values_and_no_secrets() {
        let secret = "5a".repeat(32);
        assert_eq!(assignment("UNISONO_CHANNELS", "many"), "UNISONO_CHANNELS=many");
        assert_eq!(assignment("MASTER_ADDR", "a\u{1b}b"), "MASTER_ADDR=a\\u{1b}b");
        for name in ["UNISONO_ID", "UNISONO_SECRET", "UNISONO_SECRET_FILE", "secret", "id"] {
            assert_eq!(assignment(name, "any text at all"), name);
        }
        for name in ["UNISONO_BIND_ADDR", "MASTER_ADDR", "RANK"] {
            let shown = assignment(name, &format!("127.0.0.1:5/{secret}"));
            assert!(
                shown.starts_with(&format!("{name}=127.0.0.1:5/(")) && !shown.contains("5a5a"),
                "{shown}"
            );
        }
    }
}
