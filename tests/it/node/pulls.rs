//! Images that come from a registry, or do not.

use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::scene::{FOREVER, Scene};
use crate::support::registry::{Login, Registry};
use crate::support::{image, run};

fn registry(scene: &Scene<'_>, port: u16) -> Registry {
    let logins = vec![
        Login {
            prefix: "private/",
            user: "reader",
            password: "secret",
        },
        Login {
            prefix: "private/team/",
            user: "team",
            password: "more-secret",
        },
    ];
    // Written anew, so that it is not the image that the node has already.
    let archive = scene
        .node
        .scratch
        .path()
        .join(format!("registry-{port}.tar"));
    image::write(&archive, &["any:1"]);
    let registry = Registry::start(&scene.node.outside, port, &archive, logins);
    // Without a word about it containerd speaks TLS to registries.
    let folder = scene
        .node
        .server
        .data_dir
        .join("agent/containerd/certs.d")
        .join(&registry.address);
    std::fs::create_dir_all(&folder).unwrap();
    let text = format!(
        "server = \"http://{0}\"\n[host.\"http://{0}\"]\n  capabilities = [\"pull\", \"resolve\"]\n",
        registry.address
    );
    std::fs::write(folder.join("hosts.toml"), text).unwrap();
    registry
}

fn spec(image: &str, policy: &str, more: &str) -> String {
    let script = serde_json::to_string(FOREVER).unwrap();
    format!(
        "{more}containers: [{{name: main, image: '{image}', imagePullPolicy: {policy}, command: [sh, -c, {script}]}}]"
    )
}

const WAITING: &str = "{.status.containerStatuses[0].state.waiting.reason}";
const MESSAGE: &str = "{.status.containerStatuses[0].state.waiting.message}";

pub(super) fn policies(scene: &Scene<'_>) {
    let registry = registry(scene, 5000);
    let image = format!("{}/plain:1", registry.address);
    let missing = format!("{}/missing:1", registry.address);
    scene.pod("fails", &spec(&missing, "IfNotPresent", ""));
    scene.pod(
        "never",
        &spec(&format!("{}/other:1", registry.address), "Never", ""),
    );
    scene.pod("invalid", &spec("FAILED_IMAGE", "IfNotPresent", ""));
    scene.pod("first", &spec(&image, "IfNotPresent", ""));
    scene.ready("pod/first");
    scene.event(
        "first",
        "Pulling",
        &format!("Normal Pulling image \"{image}\""),
    );
    scene.event(
        "first",
        "Pulled",
        &format!("Normal Successfully pulled image \"{image}\" in "),
    );
    scene.truth("a pull", registry.asked("plain") > 0);
    let asked = registry.asked("plain");
    scene.pod("second", &spec(&image, "IfNotPresent", ""));
    scene.ready("pod/second");
    scene.event("second", "Pulled", "already present on machine");
    scene.is(
        "no pull",
        &registry.asked("plain").to_string(),
        &asked.to_string(),
    );
    scene.pod("always", &spec(&image, "Always", ""));
    scene.ready("pod/always");
    scene.event("always", "Pulled", "Successfully pulled image");
    scene.until_is("pod/never", WAITING, "ErrImageNeverPull");
    scene.is(
        "message",
        &scene.field("pod/never", MESSAGE),
        &format!(
            "Container image \"{}/other:1\" is not present with pull policy of Never",
            registry.address
        ),
    );
    scene.event("never", "Failed", "Warning Error: ErrImageNeverPull");
    scene.until_is("pod/invalid", WAITING, "InvalidImageName");
    scene.is(
        "message",
        &scene.field("pod/invalid", MESSAGE),
        "Failed to apply default image tag \"FAILED_IMAGE\": couldn't parse image name \"FAILED_IMAGE\": \
         invalid reference format: repository name (library/FAILED_IMAGE) must be lowercase",
    );
    scene.until_is("pod/fails", WAITING, "ImagePullBackOff");
    // Between two pauses it is pulled again, and then the message is another one.
    scene.until_has(
        "pod/fails",
        MESSAGE,
        &format!("Back-off pulling image \"{missing}\": ErrImagePull: "),
    );
    scene.event(
        "fails",
        "Failed",
        &format!("Warning Failed to pull image \"{missing}\": "),
    );
    scene.event("fails", "Failed", "Warning Error: ErrImagePull");
    scene.event(
        "fails",
        "BackOff",
        &format!("Normal Back-off pulling image \"{missing}\""),
    );
    scene.event("fails", "Failed", "Warning Error: ImagePullBackOff");
}

