//! Creates per second with several clients.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_client::{Client, DeleteOptions};

use crate::arguments::Arguments;
use crate::process;
use crate::stats::Durations;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let count: usize = arguments.value("count", 2000)?;
    let clients: usize = arguments.value("clients", 8)?;
    let size: usize = arguments.value("size", 1024)?;
    let pids = arguments.pids()?;
    Arguments::runtime()?.block_on(async {
        let admin = arguments.client()?;
        let namespace = make_namespace(&admin, "bench-create").await?;
        let before = process::usage(&pids)?;
        let started = Instant::now();
        let workers = (0..clients).map(|worker| {
            let client = arguments.client();
            let namespace = namespace.clone();
            async move { one_client(&client?, &namespace, worker, count / clients, size).await }
        });
        let all: Vec<Duration> = try_join_all(workers).await?.into_iter().flatten().collect();
        let wall = started.elapsed().as_secs_f64();
        println!(
            "create: {:.0}/s, {clients} clients, {size} bytes, {}",
            all.len() as f64 / wall,
            Durations::new(all.clone()).line()
        );
        if !pids.is_empty() {
            process::print_per_operation(before, process::usage(&pids)?, all.len(), "create");
        }
        admin
            .delete::<Namespace>(None, &namespace, &DeleteOptions::default())
            .await?;
        Ok(())
    })
}

async fn one_client(
    client: &Client,
    namespace: &str,
    worker: usize,
    count: usize,
    size: usize,
) -> anyhow::Result<Vec<Duration>> {
    let mut all = Vec::with_capacity(count);
    for number in 0..count {
        let object = config_map(namespace, &format!("c{worker}-{number}"), size);
        let started = Instant::now();
        client.create(&object).await?;
        all.push(started.elapsed());
    }
    Ok(all)
}

pub(crate) fn config_map(namespace: &str, name: &str, size: usize) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("data".to_owned(), "x".repeat(size))])),
        ..ConfigMap::default()
    }
}

pub(crate) async fn make_namespace(client: &Client, prefix: &str) -> anyhow::Result<String> {
    let namespace = Namespace {
        metadata: ObjectMeta {
            generate_name: Some(format!("{prefix}-")),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    let made = client.create(&namespace).await?;
    Ok(made.metadata.name.unwrap_or_default())
}
