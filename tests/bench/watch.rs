//! Fan-out: many watchers, many events.

use std::time::Instant;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use sampan_api::{Options, Verb};
use sampan_client::client::target_of;
use sampan_client::{Body, DeleteOptions, Request, Transport};

use crate::arguments::Arguments;
use crate::create::{config_map, make_namespace};
use crate::process;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let watchers: usize = arguments.value("watchers", 100)?;
    let events: usize = arguments.value("events", 1000)?;
    let pids = arguments.pids()?;
    Arguments::runtime()?.block_on(async {
        let client = arguments.client()?;
        let namespace = make_namespace(&client, "bench-watch").await?;
        let mut tasks = Vec::new();
        for _ in 0..watchers {
            let request = Request {
                verb: Verb::Watch,
                target: target_of::<ConfigMap>(Some(&namespace), None),
                options: Options { field_selector: Some("metadata.name!=kube-root-ca.crt".to_owned()), ..Options::default() },
                body: Body::None,
            };
            let mut stream = arguments.transport()?.watch(request).await?;
            tasks.push(tokio::spawn(async move {
                let mut seen = 0;
                while seen < events {
                    match stream.next().await {
                        Some(Ok(_)) => seen += 1,
                        Some(Err(error)) => anyhow::bail!("a watch failed: {error}"),
                        None => anyhow::bail!("a watch ended after {seen} events"),
                    }
                }
                Ok(Instant::now())
            }));
        }
        let before = process::usage(&pids)?;
        let started = Instant::now();
        for number in 0..events {
            client.create(&config_map(&namespace, &format!("c{number}"), 1024)).await?;
        }
        let written = Instant::now();
        let mut last = written;
        for task in tasks {
            last = last.max(task.await??);
        }
        println!(
            "watch: {watchers} watchers x {events} events in {:.2} s, last one {:.1} ms after the last write",
            started.elapsed().as_secs_f64(),
            last.duration_since(written).as_secs_f64() * 1e3
        );
        if !pids.is_empty() {
            process::print_per_operation(before, process::usage(&pids)?, watchers * events, "delivery");
        }
        client.delete::<Namespace>(None, &namespace, &DeleteOptions::default()).await?;
        Ok(())
    })
}
