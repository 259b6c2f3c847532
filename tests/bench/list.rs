//! Lists of many Pods: whole, and in pages.

use std::time::Instant;

use futures_util::future::try_join_all;
use k8s_openapi::api::core::v1::{Container, Namespace, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_api::{Options, Verb};
use sampan_client::client::target_of;
use sampan_client::{Body, Client, DeleteOptions, Request, Transport};

use crate::arguments::Arguments;
use crate::create::make_namespace;
use crate::process;

const REPEAT: usize = 3;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let count: usize = arguments.value("count", 10_000)?;
    let pids = arguments.pids()?;
    Arguments::runtime()?.block_on(async {
        let client = arguments.client()?;
        let namespace = make_namespace(&client, "bench-list").await?;
        let workers = (0..8).map(|worker| fill(&client, &namespace, worker, count / 8));
        try_join_all(workers).await?;
        let target = target_of::<Pod>(Some(&namespace), None);
        let transport = arguments.transport()?;
        for limit in [None, Some(500)] {
            let mut times = Vec::new();
            let before = process::usage(&pids)?;
            let (mut items, mut bytes) = (0, 0);
            for _ in 0..REPEAT {
                (items, bytes) = (0, 0);
                let started = Instant::now();
                let mut options = Options {
                    limit,
                    ..Options::default()
                };
                loop {
                    let request = Request {
                        verb: Verb::List,
                        target: target.clone(),
                        options: options.clone(),
                        body: Body::None,
                    };
                    let page = transport.list(request).await?;
                    items += page.items.len();
                    bytes += page.items.iter().map(bytes::Bytes::len).sum::<usize>();
                    options.continue_token = page.continue_token;
                    if options.continue_token.is_none() {
                        break;
                    }
                }
                times.push(started.elapsed());
            }
            times.sort_unstable();
            let what = limit.map_or("whole".to_owned(), |limit| format!("pages of {limit}"));
            println!(
                "list {items} Pods, {what}: {:.0} ms (median of {REPEAT}), {:.1} MB",
                times[REPEAT / 2].as_secs_f64() * 1e3,
                bytes as f64 / 1e6
            );
            if !pids.is_empty() {
                process::print_per_operation(before, process::usage(&pids)?, REPEAT, "list");
            }
        }
        client
            .delete::<Namespace>(None, &namespace, &DeleteOptions::default())
            .await?;
        Ok(())
    })
}

async fn fill(client: &Client, namespace: &str, worker: usize, count: usize) -> anyhow::Result<()> {
    for number in 0..count {
        client
            .create(&pod(namespace, &format!("p{worker}-{number}")))
            .await?;
    }
    Ok(())
}

/// A Pod that no node takes, with the usual amount of text.
fn pod(namespace: &str, name: &str) -> Pod {
    let labels =
        [("app", "bench"), ("tier", "list")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    Pod {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            labels: Some(labels.into()),
            annotations: Some([("bench.example/note".to_owned(), "n".repeat(1024))].into()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            node_selector: Some([("bench.example/none".to_owned(), "true".to_owned())].into()),
            containers: vec![Container {
                name: "main".to_owned(),
                image: Some("registry.example/bench:1".to_owned()),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
        status: None,
    }
}
