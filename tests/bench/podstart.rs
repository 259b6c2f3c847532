//! From the creation of a Pod to its readiness, one by one and many at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use k8s_openapi::api::core::v1::{Container, Namespace, Pod, PodSpec, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_api::{Options, Verb};
use sampan_client::client::target_of;
use sampan_client::{Body, Client, DeleteOptions, EventKind, Request, Transport, WatchStream};

use crate::arguments::Arguments;
use crate::create::make_namespace;
use crate::stats::Durations;

const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let single: usize = arguments.value("single", 5)?;
    let batch: usize = arguments.value("batch", 30)?;
    let image = arguments
        .text("image")
        .unwrap_or("sampan.io/pause:1")
        .to_owned();
    Arguments::runtime()?.block_on(async {
        let client = arguments.client()?;
        let namespace = make_namespace(&client, "bench-pods").await?;
        wait_for_account(&client, &namespace).await?;
        let mut pods = Pods::watch(arguments, &namespace).await?;
        let mut all = Vec::new();
        for number in 0..single {
            all.push(
                pods.start(&client, &image, &format!("single-{number}"), 1)
                    .await?,
            );
        }
        println!(
            "Pod create to Ready, single: {}",
            Durations::new(all).line()
        );
        let time = pods.start(&client, &image, "batch", batch).await?;
        println!(
            "Pod create to Ready, batch of {batch}: {:.2} s",
            time.as_secs_f64()
        );
        client
            .delete::<Namespace>(None, &namespace, &DeleteOptions::default())
            .await?;
        Ok(())
    })
}

struct Pods {
    stream: WatchStream,
    namespace: String,
}

impl Pods {
    async fn watch(arguments: &Arguments, namespace: &str) -> anyhow::Result<Self> {
        let request = Request {
            verb: Verb::Watch,
            target: target_of::<Pod>(Some(namespace), None),
            options: Options::default(),
            body: Body::None,
        };
        Ok(Self {
            stream: arguments.transport()?.watch(request).await?,
            namespace: namespace.to_owned(),
        })
    }

    /// The time until all `count` Pods are Ready; they are deleted afterwards and awaited.
    async fn start(
        &mut self,
        client: &Client,
        image: &str,
        name: &str,
        count: usize,
    ) -> anyhow::Result<Duration> {
        let started = Instant::now();
        let names: Vec<String> = (0..count)
            .map(|number| format!("{name}-{number}"))
            .collect();
        try_join_all(
            names
                .iter()
                .map(|name| create(client, &self.namespace, name, image)),
        )
        .await?;
        let mut waiting: BTreeMap<&str, ()> =
            names.iter().map(|name| (name.as_str(), ())).collect();
        let ready = async {
            while !waiting.is_empty() {
                let event = self.stream.next().await.context("the watch ended")??;
                let pod: Pod = serde_json::from_slice(&event.object)?;
                if is_ready(&pod) {
                    waiting.remove(pod.metadata.name.as_deref().unwrap_or_default());
                }
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(LIMIT, ready)
            .await
            .context("the Pods were not ready in time")??;
        let time = started.elapsed();
        for name in &names {
            client
                .delete::<Pod>(Some(&self.namespace), name, &DeleteOptions::default())
                .await?;
        }
        let mut left = count;
        while left > 0 {
            let event = self.stream.next().await.context("the watch ended")??;
            left -= usize::from(event.kind == EventKind::Deleted);
        }
        Ok(time)
    }
}

async fn create(client: &Client, namespace: &str, name: &str, image: &str) -> anyhow::Result<()> {
    let pod = Pod {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            termination_grace_period_seconds: Some(1),
            containers: vec![Container {
                name: "main".to_owned(),
                image: Some(image.to_owned()),
                image_pull_policy: Some("IfNotPresent".to_owned()),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
        status: None,
    };
    client.create(&pod).await?;
    Ok(())
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|one| one.type_ == "Ready" && one.status == "True")
}

/// Pods are refused until their namespace has its account.
async fn wait_for_account(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let started = Instant::now();
    while let Err(error) = client
        .get::<ServiceAccount>(Some(namespace), "default")
        .await
    {
        if !error.is_not_found() || started.elapsed() > LIMIT {
            return Err(error.into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
