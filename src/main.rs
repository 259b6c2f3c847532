//! Entry point: parse, call the command line, return its exit code.

/// Without transparent huge pages (feature `no_thp`): they more than double what an idle node holds.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    sampan_cli::main(std::env::args_os().collect())
}
