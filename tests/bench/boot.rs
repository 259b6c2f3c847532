//! From the start of a command to an API that is ready and a node that is.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Node;

use crate::arguments::Arguments;

const LIMIT: Duration = Duration::from_secs(180);
const STEP: Duration = Duration::from_millis(5);

/// The certificates may not exist before the start, so the connection is made anew for every try.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let command = arguments.text("cmd").context("cmd=COMMAND is missing")?;
    let runtime = Arguments::runtime()?;
    let started = Instant::now();
    let mut child = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    runtime.block_on(async {
        until(started, async || {
            let transport = arguments.transport()?;
            transport.get_path("/readyz").await?;
            Ok(())
        })
        .await?;
        println!("start to /readyz: {:.3} s", started.elapsed().as_secs_f64());
        if let Some(name) = arguments.text("node") {
            let client = arguments.client()?;
            until(started, async || {
                let node: Node = client.get(None, name).await?;
                let conditions = node
                    .status
                    .and_then(|status| status.conditions)
                    .unwrap_or_default();
                let ready = conditions
                    .iter()
                    .any(|one| one.type_ == "Ready" && one.status == "True");
                if ready { Ok(()) } else { bail!("not ready") }
            })
            .await?;
            println!(
                "start to node Ready: {:.3} s",
                started.elapsed().as_secs_f64()
            );
        }
        anyhow::Ok(())
    })?;
    println!("pid {}", child.id());
    // The command goes on; whoever started the benchmark stops it.
    if let Some(status) = child.try_wait()? {
        println!("the command has ended with {status}");
    }
    Ok(())
}

async fn until(
    started: Instant,
    mut check: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    loop {
        match check().await {
            Ok(()) => return Ok(()),
            Err(error) if started.elapsed() > LIMIT => return Err(error),
            Err(_) => tokio::time::sleep(STEP).await,
        }
    }
}
