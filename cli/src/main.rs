//! The `unisono` command.

fn main() -> std::process::ExitCode {
    unisono_cli::main()
}