fn docker_config(entries: &[(&str, &str, &str)]) -> String {
    let rows: serde_json::Map<String, serde_json::Value> = entries
        .iter()
        .map(|(place, user, password)| {
            let auth = STANDARD.encode(format!("{user}:{password}"));
            ((*place).to_owned(), serde_json::json!({"auth": auth}))
        })
        .collect();
    serde_json::Value::Object(rows).to_string()
}

pub(super) fn credentials(scene: &Scene<'_>) {
    let registry = registry(scene, 5001);
    let host = registry.address.as_str();
    let secret = |name: &str, kind: &str, key: &str, text: &str| {
        let data = STANDARD.encode(text);
        scene.apply(&format!(
            "{{apiVersion: v1, kind: Secret, metadata: {{name: {name}}}, type: kubernetes.io/{kind}, data: {{{key}: {data}}}}}"
        ));
    };
    let whole = docker_config(&[(host, "reader", "secret")]);
    secret(
        "json",
        "dockerconfigjson",
        ".dockerconfigjson",
        &format!("{{\"auths\": {whole}}}"),
    );
    secret("cfg", "dockercfg", ".dockercfg", &whole);
    let team = format!("{host}/private/team");
    let both = docker_config(&[(host, "reader", "secret"), (&team, "team", "more-secret")]);
    secret(
        "both",
        "dockerconfigjson",
        ".dockerconfigjson",
        &format!("{{\"auths\": {both}}}"),
    );
    secret(
        "wrong",
        "dockerconfigjson",
        ".dockerconfigjson",
        &format!(
            "{{\"auths\": {}}}",
            docker_config(&[(host, "reader", "guess")])
        ),
    );
    scene.kubectl("create serviceaccount puller");
    scene.kubectl_args(&[
        "patch",
        "serviceaccount",
        "puller",
        "-p",
        "{\"imagePullSecrets\": [{\"name\": \"json\"}]}",
    ]);
    let with = |secrets: &str| format!("imagePullSecrets: [{secrets}], ");
    let always = |pod: &str, repository: &str, more: &str| {
        scene.pod(
            pod,
            &spec(&format!("{host}/{repository}:1"), "Always", more),
        );
    };
    always("json", "private/a", &with("{name: json}"));
    always("cfg", "private/b", &with("{name: cfg}"));
    always("team", "private/team/c", &with("{name: both}"));
    always("second", "private/d", &with("{name: wrong}, {name: json}"));
    always("account", "private/e", "serviceAccountName: puller, ");
    always("none", "private/f", "");
    always("wrong", "private/g", &with("{name: wrong}, {name: absent}"));
    for pod in ["json", "cfg", "team", "second", "account"] {
        scene.ready(&format!("pod/{pod}"));
    }
    for pod in ["none", "wrong"] {
        scene.until_is(&format!("pod/{pod}"), WAITING, "ImagePullBackOff");
        scene.event(pod, "Failed", "401 Unauthorized");
    }
    scene.event(
        "wrong",
        "FailedToRetrieveImagePullSecret",
        "Warning Unable to retrieve some image pull secrets (absent); attempting to pull the image may not succeed.",
    );
}

/// The node was started with thresholds that any disk is above: what nobody uses goes, what came from an archive stays.
pub(super) fn collection(scene: &Scene<'_>) {
    let registry = registry(scene, 5002);
    let image = format!("{}/used:1", registry.address);
    scene.pod("used", &spec(&image, "IfNotPresent", ""));
    scene.ready("pod/used");
    let socket = scene.node.containerd_socket();
    let listed =
        || run(Command::new("ctr").args(["-a", &socket, "-n", "k8s.io", "images", "ls", "-q"]));
    scene.has("listed", &listed(), &image);
    scene.kubectl("delete pod used");
    scene.until("the image is gone", || {
        let all = listed();
        if all.contains(&image) {
            Err(all)
        } else {
            Ok(())
        }
    });
    let all = listed();
    scene.has("imported", &all, super::IMAGE);
    scene.has("the sandbox's", &all, "sampan.io/pause");
}
