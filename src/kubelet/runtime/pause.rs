//! The sandbox ("pause") image, made here so that no node has to pull one.
//!
//! Its one program holds a pod's namespaces: it sleeps, ends on SIGTERM and SIGINT, and as process 1 of a shared
//! process namespace lets the kernel reap orphans (SIGCHLD ignored). That is so little that it is written as machine
//! code: a static ELF file of some 300 bytes.

use bytes::Bytes;
use sampan_cri::import::{Bundle, oci};

/// The image's name unless `--pause-image` says otherwise; a changed program takes a new tag.
pub const NAME: &str = "sampan.io/pause:1";

/// The image for this machine; `None` on an architecture that has no program here.
pub fn bundle() -> Option<Bundle> {
    let program = program(std::env::consts::ARCH)?;
    let layer = layer(&program);
    let config = serde_json::json!({
        "architecture": oci::host_architecture(),
        "os": "linux",
        "config": {
            "User": "65535:65535",
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Entrypoint": ["/pause"],
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [oci::digest(&layer)]},
    });
    Some(Bundle::from_memory(NAME, layer, &config))
}

const BASE: u64 = 0x40_0000;
const HEADERS: u64 = 64 + 56;
const SIGINT: u32 = 2;
const SIGTERM: u32 = 15;
const SIGCHLD: u32 = 17;

/// The two `sigaction` structures behind the code, and the code that a signal ends in.
struct Addresses {
    ignore: u64,
    end: u64,
    exit: u64,
}

struct Architecture {
    machine: u16,
    /// Flags and restorer as the kernel insists on them; our handler never returns.
    action_flags: u64,
    code: fn(&Addresses) -> Vec<u8>,
    /// Of the code, and where in it the exit begins.
    length: u64,
    exit_at: u64,
}

const X86_64: Architecture = Architecture {
    machine: 62,
    action_flags: 0x0400_0000,
    code: x86_64,
    length: 3 * 25 + 9 + 9,
    exit_at: 3 * 25 + 9,
};

const AARCH64: Architecture = Architecture {
    machine: 183,
    action_flags: 0,
    code: aarch64,
    length: (3 * 6 + 8 + 3) * 4,
    exit_at: (3 * 6 + 8) * 4,
};

fn program(architecture: &str) -> Option<Vec<u8>> {
    let target = match architecture {
        "x86_64" => X86_64,
        "aarch64" => AARCH64,
        _ => return None,
    };
    let data = (HEADERS + target.length).next_multiple_of(8);
    let addresses = Addresses {
        ignore: BASE + data,
        end: BASE + data + 32,
        exit: BASE + HEADERS + target.exit_at,
    };
    let mut file = headers(&target, data + 64);
    file.extend((target.code)(&addresses));
    file.resize(data as usize, 0);
    // handler, flags, restorer, mask; handler 1 is SIG_IGN.
    for word in [1, target.action_flags, addresses.exit, 0] {
        file.extend(u64::to_le_bytes(word));
    }
    for word in [addresses.exit, target.action_flags, addresses.exit, 0] {
        file.extend(u64::to_le_bytes(word));
    }
    Some(file)
}

/// ELF header and one segment, readable and executable, that holds the whole file.
fn headers(target: &Architecture, size: u64) -> Vec<u8> {
    let mut out = b"\x7fELF\x02\x01\x01".to_vec();
    out.resize(16, 0);
    for half in [2, target.machine] {
        out.extend(u16::to_le_bytes(half));
    }
    out.extend(u32::to_le_bytes(1));
    for word in [BASE + HEADERS, 64, 0] {
        out.extend(u64::to_le_bytes(word));
    }
    out.extend(u32::to_le_bytes(0));
    for half in [64, 56, 1, 0, 0, 0] {
        out.extend(u16::to_le_bytes(half));
    }
    for word in [1u32, 5] {
        out.extend(u32::to_le_bytes(word));
    }
    for word in [0, BASE, BASE, size, size, 0x1_0000] {
        out.extend(u64::to_le_bytes(word));
    }
    out
}

