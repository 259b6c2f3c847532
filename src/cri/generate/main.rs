//! Writes `../generated` from the protocol definitions in `../proto`. The compiler is a crate (`protox`): no `protoc` needed.

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let proto = root.join("proto");
    let mut files = Vec::new();
    collect(&proto, &mut files)?;
    files.sort();

    let out = root.join("generated");
    std::fs::create_dir_all(&out)?;
    let mut config = tonic_prost_build::Config::new();
    config
        .out_dir(&out)
        .include_file("generated.rs")
        .bytes(["."])
        .disable_comments(["."]);
    tonic_prost_build::configure()
        .build_server(false)
        .out_dir(&out)
        .compile_fds_with_config(protox::compile(files, [proto])?, config)?;
    Ok(())
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "proto") {
            files.push(path);
        }
    }
    Ok(())
}
