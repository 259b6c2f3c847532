//! Every kind of workload for real, and what happens to it when nodes leave and owners go.

mod batch;
mod lifetime;
mod nodes;
mod sets;

use std::time::Instant;

use crate::support::cluster::{Cluster, MINUTE};
use crate::support::{attempt, eventually, run};

/// A row: what it shows, and the check that returns what it counted.
struct Row(&'static str, fn(&Space<'_>) -> String);

/// These have a namespace each and run side by side.
const SIDE_BY_SIDE: &[Row] = &[
    Row("cronjob", batch::cron_jobs),
    Row("podgc", lifetime::pod_garbage),
    Row("daemonset", sets::daemon_sets),
    Row("statefulset", sets::stateful_sets),
    Row("job", batch::jobs),
    Row("rollout", sets::rollouts),
    Row("garbage", lifetime::garbage_collection),
    Row("namespace", lifetime::namespace_deletion),
];

/// These take nodes away from the others, so they come afterwards.
const IN_TURN: &[Row] = &[Row("drain", nodes::drain), Row("taint", nodes::taints)];

#[test]
fn workloads_behave_as_promised() {
    let cluster = Cluster::start("work");
    std::thread::scope(|scope| {
        for row in SIDE_BY_SIDE {
            let cluster = &cluster;
            scope.spawn(move || show(cluster, row));
        }
    });
    for row in IN_TURN {
        show(&cluster, row);
    }
}

fn show(cluster: &Cluster, row: &Row) {
    let started = Instant::now();
    let space = Space {
        cluster,
        name: row.0,
    };
    run(&mut cluster
        .server
        .kubectl(&format!("create namespace {}", row.0)));
    let found = row.1(&space);
    println!(
        "workload: {}: {found}; {:.0} s",
        row.0,
        started.elapsed().as_secs_f64()
    );
}

/// A namespace of the cluster.
struct Space<'a> {
    cluster: &'a Cluster,
    name: &'a str,
}

impl Space<'_> {
    fn kubectl(&self, arguments: &str) -> String {
        run(&mut self.command(arguments))
    }

    fn try_kubectl(&self, arguments: &str) -> Result<String, String> {
        attempt(&mut self.command(arguments))
    }

    fn command(&self, arguments: &str) -> std::process::Command {
        let server = &self.cluster.server;
        server.kubectl(&format!("-n {} {arguments}", self.name))
    }

    fn apply(&self, manifest: &str) {
        let file = format!("{}-{:?}.yaml", self.name, std::thread::current().id());
        let file = self.cluster.server.data_dir.with_file_name(file);
        std::fs::write(&file, manifest).unwrap();
        self.kubectl(&format!("apply -f {}", file.display()));
    }

    /// A jsonpath of one object or a list.
    fn get(&self, what: &str, path: &str) -> String {
        self.kubectl(&format!("get {what} -o jsonpath={path}"))
    }

    fn names(&self, what: &str) -> Vec<String> {
        let text = self.kubectl(&format!("get {what} -o name"));
        text.lines().map(str::to_owned).collect()
    }

    /// Until a jsonpath says this.
    fn becomes(&self, what: &str, path: &str, wanted: &str) {
        eventually(
            &format!("{path} of {what} becomes {wanted}"),
            MINUTE * 2,
            || {
                let text = self.try_kubectl(&format!("get {what} -o jsonpath={path}"))?;
                if text == wanted { Ok(()) } else { Err(text) }
            },
        );
    }

    fn count_becomes(&self, what: &str, count: usize) {
        eventually(&format!("{count} {what}"), MINUTE, || {
            let names = self.names(what);
            if names.len() == count {
                Ok(())
            } else {
                Err(names.join(" "))
            }
        });
    }
}
