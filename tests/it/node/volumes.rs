//! What a container is given: variables and files.

use super::lifecycle::folder;
use super::scene::{FOREVER, Scene, container, main_container};

pub(super) fn environment(scene: &Scene<'_>) {
    scene.kubectl("create configmap words --from-literal=ONE=eins --from-literal=two=zwei");
    scene.kubectl("create secret generic hidden --from-literal=KEY=open");
    let env = "[{name: PLAIN, value: text}, {name: COMPOSED, value: '$(PLAIN)-$(ONE)-$$(PLAIN)'}, \
        {name: FROM_MAP, valueFrom: {configMapKeyRef: {name: words, key: two}}}, \
        {name: FROM_SECRET, valueFrom: {secretKeyRef: {name: hidden, key: KEY}}}, \
        {name: NONE, valueFrom: {configMapKeyRef: {name: nothing, key: x, optional: true}}}, \
        {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, \
        {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}, \
        {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}, \
        {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}, \
        {name: LABEL, valueFrom: {fieldRef: {fieldPath: 'metadata.labels[''app'']'}}}, \
        {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}, \
        {name: MEMORY, valueFrom: {resourceFieldRef: {resource: requests.memory, divisor: 1Mi}}}]";
    scene.pod_with(
        "env",
        ", labels: {app: e}",
        &main_container(
            FOREVER,
            &format!(
                ", env: {env}, envFrom: [{{configMapRef: {{name: words}}}}, {{prefix: P_, secretRef: {{name: hidden}}}}], \
                 resources: {{limits: {{cpu: 250m}}, requests: {{cpu: 100m, memory: 8Mi}}}}"
            ),
        ),
    );
    scene.ready("pod/env");
    let ip = scene.field("pod/env", "{.status.podIP}");
    let rows = [
        ("PLAIN", "text"),
        ("COMPOSED", "text-eins-$(PLAIN)"),
        ("FROM_MAP", "zwei"),
        ("FROM_SECRET", "open"),
        ("NONE", ""),
        ("NAME", "env"),
        ("IP", ip.as_str()),
        ("HOST", scene.node.itself.address.as_str()),
        ("NODE", "n"),
        ("LABEL", "e"),
        ("CPU", "250"),
        ("MEMORY", "8"),
        ("ONE", "eins"),
        ("two", "zwei"),
        ("P_KEY", "open"),
        ("KUBERNETES_SERVICE_HOST", "10.43.0.1"),
    ];
    let lines = rows.map(|(variable, _)| format!("echo \"${variable}\""));
    let rows: Vec<(&str, &str)> = lines
        .iter()
        .zip(rows)
        .map(|(line, (_, value))| (line.as_str(), value))
        .collect();
    scene.answers("env", &rows);
}

/// What is not there yet holds the container back, and only that.
pub(super) fn missing_references(scene: &Scene<'_>) {
    scene.pod(
        "map",
        &main_container(FOREVER, ", envFrom: [{configMapRef: {name: later}}]"),
    );
    scene.pod(
        "key",
        &main_container(
            FOREVER,
            ", env: [{name: A, valueFrom: {secretKeyRef: {name: later, key: a}}}]",
        ),
    );
    scene.pod(
        "volume",
        &(main_container(FOREVER, ", volumeMounts: [{name: v, mountPath: /v}]")
            + ", volumes: [{name: v, configMap: {name: later}}]"),
    );
    let waiting = "{.status.containerStatuses[0].state.waiting.reason}: {.status.containerStatuses[0].state.waiting.message}";
    scene.until_is(
        "pod/map",
        waiting,
        "CreateContainerConfigError: configmap \"later\" not found",
    );
    scene.until_is(
        "pod/key",
        waiting,
        "CreateContainerConfigError: secret \"later\" not found",
    );
    scene.event(
        "map",
        "Failed",
        "Warning Error: configmap \"later\" not found",
    );
    scene.event(
        "volume",
        "FailedMount",
        "Warning MountVolume.SetUp failed for volume \"v\" : configmap \"later\" not found",
    );
    scene.until_has(
        "pod/volume",
        "{.status.containerStatuses[0].state.waiting.reason}",
        "ContainerCreating",
    );
    scene.kubectl("create configmap later --from-literal=a=b");
    scene.kubectl("create secret generic later --from-literal=a=b");
    for pod in ["map", "key", "volume"] {
        scene.ready(&format!("pod/{pod}"));
    }
}

