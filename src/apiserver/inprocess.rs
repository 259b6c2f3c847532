//! The transport of components in this process: the same pipeline, below HTTP and JSON decoding.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use sampan_api::{Status, UserInfo};
use sampan_client::{Error, List, Request, Transport, WatchStream};

use crate::request::{ApiRequest, Pipeline, Reply};

/// Belongs to one identity.
pub struct InProcess<P> {
    pipeline: P,
    user: Arc<UserInfo>,
}

impl<P: Pipeline> InProcess<P> {
    pub fn new(pipeline: P, user: UserInfo) -> Self {
        Self {
            pipeline,
            user: Arc::new(user),
        }
    }

    fn ask(&self, request: Request) -> BoxFuture<'static, Result<Reply, Status>> {
        // The field manager of a component is its name without what is common to all.
        let name = self.user.username.as_str();
        let name = name.rsplit(':').next().unwrap_or(name);
        self.pipeline.handle(ApiRequest {
            user: self.user.clone(),
            user_agent: name.to_owned(),
            request,
            strict_errors: Vec::new(),
        })
    }
}

fn unexpected() -> Error {
    Error::Malformed("the answer is of another kind than the request asks for".to_owned())
}

impl<P: Pipeline> Transport for InProcess<P> {
    fn send(&self, request: Request) -> BoxFuture<'static, Result<Bytes, Error>> {
        let answer = self.ask(request);
        Box::pin(async move {
            match answer.await? {
                Reply::Object { object, .. } => Ok(object),
                Reply::List {
                    kind,
                    api_version,
                    list,
                } => Ok(render(&kind, &api_version, &list)),
                Reply::Watch(_) => Err(unexpected()),
            }
        })
    }

    fn list(&self, request: Request) -> BoxFuture<'static, Result<List, Error>> {
        let answer = self.ask(request);
        Box::pin(async move {
            match answer.await? {
                Reply::List { list, .. } => Ok(list),
                _ => Err(unexpected()),
            }
        })
    }

    fn watch(&self, request: Request) -> BoxFuture<'static, Result<WatchStream, Error>> {
        let answer = self.ask(request);
        Box::pin(async move {
            match answer.await? {
                Reply::Watch(stream) => Ok(stream),
                _ => Err(unexpected()),
            }
        })
    }
}

/// A list as one document (the answer to deleting a collection).
fn render(kind: &str, api_version: &str, list: &List) -> Bytes {
    let mut text = format!(
        "{{\"kind\":{kind:?},\"apiVersion\":{api_version:?},\"metadata\":{{\"resourceVersion\":{:?}}},\"items\":[",
        list.resource_version
    )
    .into_bytes();
    for (index, item) in list.items.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        text.extend_from_slice(item);
    }
    text.extend_from_slice(b"]}");
    Bytes::from(text)
}
