//! Answers for the server on 10250, from the workers' views.

use super::{View, Views};
use crate::config::container::log_path;
use crate::lookup::{ContainerRef, Lookup, LookupError, SandboxRef};
use crate::pod;
use crate::state::{Instance, RunState};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use std::sync::Arc;

impl View {
    /// The pod with the newest status, whether or not the API server has it yet.
    fn pod_with_status(&self) -> Arc<Pod> {
        let mut pod = Pod::clone(&self.pod);
        pod.status = Some(self.status.clone());
        Arc::new(pod)
    }

    fn reference(&self, instance: &Instance) -> ContainerRef {
        let container = pod::find_container(&self.pod, &instance.name).map(|(_, c)| c);
        let log = log_path(&instance.name, instance.restart_count);
        ContainerRef {
            pod: self.pod_with_status(),
            sandbox_id: instance.sandbox_id.clone(),
            container_id: instance.id.clone(),
            running: instance.state == RunState::Running,
            log_path: self.logs.join(log),
            tty: container.as_ref().is_some_and(|c| c.tty == Some(true)),
            stdin: container.as_ref().is_some_and(|c| c.stdin == Some(true)),
        }
    }

    fn status_of(&self, container: &str) -> Option<&ContainerStatus> {
        let status = &self.status;
        let regular = status.container_statuses.iter().flatten();
        let init = status.init_container_statuses.iter().flatten();
        let ephemeral = status.ephemeral_container_statuses.iter().flatten();
        regular
            .chain(init)
            .chain(ephemeral)
            .find(|s| s.name == container)
    }

    /// Why there is no log, in upstream's words.
    fn no_log(&self, container: &str, previous: bool) -> LookupError {
        let pod = pod::name(&self.pod);
        if previous {
            return LookupError::NotAvailable(format!(
                "previous terminated container {container:?} in pod {pod:?} not found"
            ));
        }
        let waiting = self
            .status_of(container)
            .and_then(|s| s.state.as_ref())
            .and_then(|s| s.waiting.as_ref());
        let reason = waiting
            .and_then(|w| w.reason.as_deref())
            .unwrap_or_default();
        let message = waiting
            .and_then(|w| w.message.as_deref())
            .unwrap_or_default();
        let trying = match reason {
            "ErrImagePull" => "image can't be pulled",
            "ImagePullBackOff" => "trying and failing to pull image",
            "" => {
                return LookupError::NotAvailable(format!(
                    "container {container:?} in pod {pod:?} is not available"
                ));
            }
            _ if message.is_empty() => reason,
            _ => message,
        };
        LookupError::NotAvailable(format!(
            "container {container:?} in pod {pod:?} is waiting to start: {trying}"
        ))
    }
}

impl Views {
    pub fn all(&self) -> Vec<View> {
        self.read().values().cloned().collect()
    }

    /// All containers that run now.
    pub fn running(&self) -> Vec<ContainerRef> {
        let views = self.read();
        let all = views.values().flat_map(|view| {
            let running = view.runtime.instances.iter();
            running
                .filter(|i| i.state == RunState::Running)
                .map(|i| view.reference(i))
        });
        all.collect()
    }

    fn find(&self, namespace: &str, name: &str, uid: Option<&str>) -> Result<View, LookupError> {
        let views = self.read();
        let matching = views.values().filter(|view| {
            let pod = &*view.pod;
            pod::namespace(pod) == namespace
                && pod::name(pod) == name
                && uid.is_none_or(|uid| uid.is_empty() || pod::uid(pod) == uid)
        });
        // Of two pods of one name the newer one is meant.
        matching
            .max_by_key(|view| {
                let created = view.pod.metadata.creation_timestamp.as_ref();
                created.map(|t| t.0)
            })
            .cloned()
            .ok_or_else(|| LookupError::PodNotFound {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            })
    }
}

impl Lookup for Views {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.read().values().map(View::pod_with_status).collect()
    }

    fn sandbox(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Result<SandboxRef, LookupError> {
        let view = self.find(namespace, name, uid)?;
        match view.runtime.sandbox() {
            Some(sandbox) => Ok(SandboxRef {
                sandbox_id: sandbox.id.clone(),
                pod: view.pod_with_status(),
            }),
            None => Err(LookupError::SandboxNotFound {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
        }
    }

    fn container(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
        container: &str,
    ) -> Result<ContainerRef, LookupError> {
        let view = self.find(namespace, name, uid)?;
        let running = view
            .runtime
            .latest(container)
            .filter(|i| i.state == RunState::Running && !self.relister.is_ending(&i.id));
        running
            .map(|instance| view.reference(instance))
            .ok_or_else(|| LookupError::ContainerNotFound {
                container: container.to_owned(),
            })
    }

    fn log(
        &self,
        namespace: &str,
        name: &str,
        container: &str,
        previous: bool,
    ) -> Result<ContainerRef, LookupError> {
        let view = self.find(namespace, name, None)?;
        if pod::find_container(&view.pod, container).is_none() {
            return Err(LookupError::ContainerNotFound {
                container: container.to_owned(),
            });
        }
        let mut runs = view
            .runtime
            .runs(container)
            .filter(|i| i.state != RunState::Created);
        let run = if previous { runs.nth(1) } else { runs.next() };
        let reference = run.map(|instance| view.reference(instance));
        reference.ok_or_else(|| view.no_log(container, previous))
    }
}
