//! The Lease by which the control plane sees that the node is alive.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use sampan_client::{Client, Error, Patch};
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

const NAMESPACE: &str = "kube-node-lease";
const DURATION_SECS: i32 = 40;
const INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Renewal {
    renewed_at: Option<Instant>,
    exists: bool,
}

fn stamp() -> MicroTime {
    let now = Timestamp::now();
    MicroTime(Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now))
}

impl Renewal {
    /// Renews if it is time; answers how long there is until it is again.
    pub async fn renew(
        &mut self,
        client: &Client,
        node: &str,
        node_uid: &str,
    ) -> Result<Duration, Error> {
        let left = self
            .renewed_at
            .map(|at| INTERVAL.saturating_sub(at.elapsed()));
        // Timers may fire a little early; that is no reason for another round.
        if let Some(left) = left.filter(|left| *left > Duration::from_millis(100)) {
            return Ok(left);
        }
        if self.exists {
            match touch(client, node).await {
                Err(error) if error.is_not_found() => {}
                other => {
                    other?;
                    return Ok(self.done());
                }
            }
        }
        create(client, node, node_uid).await?;
        self.exists = true;
        Ok(self.done())
    }

    fn done(&mut self) -> Duration {
        self.renewed_at = Some(Instant::now());
        INTERVAL
    }
}

/// Writes nothing but the time.
async fn touch(client: &Client, node: &str) -> Result<(), Error> {
    let patch = Patch::Merge(json!({"spec": {"renewTime": stamp()}}));
    let lease: Result<Lease, Error> = client.patch(Some(NAMESPACE), node, &patch).await;
    lease.map(|_| ())
}

async fn create(client: &Client, node: &str, node_uid: &str) -> Result<(), Error> {
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(node.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: node.to_owned(),
                uid: node_uid.to_owned(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.to_owned()),
            lease_duration_seconds: Some(DURATION_SECS),
            renew_time: Some(stamp()),
            ..LeaseSpec::default()
        }),
    };
    match client.create(&lease).await {
        Ok(_) => Ok(()),
        // It is there from an earlier run of this node.
        Err(error) if error.is_already_exists() => touch(client, node).await,
        Err(error) => Err(error),
    }
}
