//! Exits as the runtime announces them: containerd's own events, or those of CRI.

use futures_util::StreamExt;
use sampan_cri::containerd::events::TaskExit;
use sampan_cri::containerd::services::events::v1::SubscribeRequest;
use sampan_cri::runtime::v1::ContainerEventType;
use sampan_cri::{Containerd, Runtime};
use sampan_util::Backoff;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Code;

const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// A stream that lasted so long was no failed attempt.
const STABLE: Duration = Duration::from_secs(10);
const FILTER: &str = "topic==\"/tasks/exit\",namespace==k8s.io";

#[derive(Debug)]
pub enum Event {
    /// The stream has begun, or begun anew.
    Connected,
    /// The main process of this container or sandbox has ended.
    Exited(String),
}

/// Sends events until nobody listens; ends early if the runtime has none.
pub async fn follow(runtime: Runtime, containerd: Containerd, sink: mpsc::Sender<Event>) {
    let mut failures = 0;
    loop {
        let began = Instant::now();
        let supported = native(&containerd, &sink).await || cri(&runtime, &sink).await;
        if !supported {
            return;
        }
        if sink.is_closed() {
            return;
        }
        if began.elapsed() > STABLE {
            failures = 0;
        }
        tokio::time::sleep(RETRY.delay(failures)).await;
        failures += 1;
    }
}

/// False if the runtime does not know containerd's event service.
async fn native(containerd: &Containerd, sink: &mpsc::Sender<Event>) -> bool {
    let request = SubscribeRequest {
        filters: vec![FILTER.to_owned()],
    };
    let mut stream = match containerd.events().subscribe(request).await {
        Ok(reply) => reply.into_inner(),
        Err(status) => return status.code() != Code::Unimplemented,
    };
    if sink.send(Event::Connected).await.is_err() {
        return true;
    }
    while let Some(envelope) = stream.next().await {
        let envelope = match envelope {
            Ok(envelope) => envelope,
            Err(status) => return status.code() != Code::Unimplemented,
        };
        let Some(any) = envelope.event else {
            continue;
        };
        let Ok(exit) = <TaskExit as prost::Message>::decode(any.value.as_slice()) else {
            continue;
        };
        // The exit of a command run inside a container has an id of its own.
        let is_main = exit.id.is_empty() || exit.id == exit.container_id;
        if is_main && sink.send(Event::Exited(exit.container_id)).await.is_err() {
            return true;
        }
    }
    true
}

/// False if the runtime has no events in CRI either.
async fn cri(runtime: &Runtime, sink: &mpsc::Sender<Event>) -> bool {
    let mut stream = match runtime.get_container_events().await {
        Ok(stream) => stream,
        Err(error) => return !error.is_unimplemented(),
    };
    if sink.send(Event::Connected).await.is_err() {
        return true;
    }
    while let Some(Ok(event)) = stream.next().await {
        let stopped = ContainerEventType::ContainerStoppedEvent as i32;
        let is_stop = event.container_event_type == stopped;
        if is_stop && sink.send(Event::Exited(event.container_id)).await.is_err() {
            return true;
        }
    }
    true
}
