//! What a scenario works with: a namespace of its own and short words for kubectl.

use std::cell::Cell;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{IMAGE, Node};
use crate::support::{attempt, eventually, run};

pub(super) const LIMIT: Duration = Duration::from_secs(90);
/// Each look is a kubectl, and those are dear.
const PACE: Duration = Duration::from_millis(700);

pub(crate) struct Scene<'a> {
    pub node: &'a Node,
    namespace: String,
    checks: Cell<u32>,
}

/// One container, `extra` being further fields (`, name: value`).
pub(super) fn container(name: &str, script: &str, extra: &str) -> String {
    let script = serde_json::to_string(script).unwrap();
    format!("{{name: {name}, image: '{IMAGE}', command: [sh, -c, {script}]{extra}}}")
}

/// `spec` of a Pod with this one container, which is called `main`.
pub(super) fn main_container(script: &str, extra: &str) -> String {
    format!("containers: [{}]", container("main", script, extra))
}

pub(super) const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.2; done";

impl<'a> Scene<'a> {
    pub fn new(node: &'a Node, name: &str) -> Self {
        let scene = Self {
            node,
            namespace: format!("s-{name}"),
            checks: Cell::new(0),
        };
        run(&mut node.server.kubectl(&format!("create namespace s-{name}")));
        scene
    }

    pub fn checks(&self) -> u32 {
        self.checks.get()
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// kubectl in the scenario's namespace.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut all = vec!["-n", self.namespace.as_str()];
        all.extend(arguments);
        self.node.server.kubectl_args(&all)
    }

    pub fn kubectl(&self, arguments: &str) -> String {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        run(&mut self.command(&words))
    }

    pub fn kubectl_args(&self, arguments: &[&str]) -> String {
        run(&mut self.command(arguments))
    }

    pub fn attempt(&self, arguments: &str) -> Result<String, String> {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        attempt(&mut self.command(&words))
    }

    pub fn apply(&self, manifest: &str) {
        if let Err(problem) = self.try_apply(manifest) {
            panic!("kubectl apply: {problem}\n{manifest}");
        }
    }

    pub fn try_apply(&self, manifest: &str) -> Result<(), String> {
        let mut child = self
            .command(&["apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(manifest.as_bytes()).unwrap();
        drop(input);
        let output = child.wait_with_output().unwrap();
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// A Pod that ends within a second when told to.
    pub fn pod(&self, name: &str, spec: &str) {
        self.pod_with(name, "", spec);
    }

    pub fn pod_with(&self, name: &str, metadata: &str, spec: &str) {
        let grace = if spec.contains("terminationGracePeriodSeconds") {
            ""
        } else {
            "terminationGracePeriodSeconds: 1, "
        };
        self.apply(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}{metadata}}}, spec: {{{grace}{spec}}}}}"
        ));
    }

    pub fn ready(&self, what: &str) {
        self.kubectl(&format!(
            "wait --for=condition=Ready {what} --timeout={}s",
            LIMIT.as_secs()
        ));
        self.count();
    }

    pub fn phase(&self, pod: &str, phase: &str) {
        self.until_is(&format!("pod/{pod}"), "{.status.phase}", phase);
    }

    pub fn field(&self, what: &str, path: &str) -> String {
        run(&mut self.command(&["get", what, "-o", &format!("jsonpath={path}")]))
    }

    pub fn until(&self, what: &str, mut check: impl FnMut() -> Result<(), String>) {
        eventually(what, LIMIT, || {
            check().inspect_err(|_| std::thread::sleep(PACE))
        });
        self.count();
    }

    pub fn until_is(&self, what: &str, path: &str, wanted: &str) {
        // kubectl can wait by itself for one value.
        if what.contains('/') && path.matches('{').count() == 1 && !path.ends_with(".message}") {
            self.kubectl_args(&[
                "wait",
                what,
                &format!("--for=jsonpath={path}={wanted}"),
                &format!("--timeout={}s", LIMIT.as_secs()),
            ]);
            self.count();
            return;
        }
        self.until(&format!("{path} of {what} is {wanted:?}"), || {
            let got = self.field(what, path);
            if got == wanted { Ok(()) } else { Err(got) }
        });
    }

    pub fn until_has(&self, what: &str, path: &str, wanted: &str) {
        self.until(&format!("{path} of {what} has {wanted:?}"), || {
            let got = self.field(what, path);
            if got.contains(wanted) {
                Ok(())
            } else {
                Err(got)
            }
        });
    }

    pub fn is(&self, what: &str, got: &str, wanted: &str) {
        assert_eq!(got.trim_end(), wanted, "{what} in {}", self.namespace);
        self.count();
    }

    pub fn has(&self, what: &str, got: &str, wanted: &str) {
        assert!(
            got.contains(wanted),
            "{what} in {}: no {wanted:?} in {got:?}",
            self.namespace
        );
        self.count();
    }

    pub fn truth(&self, what: &str, holds: bool) {
        assert!(holds, "{what} in {}", self.namespace);
        self.count();
    }

    fn count(&self) {
        self.checks.set(self.checks.get() + 1);
    }

    pub fn exec(&self, pod: &str, line: &str) -> String {
        run(&mut self.command(&["exec", pod, "--", "sh", "-c", line]))
    }

    /// What each line says in the Pod, by one exec.
    pub fn answers(&self, pod: &str, rows: &[(&str, &str)]) {
        const END: &str = "=====\n";
        let lines = rows
            .iter()
            .map(|(line, _)| format!("{{ {line}\n}}; echo; echo {END}"));
        let got = self.exec(pod, &lines.collect::<String>());
        let mut parts = got.split(END);
        for (line, wanted) in rows {
            let part = parts.next().unwrap_or_default();
            self.is(line, part.trim(), wanted.trim());
        }
    }

    pub fn try_exec(&self, pod: &str, line: &str) -> Result<String, String> {
        attempt(&mut self.command(&["exec", pod, "--", "sh", "-c", line]))
    }

    /// Waits for an event about the object with this reason, whose message contains the text.
    pub fn event(&self, name: &str, reason: &str, text: &str) {
        let selector = format!("involvedObject.name={name},reason={reason}");
        self.until(&format!("event {reason} of {name}: {text}"), || {
            let path = "jsonpath={range .items[*]}{.type} {.message}{\"\\n\"}{end}";
            let got = run(&mut self.command(&[
                "get",
                "events",
                "--field-selector",
                &selector,
                "-o",
                path,
            ]));
            if got.contains(text) { Ok(()) } else { Err(got) }
        });
    }

    /// What a person would look at after a failure.
    pub fn explain(&self) {
        for what in [
            "get pods -o wide",
            "get events --sort-by=.metadata.creationTimestamp",
        ] {
            let text = self.attempt(what);
            eprintln!(
                "--- {} {what}:\n{}",
                self.namespace,
                text.unwrap_or_else(|e| e)
            );
        }
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        if std::env::var_os("SAMPAN_TEST_KEEP").is_some() {
            return;
        }
        let name = format!("delete namespace {} --wait=false", self.namespace);
        let _gone = self.node.server.kubectl(&name).output();
    }
}