fn x86_64(at: &Addresses) -> Vec<u8> {
    let mut code = Vec::new();
    for (signal, action) in [(SIGCHLD, at.ignore), (SIGTERM, at.end), (SIGINT, at.end)] {
        code.push(0xbf); // mov edi, signal
        code.extend(signal.to_le_bytes());
        code.push(0xbe); // mov esi, action
        code.extend((action as u32).to_le_bytes());
        code.extend([0x31, 0xd2]); // xor edx, edx
        code.extend([0x41, 0xba, 8, 0, 0, 0]); // mov r10d, 8
        code.extend([0xb8, 13, 0, 0, 0]); // mov eax, rt_sigaction
        code.extend([0x0f, 0x05]); // syscall
    }
    code.extend([0xb8, 34, 0, 0, 0, 0x0f, 0x05]); // pause
    code.extend([0xeb, 0xf7]); // and again
    code.extend([0x31, 0xff, 0xb8, 231, 0, 0, 0, 0x0f, 0x05]); // exit_group(0)
    code
}

fn aarch64(at: &Addresses) -> Vec<u8> {
    const SVC: u32 = 0xd400_0001;
    let set = |register: u32, value: u32| 0xd280_0000 | (value << 5) | register;
    let mut code: Vec<u32> = Vec::new();
    for (signal, action) in [(SIGCHLD, at.ignore), (SIGTERM, at.end), (SIGINT, at.end)] {
        code.push(set(0, signal));
        let here = BASE + HEADERS + code.len() as u64 * 4;
        let distance = (action - here) as u32;
        // adr x1, action
        code.push(0x1000_0001 | ((distance & 3) << 29) | ((distance >> 2) << 5));
        code.extend([set(2, 0), set(3, 8), set(8, 134), SVC]); // rt_sigaction
    }
    for register in 0..5 {
        code.push(set(register, 0));
    }
    code.extend([set(8, 73), SVC]); // ppoll of nothing, without end
    code.push(0x1400_0000 | (-7i32 as u32 & 0x03ff_ffff)); // and again
    code.extend([set(0, 0), set(8, 94), SVC]); // exit_group(0)
    code.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A tar file with the program as `/pause`.
fn layer(program: &[u8]) -> Bytes {
    let mut header = [0; 512];
    let mut put =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, "pause");
    put(100, "0000755");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}", program.len()));
    put(136, "00000000000");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\u{0}00");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut tar = header.to_vec();
    tar.extend_from_slice(program);
    tar.resize(tar.len().next_multiple_of(512) + 1024, 0);
    tar.into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    #[test]
    fn code_is_as_long_as_the_table_says() {
        for (name, target) in [("x86_64", X86_64), ("aarch64", AARCH64)] {
            let at = Addresses {
                ignore: BASE + 0x200,
                end: BASE + 0x220,
                exit: BASE + 0x100,
            };
            assert_eq!((target.code)(&at).len() as u64, target.length, "{name}");
        }
    }

    #[test]
    fn sleeps_until_it_is_asked_to_end() {
        let path = std::env::temp_dir().join(format!("sampan-pause-{}", std::process::id()));
        std::fs::write(&path, program(std::env::consts::ARCH).unwrap()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut child = Killed(Command::new(&path).spawn().unwrap());
        std::fs::remove_file(&path).unwrap();
        let status_file = format!("/proc/{}/status", child.0.id());
        let status = || std::fs::read_to_string(&status_file).unwrap();
        // It has set up its signals once it catches SIGINT, the last of them.
        while mask(&status(), "SigCgt") != 1 << (SIGTERM - 1) | 1 << (SIGINT - 1) {
            assert!(child.0.try_wait().unwrap().is_none(), "ended by itself");
            std::thread::yield_now();
        }
        assert_ne!(mask(&status(), "SigIgn") & 1 << (SIGCHLD - 1), 0);
        let pid = rustix::process::Pid::from_child(&child.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert_eq!(child.0.wait().unwrap().code(), Some(0));
    }

    /// Ends with the test, however that ends.
    struct Killed(std::process::Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            // It may have ended already.
            drop(self.0.kill());
            drop(self.0.wait());
        }
    }

    fn mask(status: &str, name: &str) -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        u64::from_str_radix(line.split_once('\t').unwrap().1, 16).unwrap()
    }
}
