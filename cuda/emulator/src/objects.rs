//! Object files, kept by what they are made of: a source is compiled again only if it, a header
//! that it includes, or the compiler's options have changed.

use crate::build::{BuildError, finish, is_only_written_by_user, keep, make_own_folder, start};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Sources of a library by their path below the build folder, and how they are compiled.
pub(crate) struct Objects<'s> {
    pub(crate) compiler: &'s str,
    pub(crate) sources: BTreeMap<String, &'s str>,
}

/// One object file that is wanted.
pub(crate) struct Wanted {
    /// Path of the source.
    pub(crate) source: String,
    /// Arguments of the compiler, without the name of the output.
    pub(crate) arguments: Vec<String>,
}

/// Returns the path of the object file of a source.
pub(crate) fn object(path: &str) -> String {
    format!("{path}.o")
}

impl Objects<'_> {
    /// Places the object files into `folder`, beside the sources there. Compiles those that `kept`
    /// does not have, as many at once as there are cores.
    pub(crate) fn place(&self, wanted: &[Wanted], kept: &Path, folder: &Path) -> Result<(), BuildError> {
        make_own_folder(kept)?;
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
        let work = || {
            while let Some(each) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = self.place_one(each, kept, folder) {
                    // The first error is the one to report.
                    failed.lock().expect("no compilation panics").get_or_insert(error);
                    return;
                }
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
        failed.into_inner().expect("no compilation panics").map_or(Ok(()), Err)
    }

    fn place_one(&self, wanted: &Wanted, kept: &Path, folder: &Path) -> Result<(), BuildError> {
        let unfit = |error: io::Error| BuildError::NoFolder(format!("{}: {error}", kept.display()));
        let file = kept.join(format!("{:016x}.o", self.key(wanted)));
        let place = folder.join(object(&wanted.source));
        if !is_only_written_by_user(&file) {
            let output = object(&wanted.source);
            let arguments: Vec<&str> =
                wanted.arguments.iter().map(String::as_str).chain(["-o", &output]).collect();
            finish(self.compiler, start(self.compiler, folder, &arguments))?;
            // Another process may compile the same: a rename replaces the whole file.
            let unique = file.with_extension(std::process::id().to_string());
            fs::copy(&place, &unique).and_then(|_| keep(&unique, &file)).map_err(unfit)?;
            return Ok(());
        }
        fs::copy(&file, &place).map(drop).map_err(unfit)
    }

    /// A number of all that the object file is made of.
    fn key(&self, wanted: &Wanted) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.compiler, std::env::consts::ARCH, &wanted.arguments).hash(&mut hasher);
        for path in self.closure(&wanted.source) {
            (&path, self.sources[&path]).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// A source, and the headers that it includes, directly or not.
    fn closure(&self, source: &str) -> BTreeSet<String> {
        let (mut found, mut open) = (BTreeSet::new(), vec![source.to_owned()]);
        while let Some(path) = open.pop() {
            let Some(text) = self.sources.get(&path) else { continue };
            open.extend(included(text).flat_map(|name| self.paths_of(name)));
            found.insert(path);
            open.retain(|path| !found.contains(path));
        }
        found
    }

    /// Every source of this file name. More than the compiler would take is harmless.
    fn paths_of(&self, name: &str) -> impl Iterator<Item = String> {
        self.sources.keys().filter(move |path| path.rsplit('/').next() == Some(name)).cloned()
    }
}

/// File names that a text includes. Includes of macros are not understood, and are not used.
fn included(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let name_and_tail =
            line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?.trim_start();
        let name = name_and_tail.strip_prefix(['"', '<'])?.split(['"', '>']).next()?;
        name.rsplit('/').next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects<'s>(sources: &[(&str, &'s str)]) -> Objects<'s> {
        let sources = sources.iter().map(|&(path, text)| (path.to_owned(), text)).collect();
        Objects { compiler: "g++", sources }
    }

    #[test]
    fn object_key_changes_with_included_headers_only() {
        let wanted = Wanted { source: "a/one.cpp".to_owned(), arguments: vec!["-O1".to_owned()] };
        let key = |deep: &'static str, other: &'static str| {
            objects(&[
                ("a/one.cpp", "# include \"near.hpp\"\n"),
                ("a/near.hpp", "#include <deep.hpp>\n#include \"near.hpp\"\n#include <string>\n"),
                ("b/deep.hpp", deep),
                ("a/other.hpp", other),
            ])
            .key(&wanted)
        };
        assert_eq!(key("1", "1"), key("1", "2"), "not included");
        assert_ne!(key("1", "1"), key("2", "1"), "included by a header");
    }

    #[test]
    fn object_key_changes_with_the_options() {
        let key = |level: &str| {
            let arguments = vec![level.to_owned()];
            objects(&[("one.cpp", "")]).key(&Wanted { source: "one.cpp".to_owned(), arguments })
        };
        assert_ne!(key("-O0"), key("-O1"));
    }
}
