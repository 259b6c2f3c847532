//! Container images made from local files, as `docker save` archives.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Scratch, run, tools};

/// Programs of the test image beside busybox's applets, with the libraries they need.
const PROGRAMS: &[&str] = &["curl"];

/// Writes an archive that holds one image under several names.
pub fn write(archive: &Path, names: &[&str]) {
    let scratch = Scratch::new("img");
    let root = scratch.path().join("root");
    fill_root(&root);
    let layer = scratch.path().join("layer.tar");
    run(Command::new("tar")
        .args(["--owner=0", "--group=0", "-C"])
        .arg(&root)
        .arg("-cf")
        .arg(&layer)
        .arg("."));
    let digest = sha256(&layer);
    let config = serde_json::json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Env": ["PATH=/bin"],
            "Cmd": ["/bin/sh", "-c", "hostname >/www/index.html; exec httpd -f -h /www -p 8080"],
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
        "history": [{"created_by": "sampan tests"}],
    });
    let text = config.to_string();
    std::fs::write(scratch.path().join("config.json"), &text).unwrap();
    let config_name = format!("{}.json", sha256(&scratch.path().join("config.json")));
    std::fs::rename(
        scratch.path().join("config.json"),
        scratch.path().join(&config_name),
    )
    .unwrap();
    let manifest =
        serde_json::json!([{"Config": config_name, "RepoTags": names, "Layers": ["layer.tar"]}]);
    std::fs::write(scratch.path().join("manifest.json"), manifest.to_string()).unwrap();
    std::fs::create_dir_all(archive.parent().unwrap()).unwrap();
    // Under another name first: the importer watches the folder.
    let partial = archive.with_extension("partial");
    run(Command::new("tar")
        .arg("-C")
        .arg(scratch.path())
        .arg("-cf")
        .arg(&partial)
        .args(["manifest.json", &config_name, "layer.tar"]));
    std::fs::rename(partial, archive).unwrap();
}

fn fill_root(root: &Path) {
    for folder in [
        "bin", "etc", "lib", "lib64", "tmp", "www", "proc", "sys", "dev",
    ] {
        std::fs::create_dir_all(root.join(folder)).unwrap();
    }
    let busybox = tools().join("busybox/bin/busybox");
    std::fs::copy(&busybox, root.join("bin/busybox")).unwrap();
    let applets = run(Command::new(&busybox).arg("--list"));
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    let mut programs = vec![busybox];
    for name in PROGRAMS {
        let path = PathBuf::from(run(Command::new("which").arg(name)).trim());
        let inside = root.join("bin").join(name);
        std::fs::copy(&path, inside).unwrap();
        programs.push(path);
    }
    for library in programs
        .iter()
        .flat_map(|program| libraries(program))
        .collect::<BTreeSet<_>>()
    {
        let inside = root.join(library.strip_prefix("/").unwrap());
        std::fs::create_dir_all(inside.parent().unwrap()).unwrap();
        std::fs::copy(&library, inside).unwrap();
    }
    std::fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n").unwrap();
    std::fs::write(root.join("etc/group"), "root:x:0:\n").unwrap();
    std::fs::write(root.join("etc/nsswitch.conf"), "hosts: files dns\n").unwrap();
}

/// What `ldd` names: the shared libraries and the loader.
fn libraries(program: &Path) -> Vec<PathBuf> {
    run(Command::new("ldd").arg(program))
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

fn sha256(file: &Path) -> String {
    let text = run(Command::new("sha256sum").arg(file));
    text.split_whitespace().next().unwrap().to_owned()
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
