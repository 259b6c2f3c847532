//! containerd's configuration, in the version 2 form that 1.6 to 2.x read.

use super::registries::Login;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Everything that goes into the file. Paths derive from the data directory, so two nodes never share any.
#[derive(Debug, Clone)]
pub struct ContainerdConfig {
    pub root: PathBuf,
    /// Short: sockets below it are limited to 107 bytes.
    pub state: PathBuf,
    pub socket: PathBuf,
    pub opt: PathBuf,
    pub runc: PathBuf,
    pub cni_bin: PathBuf,
    pub cni_conf: PathBuf,
    /// `certs.d` with one folder per registry: mirrors, certificates.
    pub registry: PathBuf,
    pub sandbox_image: String,
    pub snapshotter: String,
    pub max_concurrent_downloads: u32,
    /// Without CAP_SYS_RESOURCE scores below our own are refused by the kernel.
    pub may_lower_oom_score: bool,
    /// By registry.
    pub logins: Vec<(String, Login)>,
}

/// Plug-ins that a node never uses; each costs memory or a warning at start.
const DISABLED: [&str; 6] = [
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.internal.v1.restart",
];

/// Renders the file.
pub fn render_config(config: &ContainerdConfig) -> String {
    let mut toml = Toml::default();
    toml.line("# Written by sampan at every start.");
    toml.number("version", 2);
    toml.path("root", &config.root);
    toml.path("state", &config.state);
    if config.may_lower_oom_score {
        toml.line("oom_score = -999");
    }
    toml.strings("disabled_plugins", &DISABLED);

    render_service(&mut toml, config);
    render_cri(&mut toml, config);
    render_runc(&mut toml, config);

    toml.table(&format!("{CRI}.cni"));
    toml.path("bin_dir", &config.cni_bin);
    toml.path("conf_dir", &config.cni_conf);
    toml.number("max_conf_num", 1);

    toml.table(&format!("{CRI}.registry"));
    toml.path("config_path", &config.registry);
    toml.table("timeouts");
    for (what, limit) in PATIENCE {
        toml.text(&quote(&format!("io.containerd.timeout.{what}")), limit);
    }
    for (host, login) in &config.logins {
        render_login(&mut toml, host, login);
    }
    toml.0
}

fn render_service(toml: &mut Toml, config: &ContainerdConfig) {
    toml.table("grpc");
    toml.path("address", &config.socket);
    toml.number("max_recv_message_size", 16 << 20);
    toml.number("max_send_message_size", 16 << 20);

    toml.table("plugins.\"io.containerd.internal.v1.opt\"");
    toml.path("path", &config.opt);
}

fn render_cri(toml: &mut Toml, config: &ContainerdConfig) {
    toml.table(CRI);
    toml.text("sandbox_image", &config.sandbox_image);
    toml.text("stream_server_address", "127.0.0.1");
    toml.text("stream_server_port", "0");
    toml.text("stream_idle_timeout", "4h0m0s");
    toml.flag("enable_unprivileged_ports", true);
    toml.flag("enable_unprivileged_icmp", true);
    toml.flag("restrict_oom_score_adj", !config.may_lower_oom_score);
    toml.flag("tolerate_missing_hugetlb_controller", true);
    toml.flag("netns_mounts_under_state_dir", true);
    toml.number("max_concurrent_downloads", config.max_concurrent_downloads);
    toml.line("# How old the figures on the disk use of snapshots may be.");
    toml.number("stats_collect_period", 60);
}

fn render_runc(toml: &mut Toml, config: &ContainerdConfig) {
    toml.table(&format!("{CRI}.containerd"));
    toml.text("snapshotter", &config.snapshotter);
    toml.text("default_runtime_name", "runc");
    toml.flag("discard_unpacked_layers", false);
    toml.table(&format!("{CRI}.containerd.runtimes.runc"));
    toml.text("runtime_type", "io.containerd.runc.v2");
    toml.table(&format!("{CRI}.containerd.runtimes.runc.options"));
    toml.path("BinaryName", &config.runc);
    toml.path("Root", &config.state.join("runc"));
    toml.flag("SystemdCgroup", false);
}

