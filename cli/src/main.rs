//! The `unisono` command.
fn main() {}
