//! Namespaces that are being deleted: their content goes first, then they may go.
//!
//! Which content there can be says the registry. Everything in a namespace is deleted by
//! collection, pods before all else; what remains is written into the Namespace's conditions, and
//! when nothing remains the `kubernetes` finalizer is taken away. It reads the server, not caches:
//! a namespace must not be finalized over an object that a cache has not seen. Hence no
//! [`Controller`](crate::runtime::Controller), but its own function on the same queue (decision record 51).

mod conditions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use sampan_api::{Meta, Registry, ResourceDef, Target, Verb};
use sampan_client::client::target_of;
use sampan_client::{
    Change, Client, DeleteOptions, Error, ListParams, Lister, ObjectKey, Propagation, Queue,
};
use serde_json::{Value, json};

use crate::runtime::{self, Context};
use crate::{json, owner};

pub const NAME: &str = "namespace-controller";
const FINALIZER: &str = "kubernetes";

struct Deleter {
    client: Client,
    registry: Arc<Registry>,
    namespaces: Lister<Namespace>,
}

/// What of a namespace's content is left.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Remains {
    /// Objects of each resource, by its qualified name.
    pub(crate) counts: BTreeMap<String, usize>,
    /// Objects that carry each finalizer.
    pub(crate) finalizers: BTreeMap<String, usize>,
    /// Texts of failures.
    pub(crate) failures: Vec<String>,
}

impl Remains {
    fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.failures.is_empty()
    }

    fn count(&mut self, row: &ResourceDef, objects: &[bytes::Bytes]) {
        if objects.is_empty() {
            return;
        }
        let name = if row.group().is_empty() {
            format!("{}.", row.plural)
        } else {
            format!("{}.{}", row.plural, row.group())
        };
        self.counts.insert(name, objects.len());
        for meta in objects
            .iter()
            .filter_map(|bytes| Meta::from_bytes(bytes).ok())
        {
            for finalizer in meta.finalizers {
                *self.finalizers.entry(finalizer).or_default() += 1;
            }
        }
    }
}

/// Runs until shutdown.
pub async fn run(context: Arc<Context>) {
    let queue: Queue<ObjectKey> = Queue::new();
    let namespaces = context.informers.lister::<Namespace>();
    let waiting = queue.clone();
    namespaces.on_change(move |change| {
        if let Change::Applied { new, .. } = change
            && owner::is_deleting(&new.metadata)
        {
            waiting.add(ObjectKey::of(&new.metadata));
        }
    });
    wake_on_departures(&context, &namespaces, &queue);
    namespaces.synced().await;
    let deleter = Arc::new(Deleter {
        client: (context.client_of)(NAME),
        registry: Arc::clone(&context.settings.registry),
        namespaces,
    });
    runtime::work(NAME, 4, &context, queue, move |key: ObjectKey| {
        let deleter = Arc::clone(&deleter);
        async move { deleter.delete(&key).await }
    })
    .await;
}

/// Whatever goes in a namespace being deleted lets the deletion go on.
fn wake_on_departures(context: &Context, namespaces: &Lister<Namespace>, queue: &Queue<ObjectKey>) {
    let (namespaces, queue) = (namespaces.clone(), queue.clone());
    context.departures.on_departure(move |name| {
        let concerned = match name {
            Some(name) => namespaces.get(None, name).into_iter().collect(),
            None => namespaces.list(None),
        };
        for namespace in concerned {
            if owner::is_deleting(&namespace.metadata) {
                queue.add(ObjectKey::of(&namespace.metadata));
            }
        }
    });
}

impl Deleter {
    async fn delete(&self, key: &ObjectKey) -> Result<Option<Duration>, Error> {
        let Some(namespace) = self.namespaces.get_key(key) else {
            return Ok(None);
        };
        if !owner::is_deleting(&namespace.metadata) || !has_finalizer(&namespace) {
            return Ok(None);
        }
        let remains = self.delete_content(&key.name).await;
        self.report(&namespace, &remains).await?;
        if remains.is_empty() {
            self.finalize(&namespace).await?;
            return Ok(None);
        }
        tracing::debug!(?remains, "a namespace is not empty yet");
        // What is left wakes this up when it goes; only failures have to be tried again.
        match remains.failures.into_iter().next() {
            Some(failure) => Err(Error::Malformed(failure)),
            None => Ok(None),
        }
    }

