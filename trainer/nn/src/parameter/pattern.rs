//! Patterns of paths. `*` matches one component of a path, or several at the start of a key of the
//! configuration.

use std::collections::BTreeSet;

/// Returns true if `pattern` matches `path`.
pub fn matches(pattern: &str, path: &str) -> bool {
    pattern.split('.').count() == path.split('.').count() && matches_prefix(pattern, path)
}

/// Returns true if `pattern` matches `path` or one of its ancestors.
pub(crate) fn matches_prefix(pattern: &str, path: &str) -> bool {
    let mut parts = path.split('.');
    pattern.split('.').all(|pattern| parts.next().is_some_and(|part| pattern == "*" || pattern == part))
}

/// Returns true if `pattern` matches `path` or one of its ancestors. A `*` at the start matches one
/// or more components: `*.bias` selects the biases of all layers.
pub fn selects(pattern: &str, path: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(suffix) => path.match_indices('.').any(|(end, _)| matches_prefix(suffix, &path[end + 1..])),
        None => matches_prefix(pattern, path),
    }
}

/// Returns the three paths most similar to `pattern`, as text.
pub fn suggestions<'a>(pattern: &str, paths: impl IntoIterator<Item = &'a str>) -> String {
    let distance = |path: &'a str| (strsim::damerau_levenshtein(pattern, path), path);
    // The set sorts paths by distance, and drops those that the caller gave twice.
    let nearest: BTreeSet<_> = paths.into_iter().map(distance).collect();
    nearest.into_iter().take(3).map(|(_, path)| format!("`{path}`")).collect::<Vec<_>>().join(", ")
}

/// Returns a path and its ancestors.
pub(crate) fn with_ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('.').map(|(end, _)| &path[..end]).chain([path])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_matches_one_segment_or_the_start() {
        assert!(matches("h.*.mlp", "h.0.mlp") && !matches("h.*", "h.0.mlp") && !matches("h.*.mlp", "h.0"));
        assert!(
            matches_prefix("h.*", "h.0.mlp")
                && matches_prefix("h.0.mlp", "h.0.mlp")
                && !matches_prefix("h.1", "h.0.mlp")
        );
        assert!(selects("*.bias", "ln_f.bias") && selects("*.bias", "h.0.mlp.bias"));
        assert!(
            selects("*.mlp", "h.0.mlp.bias")
                && !selects("*.bias", "bias")
                && !selects("h.*.bias", "h.0.mlp.bias")
        );
        assert!(!matches_prefix("h", "head") && !matches_prefix("h.0.mlp.bias", "h.0.mlp"));
        assert_eq!(
            suggestions("h.0.mpl", ["wte", "h.0.mlp", "h.1.mlp", "lm_head"]),
            "`h.0.mlp`, `h.1.mlp`, `lm_head`"
        );
        assert_eq!(with_ancestors("h.0.mlp").collect::<Vec<_>>(), ["h", "h.0", "h.0.mlp"]);
    }
}