pub(super) fn projected(scene: &Scene<'_>) {
    scene.kubectl("create configmap words --from-literal=one=eins --from-literal=two=zwei");
    scene.kubectl("create secret generic hidden --from-literal=key=open");
    let mounts = ", volumeMounts: [{name: map, mountPath: /map}, {name: secret, mountPath: /secret}, \
        {name: all, mountPath: /all}, {name: down, mountPath: /down}, {name: map, mountPath: /single, subPath: two}], \
        resources: {limits: {memory: 64Mi}}";
    let volumes = "[{name: map, configMap: {name: words, defaultMode: 0440}}, \
        {name: secret, secret: {secretName: hidden, items: [{key: key, path: deep/name, mode: 0400}]}}, \
        {name: down, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}, \
          {path: memory, resourceFieldRef: {containerName: main, resource: limits.memory, divisor: 1Mi}}]}}, \
        {name: all, projected: {sources: [{configMap: {name: words, items: [{key: one, path: m/one}]}}, \
          {secret: {name: hidden}}, {configMap: {name: nothing, optional: true}}, \
          {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}, \
          {serviceAccountToken: {path: token, audience: somebody, expirationSeconds: 600}}]}}]";
    scene.pod_with(
        "files",
        ", labels: {app: f}",
        &(main_container(FOREVER, mounts) + &format!(", volumes: {volumes}")),
    );
    scene.ready("pod/files");
    scene.answers(
        "files",
        &[
            ("cat /map/one", "eins"),
            ("stat -L -c %a /map/two", "440"),
            ("cat /secret/deep/name", "open"),
            ("stat -L -c %a /secret/deep/name", "400"),
            ("cat /single", "zwei"),
            ("cat /all/m/one /all/key /all/name", "einsopenfiles"),
            ("cat /down/labels", "app=\"f\""),
            ("cat /down/memory", "64"),
            ("touch /map/x 2>/dev/null || echo read-only", "read-only"),
            ("df -P /secret | tail -1 | cut -d' ' -f1", "tmpfs"),
            (
                "cut -d. -f2 /all/token | tr _- /+ | base64 -d 2>/dev/null | grep -c somebody",
                "1",
            ),
        ],
    );
}

/// Files follow their objects in one step; a subPath stays as it was.
pub(super) fn live_update(scene: &Scene<'_>) {
    scene.kubectl("create configmap words --from-literal=one=old --from-literal=gone=x");
    scene.kubectl("create secret generic hidden --from-literal=key=old");
    scene.pod_with(
        "live",
        ", labels: {app: old}",
        &(main_container(
            FOREVER,
            ", volumeMounts: [{name: map, mountPath: /map}, {name: secret, mountPath: /secret}, {name: down, mountPath: /down}, \
             {name: map, mountPath: /single, subPath: one}]",
        ) + ", volumes: [{name: map, configMap: {name: words}}, {name: secret, secret: {secretName: hidden}}, \
             {name: down, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}]"),
    );
    scene.ready("pod/live");
    let all = "cat /map/one; cat /secret/key /down/labels /single; ls /map";
    scene.is(
        "before",
        &scene.exec("live", all).replace('\n', " "),
        "oldoldapp=\"old\"oldgone one",
    );
    scene.apply(
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: words}, data: {one: new, more: 'y'}}",
    );
    scene.kubectl("delete configmap words");
    scene.apply(
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: words}, data: {one: new, more: 'y'}}",
    );
    scene.apply("{apiVersion: v1, kind: Secret, metadata: {name: hidden}, stringData: {key: new}}");
    scene.kubectl("label --overwrite pod live app=new");
    scene.until("files follow", || {
        let got = scene.exec("live", all).replace('\n', " ");
        if got == "newnewapp=\"new\"oldmore one " {
            Ok(())
        } else {
            Err(got)
        }
    });
}

