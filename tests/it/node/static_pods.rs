//! Pods that a file asks for.

use std::path::PathBuf;

use super::scene::{FOREVER, Scene, main_container};

fn manifests(scene: &Scene<'_>) -> PathBuf {
    let folder = scene.node.server.data_dir.join("agent/pod-manifests");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn manifest(scene: &Scene<'_>, script: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: {}, labels: {{app: static}}}}\nspec: {{terminationGracePeriodSeconds: 1, {}}}\n",
        scene.namespace(),
        main_container(script, "")
    )
}

pub(super) fn static_pods(scene: &Scene<'_>) {
    let file = manifests(scene).join(format!("{}.yaml", scene.namespace()));
    std::fs::write(&file, manifest(scene, &format!("echo first; {FOREVER}"))).unwrap();
    scene.until("the copy runs", || {
        scene
            .attempt("wait --for=condition=Ready pod/web-n --timeout=20s")
            .map(drop)
    });
    let copy = "pod/web-n";
    let hash = scene.field(
        copy,
        "{.metadata.annotations.kubernetes\\.io/config\\.hash}",
    );
    scene.is(
        "annotations",
        &scene.field(
            copy,
            "{.metadata.annotations.kubernetes\\.io/config\\.source} {.metadata.annotations.kubernetes\\.io/config\\.mirror}",
        ),
        &format!("file {hash}"),
    );
    scene.is(
        "owner",
        &scene.field(
            copy,
            "{.metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].name}",
        ),
        "Node/n",
    );
    scene.is("logs", &scene.kubectl("logs web-n"), "first");
    scene.is("exec", &scene.exec("web-n", "hostname"), "web-n");
    let id = scene.field(copy, "{.status.containerStatuses[0].containerID}");
    let uid = scene.field(copy, "{.metadata.uid}");
    // The copy is only a copy: deleted, it comes back, and nothing was stopped.
    scene.kubectl("delete pod web-n --wait=false");
    scene.until("another copy", || {
        let now = scene.attempt("get pod web-n -o jsonpath={.metadata.uid}{.status.phase}")?;
        if now.ends_with("Running") && !now.starts_with(&uid) {
            Ok(())
        } else {
            Err(now)
        }
    });
    scene.is(
        "same container",
        &scene.field(copy, "{.status.containerStatuses[0].containerID}"),
        &id,
    );
    // A broken file changes nothing.
    std::fs::write(&file, "apiVersion: v1\nkind: Pod\nmetadata: {name: ").unwrap();
    scene.until("the node tells", || {
        let all = scene.node.server.kubectl("get events -n default --field-selector reason=InvalidStaticPod -o jsonpath={.items[*].message}");
        let mut all = all;
        let got = crate::support::attempt(&mut all)?;
        if got.contains(&*file.to_string_lossy()) { Ok(()) } else { Err(got) }
    });
    scene.is(
        "same container",
        &scene.field(copy, "{.status.containerStatuses[0].containerID}"),
        &id,
    );
    std::fs::write(&file, manifest(scene, &format!("echo second; {FOREVER}"))).unwrap();
    scene.until("the new content runs", || {
        let got = scene.attempt("logs web-n")?;
        if got.trim() == "second" {
            Ok(())
        } else {
            Err(got)
        }
    });
    std::fs::remove_file(&file).unwrap();
    scene.until("the Pod is gone", || match scene.attempt("get pod web-n") {
        Ok(text) => Err(text),
        Err(_) => Ok(()),
    });
}
