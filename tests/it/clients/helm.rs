//! Helm 4 with a chart of our own: install, upgrade, rollback, uninstall; client-side and server-side apply.

use std::path::Path;
use std::process::Command;

use super::streams;
use crate::support::cluster::{Cluster, IMAGE, MINUTE};
use crate::support::{attempt, eventually, run, tools};

const CHART: &str = "apiVersion: v2\nname: web\nversion: 0.1.0\nappVersion: \"1\"\n";
const VALUES: &str = "replicas: 2\ngreeting: hello\nextra: false\n";

/// Template files of the chart.
const TEMPLATES: &[(&str, &str)] = &[
    (
        "config.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}\n  labels: &labels\n    \
         app.kubernetes.io/managed-by: {{ .Release.Service }}\n    app: {{ .Release.Name }}\ndata:\n  index.html: |\n    {{ .Values.greeting }}\n",
    ),
    (
        "account.yaml",
        "apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: {{ .Release.Name }}\n---\napiVersion: rbac.authorization.k8s.io/v1\n\
         kind: Role\nmetadata:\n  name: {{ .Release.Name }}\nrules:\n- apiGroups: ['']\n  resources: [configmaps]\n  verbs: [get]\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata:\n  name: {{ .Release.Name }}\nroleRef:\n  \
         apiGroup: rbac.authorization.k8s.io\n  kind: Role\n  name: {{ .Release.Name }}\nsubjects:\n- kind: ServiceAccount\n  \
         name: {{ .Release.Name }}\n  namespace: {{ .Release.Namespace }}\n",
    ),
    (
        "deployment.yaml",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {{ .Release.Name }}\nspec:\n  replicas: {{ .Values.replicas }}\n  \
         selector:\n    matchLabels:\n      app: {{ .Release.Name }}\n  template:\n    metadata:\n      labels:\n        \
         app: {{ .Release.Name }}\n      annotations:\n        checksum: {{ .Values.greeting | sha256sum }}\n    spec:\n      \
         serviceAccountName: {{ .Release.Name }}\n      terminationGracePeriodSeconds: 0\n      containers:\n      - name: web\n        \
         image: IMAGE\n        command: [sh, -c, 'echo started; exec httpd -f -h /pages -p 8080']\n        ports:\n        - containerPort: 8080\n        \
         readinessProbe:\n          httpGet:\n            port: 8080\n          periodSeconds: 1\n        volumeMounts:\n        \
         - name: pages\n          mountPath: /pages\n      volumes:\n      - name: pages\n        configMap:\n          name: {{ .Release.Name }}\n",
    ),
    (
        "service.yaml",
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {{ .Release.Name }}\nspec:\n  selector:\n    app: {{ .Release.Name }}\n  \
         ports:\n  - port: 80\n    targetPort: 8080\n",
    ),
    (
        "extra.yaml",
        "{{- if .Values.extra }}\napiVersion: v1\nkind: Secret\nmetadata:\n  name: {{ .Release.Name }}-extra\nstringData:\n  key: value\n{{- end }}\n",
    ),
    (
        "hook.yaml",
        "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: {{ .Release.Name }}-hook\n  annotations:\n    \
         helm.sh/hook: pre-install,pre-upgrade\n    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded\nspec:\n  \
         template:\n    spec:\n      restartPolicy: Never\n      containers:\n      - name: hook\n        image: IMAGE\n        command: ['true']\n",
    ),
];

fn write_chart(folder: &Path) {
    std::fs::create_dir_all(folder.join("templates")).unwrap();
    std::fs::write(folder.join("Chart.yaml"), CHART).unwrap();
    std::fs::write(folder.join("values.yaml"), VALUES).unwrap();
    for (name, text) in TEMPLATES {
        let text = text.replace("IMAGE", IMAGE);
        std::fs::write(folder.join("templates").join(name), text).unwrap();
    }
}

#[test]
fn helm_and_streams_of_the_kube_crate() {
    let cluster = Cluster::start("helm");
    let chart = cluster.server.data_dir.with_file_name("chart");
    write_chart(&chart);
    for (release, mode) in [("plain", "false"), ("applied", "true")] {
        let helm = Helm {
            cluster: &cluster,
            chart: &chart,
            release,
            mode,
        };
        println!("helm: --server-side={mode}: {}", helm.lives());
    }
    let helm = Helm {
        cluster: &cluster,
        chart: &chart,
        release: "streams",
        mode: "false",
    };
    helm.upgrade("install", "");
    let pod = cluster.kubectl("get pods -l app=streams -o jsonpath={.items[0].metadata.name}");
    println!("kube crate: {}", streams::streams_work(&cluster, &pod));
}

struct Helm<'a> {
    cluster: &'a Cluster,
    chart: &'a Path,
    release: &'a str,
    mode: &'a str,
}

impl Helm<'_> {
    fn command(&self, arguments: &str) -> Command {
        let server = &self.cluster.server;
        let mut command =
            self.cluster.nodes[0].command(&tools().join("bin/helm").display().to_string());
        command
            .env("KUBECONFIG", server.kubeconfig())
            .env("HOME", server.data_dir.with_file_name("home"))
            .args(arguments.split_whitespace());
        command
    }

    fn upgrade(&self, verb: &str, set: &str) {
        let (release, chart, mode) = (self.release, self.chart.display(), self.mode);
        run(&mut self.command(&format!(
            "{verb} {release} {chart} --server-side={mode} --wait --timeout 60s {set}"
        )));
    }

    fn answers(&self, greeting: &str) {
        let address = self.cluster.kubectl(&format!(
            "get service {} -o jsonpath={{.spec.clusterIP}}",
            self.release
        ));
        let url = format!("http://{address}/");
        eventually(&format!("{url} says {greeting}"), MINUTE, || {
            let mut curl = self.cluster.nodes[1].command("curl");
            let answer = attempt(curl.args(["-sS", "-m", "3", &url]))?;
            if answer.trim() == greeting {
                Ok(())
            } else {
                Err(answer)
            }
        });
    }

    fn has_extra(&self) -> bool {
        let secret = format!("get secret {}-extra -o name", self.release);
        attempt(&mut self.cluster.server.kubectl(&secret)).is_ok()
    }

    fn lives(&self) -> String {
        self.upgrade("install", "");
        self.answers("hello");
        self.upgrade("upgrade", "--set greeting=changed,extra=true,replicas=3");
        self.answers("changed");
        assert!(self.has_extra(), "an object that is new in the chart");
        run(&mut self.command(&format!(
            "rollback {} 1 --wait --timeout 60s --server-side={}",
            self.release, self.mode
        )));
        self.answers("hello");
        assert!(
            !self.has_extra(),
            "an object that the old chart did not have"
        );
        let history = run(&mut self.command(&format!("history {} -o json", self.release)));
        let history: serde_json::Value = serde_json::from_str(&history).unwrap();
        let revisions = history.as_array().map_or(0, Vec::len);
        assert_eq!(revisions, 3, "{history}");
        run(&mut self.command(&format!("uninstall {} --wait --timeout 60s", self.release)));
        eventually("nothing of the release is left", MINUTE, || {
            let kinds = "deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings,pods,jobs";
            let left = self.cluster.kubectl(&format!("get {kinds} -o name"));
            let ours: Vec<&str> = left
                .lines()
                .filter(|name| name.contains(self.release))
                .collect();
            if ours.is_empty() {
                Ok(())
            } else {
                Err(ours.join(" "))
            }
        });
        "installed with a hook, upgraded, rolled back, uninstalled; 3 revisions, answers right 3 of 3, objects left 0".to_owned()
    }
}
