//! Latency of single requests on one connection.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use sampan_client::{Client, DeleteOptions, Patch};
use serde_json::json;

use crate::arguments::Arguments;
use crate::create::{config_map, make_namespace};
use crate::process;
use crate::stats::Durations;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let count: usize = arguments.value("count", 500)?;
    let pids = arguments.pids()?;
    Arguments::runtime()?.block_on(async {
        let client = arguments.client()?;
        let namespace = make_namespace(&client, "bench-crud").await?;
        for step in STEPS {
            let before = process::usage(&pids)?;
            let mut all = Vec::with_capacity(count);
            for number in 0..count {
                all.push(one(&client, &namespace, &format!("c{number}"), step).await?);
            }
            println!("{step}: {}", Durations::new(all).line());
            if !pids.is_empty() {
                process::print_per_operation(before, process::usage(&pids)?, count, step);
            }
        }
        client
            .delete::<Namespace>(None, &namespace, &DeleteOptions::default())
            .await?;
        Ok(())
    })
}

const STEPS: [&str; 6] = ["create", "get", "update", "patch", "apply", "delete"];

async fn one(client: &Client, namespace: &str, name: &str, step: &str) -> anyhow::Result<Duration> {
    let object = config_map(namespace, name, 1024);
    let place = Some(namespace);
    let started = Instant::now();
    match step {
        "create" => drop(client.create(&object).await?),
        "get" => drop(client.get::<ConfigMap>(place, name).await?),
        "update" => drop(client.update(&object).await?),
        "patch" => {
            let patch = Patch::Merge(json!({"data": {"patched": "yes"}}));
            drop(client.patch::<ConfigMap>(place, name, &patch).await?);
        }
        "apply" => {
            let patch = Patch::Apply(json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"applied": "yes"},
            }));
            drop(client.patch::<ConfigMap>(place, name, &patch).await?);
        }
        _ => {
            client
                .delete::<ConfigMap>(place, name, &DeleteOptions::default())
                .await?
        }
    }
    Ok(started.elapsed())
}