fn render_login(toml: &mut Toml, host: &str, login: &Login) {
    toml.table(&format!("{CRI}.registry.configs.{}.auth", quote(host)));
    for (key, value) in [
        ("username", &login.username),
        ("password", &login.password),
        ("auth", &login.auth),
        ("identitytoken", &login.identity_token),
    ] {
        if !value.is_empty() {
            toml.text(key, value);
        }
    }
}

const CRI: &str = "plugins.\"io.containerd.grpc.v1.cri\"";

/// How long containerd waits for a shim. It ends the container of one that does not answer in time when it starts, so its
/// defaults (2 and 5 s) would end healthy containers of a small machine that is busy, for example with its own boot.
const PATIENCE: &[(&str, &str)] = &[
    ("shim.load", "40s"),
    ("shim.cleanup", "20s"),
    ("task.state", "20s"),
];

/// As much of TOML's syntax as the file needs.
#[derive(Default)]
struct Toml(String);

impl Toml {
    fn line(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn table(&mut self, name: &str) {
        self.line(&format!("\n[{name}]"));
    }

    fn number(&mut self, key: &str, value: u32) {
        self.line(&format!("{key} = {value}"));
    }

    fn flag(&mut self, key: &str, value: bool) {
        self.line(&format!("{key} = {value}"));
    }

    fn text(&mut self, key: &str, value: &str) {
        self.line(&format!("{key} = {}", quote(value)));
    }

    fn path(&mut self, key: &str, value: &Path) {
        self.text(key, &value.to_string_lossy());
    }

    fn strings(&mut self, key: &str, values: &[&str]) {
        let quoted: Vec<String> = values.iter().map(|value| quote(value)).collect();
        self.line(&format!("{key} = [{}]", quoted.join(", ")));
    }
}

pub(super) fn quote(value: &str) -> String {
    let mut quoted = String::from("\"");
    for character in value.chars() {
        match character {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(character);
            }
            control if control.is_control() => {
                // Writing to a String cannot fail.
                write!(quoted, "\\u{:04X}", u32::from(control)).ok();
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ContainerdConfig {
        ContainerdConfig {
            root: "/d/root".into(),
            state: "/run/s".into(),
            socket: "/run/s/c.sock".into(),
            opt: "/d/opt".into(),
            runc: "/usr/sbin/runc".into(),
            cni_bin: "/d/cni/bin".into(),
            cni_conf: "/d/cni/\"conf\"".into(),
            registry: "/d/certs.d".into(),
            sandbox_image: "sampan.io/pause:1".to_owned(),
            snapshotter: "overlayfs".to_owned(),
            max_concurrent_downloads: 3,
            may_lower_oom_score: false,
            logins: Vec::new(),
        }
    }

    #[test]
    fn what_the_kernel_refuses_is_not_asked_for() {
        let text = render_config(&config());
        assert!(text.contains("restrict_oom_score_adj = true\n"));
        assert!(!text.contains("oom_score = -999"));
        let text = render_config(&ContainerdConfig {
            may_lower_oom_score: true,
            ..config()
        });
        assert!(text.contains("restrict_oom_score_adj = false\n"));
        assert!(text.contains("oom_score = -999"));
    }

    #[test]
    fn busy_machines_keep_their_containers() {
        let text = render_config(&config());
        assert!(text.contains("\n[timeouts]\n\"io.containerd.timeout.shim.load\" = \"40s\"\n"));
    }

    #[test]
    fn paths_are_quoted() {
        let text = render_config(&config());
        assert!(text.contains(r#"conf_dir = "/d/cni/\"conf\"""#));
        assert!(text.contains("\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir"));
    }
}