    /// Pods first; the rest only when no pod is left, so that nothing a pod needs goes before it.
    async fn delete_content(&self, namespace: &str) -> Remains {
        let rows = self.registry.snapshot();
        let mut remains = Remains::default();
        let (pods, others): (Vec<_>, Vec<_>) = rows
            .rows()
            .iter()
            .filter(|row| row.is_namespaced() && row.is_stored() && row.allows(Verb::Delete))
            .partition(|row| row.group().is_empty() && row.plural == "pods");
        for row in pods {
            self.delete_row(row, namespace, &mut remains).await;
        }
        if remains.is_empty() {
            for row in others {
                self.delete_row(row, namespace, &mut remains).await;
            }
        }
        remains
    }

    async fn delete_row(&self, row: &ResourceDef, namespace: &str, remains: &mut Remains) {
        if let Err(error) = self.try_delete_row(row, namespace, remains).await {
            remains.failures.push(format!("{}: {error}", row.plural));
        }
    }

    async fn try_delete_row(
        &self,
        row: &ResourceDef,
        namespace: &str,
        remains: &mut Remains,
    ) -> Result<(), Error> {
        let target = Target {
            resource: row.storage_gvr(),
            namespace: Some(namespace.to_owned()),
            name: None,
            subresource: None,
        };
        let all = ListParams::default();
        if self.client.list_raw(&target, &all).await?.items.is_empty() {
            return Ok(());
        }
        let options = DeleteOptions::default().propagation(Propagation::Background);
        if row.allows(Verb::DeleteCollection) {
            self.client
                .delete_collection_raw(&target, &all, &options)
                .await?;
        } else {
            self.delete_each(&target, &options).await?;
        }
        let left = self.client.list_raw(&target, &all).await?;
        remains.count(row, &left.items);
        Ok(())
    }

    async fn delete_each(&self, target: &Target, options: &DeleteOptions) -> Result<(), Error> {
        let list = self.client.list_raw(target, &ListParams::default()).await?;
        for meta in list
            .items
            .iter()
            .filter_map(|bytes| Meta::from_bytes(bytes).ok())
        {
            let one = Target {
                name: Some(meta.name),
                ..target.clone()
            };
            match self.client.delete_raw(&one, options).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes phase and conditions if they change.
    async fn report(&self, namespace: &Namespace, remains: &Remains) -> Result<(), Error> {
        let now = jiff::Timestamp::now();
        let Some(status) = conditions::updated(namespace, remains, now) else {
            return Ok(());
        };
        let name = owner::name(&namespace.metadata);
        self.put(name, "status", |object| {
            object["status"] = json::to_value(&status)
        })
        .await
    }

    async fn finalize(&self, namespace: &Namespace) -> Result<(), Error> {
        let name = owner::name(&namespace.metadata);
        self.put(name, "finalize", |object| {
            if let Some(finalizers) = object["spec"]["finalizers"].as_array_mut() {
                finalizers.retain(|finalizer| finalizer != FINALIZER);
            } else {
                object["spec"] = json!({});
            }
        })
        .await
    }

    /// Writes a subresource from the present object; a namespace that is gone is fine.
    async fn put(
        &self,
        name: &str,
        subresource: &'static str,
        change: impl FnOnce(&mut Value),
    ) -> Result<(), Error> {
        let mut target = target_of::<Namespace>(None, Some(name));
        let current = match self.client.get_raw(&target).await {
            Err(error) if error.is_not_found() => return Ok(()),
            other => other?,
        };
        let mut object: Value = serde_json::from_slice(&current)
            .map_err(|error| Error::Malformed(error.to_string()))?;
        change(&mut object);
        target.subresource = Some(subresource.into());
        match self.client.update_raw(&target, object).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }
}

fn has_finalizer(namespace: &Namespace) -> bool {
    let spec = namespace.spec.as_ref();
    let finalizers = spec.and_then(|spec| spec.finalizers.as_ref());
    finalizers.is_some_and(|finalizers| finalizers.iter().any(|name| name == FINALIZER))
}

#[cfg(test)]
mod tests;
