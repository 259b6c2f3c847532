//! Entry point: parse, call the command line, return its exit code.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    sampan_cli::main(std::env::args_os().collect())
}