pub(super) fn host_path(scene: &Scene<'_>) {
    let host = folder(scene, "path");
    std::fs::write(format!("{host}/file"), "from the node").unwrap();
    let spec = |mount: &str, path: &str, kind: &str| {
        main_container(
            FOREVER,
            &format!(", volumeMounts: [{{name: v, mountPath: {mount}}}]"),
        ) + &format!(", volumes: [{{name: v, hostPath: {{path: {host}/{path}, type: {kind}}}}}]")
    };
    scene.pod("dir", &spec("/v", "", "Directory"));
    scene.pod("file", &spec("/f", "file", "File"));
    scene.pod("made", &spec("/v", "made/deep", "DirectoryOrCreate"));
    scene.pod("wrong", &spec("/v", "file", "Directory"));
    for pod in ["dir", "file", "made"] {
        scene.ready(&format!("pod/{pod}"));
    }
    scene.is("file", &scene.exec("dir", "cat /v/file"), "from the node");
    scene.exec("dir", "echo from the pod > /v/file");
    scene.is("file", &scene.exec("file", "cat /f"), "from the pod");
    scene.truth(
        "made",
        std::path::Path::new(&format!("{host}/made/deep")).is_dir(),
    );
    scene.event("wrong", "FailedMount", "hostPath type check failed: ");
}

pub(super) fn empty_dir(scene: &Scene<'_>) {
    let mounts =
        ", volumeMounts: [{name: disk, mountPath: /disk}, {name: memory, mountPath: /memory}]";
    scene.pod(
        "both",
        &format!(
            "containers: [{}, {}], volumes: [{{name: disk, emptyDir: {{}}}}, {{name: memory, emptyDir: {{medium: Memory, sizeLimit: 8Mi}}}}]",
            container("main", FOREVER, mounts),
            container("other", FOREVER, mounts)
        ),
    );
    scene.pod(
        "full",
        &(main_container(
            &format!("head -c 3000000 /dev/zero > /v/big; {FOREVER}"),
            ", volumeMounts: [{name: v, mountPath: /v}]",
        ) + ", volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]"),
    );
    scene.ready("pod/both");
    scene.exec("both", "echo shared > /disk/a; echo shared > /memory/a");
    scene.is(
        "shared",
        &scene.kubectl("exec both -c other -- cat /disk/a /memory/a"),
        "shared\nshared",
    );
    scene.is(
        "size",
        &scene.exec("both", "df -P -k /memory | tail -1 | awk '{print $1, $2}'"),
        "tmpfs 8192",
    );
    scene.is(
        "mode",
        &scene.exec("both", "stat -c %a /disk /memory | tr '\\n' ' '"),
        "777 1777",
    );
    scene.phase("full", "Failed");
    scene.is(
        "reason",
        &scene.field("pod/full", "{.status.reason}: {.status.message}"),
        "Evicted: Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\".",
    );
    scene.event(
        "full",
        "Evicted",
        "Warning Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\".",
    );
}

/// The token in a Pod is good for the API, as the Pod's service account.
pub(super) fn api_token(scene: &Scene<'_>) {
    scene.kubectl("create serviceaccount reader");
    scene.kubectl("create role reader --verb=get,list --resource=pods");
    scene.kubectl(&format!(
        "create rolebinding reader --role=reader --serviceaccount={}:reader",
        scene.namespace()
    ));
    scene.pod(
        "reader",
        &format!(
            "serviceAccountName: reader, {}",
            main_container(FOREVER, "")
        ),
    );
    scene.pod(
        "without",
        &format!(
            "automountServiceAccountToken: false, {}",
            main_container(FOREVER, "")
        ),
    );
    scene.ready("pod/reader");
    scene.ready("pod/without");
    let ask = |what: &str| {
        let dir = "/var/run/secrets/kubernetes.io/serviceaccount";
        let line = format!(
            "curl -s --cacert {dir}/ca.crt -H \"Authorization: Bearer $(cat {dir}/token)\" \
             https://kubernetes.default/api/v1/namespaces/$(cat {dir}/namespace)/{what} -o /dev/null -w '%{{http_code}}'"
        );
        scene.exec("reader", &line)
    };
    scene.is("pods", &ask("pods"), "200");
    scene.is("secrets", &ask("secrets"), "403");
    scene.is(
        "no token",
        &scene.exec("without", "ls /var/run/secrets 2>/dev/null | wc -l"),
        "0",
    );
}
