//! Gives the shared library a name with the version of its interface (SONAME).
//!
//! A program then finds only a library that it can call: of the same major version, or of the same
//! minor version before 1.0.

fn main() {
    let interface = match env!("CARGO_PKG_VERSION_MAJOR") {
        "0" => concat!("0.", env!("CARGO_PKG_VERSION_MINOR")),
        major => major,
    };
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libunisono.so.{interface}");
    println!("cargo:rerun-if-changed=build.rs");
}
