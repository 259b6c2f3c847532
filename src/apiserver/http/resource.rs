//! Requests for resources: from path, query and body to a request of the pipeline.

use std::sync::Arc;

use http::header::{ACCEPT_ENCODING, USER_AGENT};
use http::{HeaderMap, Method, Request, Response};
use hyper::body::Incoming;
use sampan_api::registry::{ServedVersion, SubresourceDef};
use sampan_api::resource::{GroupVersionResource, PatchType};
use sampan_api::schema::strict_errors;
use sampan_api::{Options, ResourceDef, Status, Target, Verb};
use sampan_client::{Body as RequestBody, Request as ApiCall};
use sampan_net::Body;

use super::decode::{self, Expected};
use super::negotiate::{self, Negotiated, Offer};
use super::respond::{self, Form};
use super::table::{IncludeObject, TableSource};
use super::watch::{self, WatchRenderer};
use super::{Context, Front};
use crate::registry::server::{method_not_allowed, no_such_resource};
use crate::request::{ApiRequest, Reply};
use crate::streams;

/// The row, version and subresource that a path leads to.
struct Place {
    def: Arc<ResourceDef>,
    served: ServedVersion,
    subresource: Option<SubresourceDef>,
}

pub(super) async fn answer(
    front: &Arc<Front>,
    request: Request<Incoming>,
    context: Context,
) -> Result<Response<Body>, Status> {
    let info = &context.info;
    let Some(place) = find(front, &context) else {
        if !group_exists(front, &info.group) || is_unserved(front, &info.group, &info.version) {
            return Ok(respond::page_not_found());
        }
        return Err(no_such_resource());
    };
    if streams::is_stream(&place.def, &info.subresource) {
        return streams::answer(front, request, &context).await;
    }
    if !info.rest.is_empty() {
        return Err(no_such_resource());
    }
    let verb = verb_of(request.method(), &place, &context)?;
    call(front, request, &context, &place, verb).await
}

fn group_exists(front: &Front, group: &str) -> bool {
    group.is_empty()
        || front.config.registry.snapshot().rows().iter().any(|row| {
            row.versions
                .iter()
                .any(|version| version.served && version.group == group)
        })
}

/// A version that no definition of this group serves.
pub(super) fn is_unserved(front: &Front, group: &str, version: &str) -> bool {
    let rows = front.config.registry.snapshot();
    let mut of_group = rows
        .rows()
        .iter()
        .filter(|row| row.group() == group)
        .peekable();
    of_group.peek().is_some()
        && of_group.all(|row| {
            row.is_custom()
                && row
                    .version(group, version)
                    .is_none_or(|version| !version.served)
        })
}

fn find(front: &Front, context: &Context) -> Option<Place> {
    let info = &context.info;
    let def =
        front
            .config
            .registry
            .snapshot()
            .by_resource(&info.group, &info.version, &info.resource)?;
    let served = def
        .version(&info.group, &info.version)
        .filter(|version| version.served)?
        .clone();
    let is_namespaces = info.group.is_empty() && info.resource == "namespaces";
    if !def.is_namespaced() && !info.namespace.is_empty() && !is_namespaces {
        return None;
    }
    let named = !info.name.is_empty() && !info.name_from_selector;
    if def.is_namespaced() && named && info.namespace.is_empty() {
        return None;
    }
    let subresource = match info.subresource.as_str() {
        "" => None,
        name => Some(def.subresource(name)?.clone()),
    };
    Some(Place {
        def,
        served,
        subresource,
    })
}

/// The verb, if the row has it for this method and place.
fn verb_of(method: &Method, place: &Place, context: &Context) -> Result<Verb, Status> {
    let info = &context.info;
    let named = !info.name.is_empty() && !info.name_from_selector;
    let verb = if info.verb_in_path {
        (info.verb == "watch" && *method == Method::GET).then_some(Verb::Watch)
    } else {
        match (method, named) {
            (&Method::GET, true) => Some(Verb::Get),
            (&Method::PUT, true) => Some(Verb::Update),
            (&Method::PATCH, true) => Some(Verb::Patch),
            (&Method::DELETE, true) => Some(Verb::Delete),
            (&Method::POST, true) => place.subresource.as_ref().map(|_| Verb::Create),
            (&Method::GET, false) if info.verb == "watch" => Some(Verb::Watch),
            (&Method::GET, false) => Some(Verb::List),
            (&Method::POST, false) => may_create_here(place, context).then_some(Verb::Create),
            (&Method::DELETE, false) => Some(Verb::DeleteCollection),
            _ => None,
        }
    };
    let verb = verb.ok_or_else(method_not_allowed)?;
    let allowed = match &place.subresource {
        Some(subresource) => subresource.verbs.contains(&verb),
        None => place.def.allows(verb),
    };
    if allowed {
        Ok(verb)
    } else {
        Err(method_not_allowed())
    }
}

/// Namespaced objects are made in a namespace.
fn may_create_here(place: &Place, context: &Context) -> bool {
    !place.def.is_namespaced() || !context.info.namespace.is_empty()
}

async fn call(
    front: &Arc<Front>,
    request: Request<Incoming>,
    context: &Context,
    place: &Place,
    verb: Verb,
) -> Result<Response<Body>, Status> {
    let (parts, body) = request.into_parts();
    let headers = &parts.headers;
    if verb == Verb::Patch {
        decode::patch_type(headers)?;
    }
    let form = form(headers, context, place, verb)?;
    let options = context.query.options()?;
    let (body, strict_errors) = read(front, headers, body, place, verb).await?;
    let request = ApiCall {
        verb,
        target: target(context, place),
        options: adjust(options, context, verb),
        body,
    };
    let timeout = watch::watch_timeout(request.options.timeout_seconds);
    let warnings = warnings(&request.options, &strict_errors, place);
    let reply = front
        .config
        .pipeline
        .handle(ApiRequest {
            user: Arc::clone(&context.user),
            request,
            user_agent: user_agent(headers),
            strict_errors,
        })
        .await;
    let mut response = match reply {
        Ok(reply) => render(front, reply, &form, place, timeout)?,
        // What the body was warned of belongs to a refusal as well.
        Err(status) => {
            let errors_as = Negotiated {
                transform: None,
                ..form.negotiated
            };
            let mut response = respond::status_response(&status, errors_as);
            let mut all = warnings.on_refusal;
            all.extend(status.warnings);
            all.dedup();
            respond::add_warnings(response.headers_mut(), &all);
            response
        }
    };
    respond::add_warnings(response.headers_mut(), &warnings.always);
    Ok(response)
}

/// Warnings beside those of the pipeline.
struct Warnings {
    always: Vec<String>,
    on_refusal: Vec<String>,
}

fn warnings(options: &Options, strict_errors: &[String], place: &Place) -> Warnings {
    let mode = options.field_validation.as_deref().unwrap_or("Warn");
    Warnings {
        always: DEPRECATED
            .iter()
            .find(|(kind, _)| place.def.group().is_empty() && *place.def.kind == **kind)
            .map(|(_, text)| (*text).to_owned())
            .into_iter()
            .chain(deprecated_version(place))
            .collect(),
        on_refusal: if mode == "Warn" {
            strict_errors.to_vec()
        } else {
            Vec::new()
        },
    }
}

fn deprecated_version(place: &Place) -> Option<String> {
    let custom = place.def.custom.as_ref()?;
    custom.of(&place.served.version)?.deprecation.clone()
}

/// Kinds of the core group that every answer warns of.
const DEPRECATED: &[(&str, &str)] = &[
    (
        "Endpoints",
        "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    ),
    (
        "ComponentStatus",
        "v1 ComponentStatus is deprecated in v1.19+",
    ),
];

fn form(headers: &HeaderMap, context: &Context, place: &Place, verb: Verb) -> Result<Form, Status> {
    let offer = Offer {
        protobuf: !place.def.is_custom(),
        transforms: true,
    };
    let negotiated = negotiate::negotiate(headers, &context.query, offer);
    // What a definition knows is found out late, and then told in these words.
    let negotiated = negotiated.map_err(|status| match place.def.is_custom() {
        true => no_such_form(),
        false => status,
    })?;
    if negotiated.transform.is_some() && !place.def.allows(Verb::Get) {
        return Err(no_such_form());
    }
    let accepts_gzip = headers
        .get(ACCEPT_ENCODING)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.split(',').any(|one| one.trim().starts_with("gzip")));
    Ok(Form {
        negotiated,
        gzip: accepts_gzip && matches!(verb, Verb::Get | Verb::List),
        include_object: IncludeObject::parse(context.query.first("includeObject")),
        bare_items: !place.def.is_custom(),
    })
}

fn no_such_form() -> Status {
    Status::new(
        sampan_api::Reason::NotAcceptable,
        "only the following media types are accepted: application/json, application/yaml, \
         application/vnd.kubernetes.protobuf",
    )
}

fn target(context: &Context, place: &Place) -> Target {
    let info = &context.info;
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Target {
        resource: GroupVersionResource {
            group: place.served.group.clone(),
            version: place.served.version.clone(),
            resource: place.def.plural.clone(),
        },
        namespace: if place.def.is_namespaced() {
            some(&info.namespace)
        } else {
            None
        },
        name: if info.name_from_selector || info.verb_in_path {
            None
        } else {
            some(&info.name)
        },
        subresource: place.subresource.as_ref().map(|sub| sub.name.clone()),
    }
}

/// `/watch/.../NAME` selects one object.
fn adjust(mut options: Options, context: &Context, verb: Verb) -> Options {
    let info = &context.info;
    if info.verb_in_path && !info.name.is_empty() && !info.name_from_selector {
        options.field_selector = Some(format!("metadata.name={}", info.name));
    }
    options.watch = verb == Verb::Watch;
    options
}

/// The body that the verb has, as a tree.
async fn read(
    front: &Front,
    headers: &HeaderMap,
    body: Incoming,
    place: &Place,
    verb: Verb,
) -> Result<(RequestBody, Vec<String>), Status> {
    let registry = &front.config.registry;
    match verb {
        Verb::Get | Verb::List | Verb::Watch => Ok((RequestBody::None, Vec::new())),
        Verb::Create | Verb::Update => {
            let media = decode::body_media(headers)?;
            let bytes = decode::read_body(body).await?;
            let expected = expected(place);
            let decoded = decode::decode_object(&bytes, media, &expected, registry)?;
            Ok((RequestBody::Object(decoded.object), decoded.strict_errors))
        }
        Verb::Patch => {
            let patch = decode::patch_type(headers)?;
            let bytes = decode::read_body(body).await?;
            let tree = decode::decode_patch(&bytes, patch)?;
            let errors = if patch == PatchType::Apply {
                Vec::new()
            } else {
                strict_errors(&bytes, None)
            };
            Ok((RequestBody::Patch(patch, tree), errors))
        }
        Verb::Delete | Verb::DeleteCollection => {
            let bytes = decode::read_body(body).await?;
            if bytes.is_empty() {
                return Ok((RequestBody::None, Vec::new()));
            }
            let media = decode::body_media(headers)?;
            let tree = decode::decode_delete_options(&bytes, media, &place.served)?;
            Ok((RequestBody::Object(tree), Vec::new()))
        }
    }
}

/// The kind of the body: that of the subresource if it has one of its own.
fn expected(place: &Place) -> Expected<'_> {
    match place.subresource.as_ref().and_then(|sub| sub.kind.as_ref()) {
        Some(kind) => Expected {
            group: &kind.group,
            version: &kind.version,
            kind: &kind.kind,
            of_subresource: true,
        },
        None => Expected::of(&place.def, &place.served),
    }
}

fn user_agent(headers: &HeaderMap) -> String {
    headers
        .get(USER_AGENT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned()
}

fn render(
    front: &Front,
    reply: Reply,
    form: &Form,
    place: &Place,
    timeout: std::time::Duration,
) -> Result<Response<Body>, Status> {
    let expected = expected(place);
    let now = jiff::Timestamp::now();
    let own = place
        .subresource
        .as_ref()
        .is_none_or(|sub| sub.kind.is_none());
    let version = own.then_some(&place.served);
    let source = TableSource::new(&place.def, version, (expected.group, expected.kind), now);
    match reply {
        Reply::Object {
            code,
            object,
            warnings,
        } => respond::object_response(code, object, &warnings, form, &source),
        Reply::List {
            kind,
            api_version,
            list,
        } => respond::list_response(&kind, &api_version, &list, form, &source),
        Reply::Watch(events) => {
            let renderer = WatchRenderer {
                form: *form,
                source,
                first: true,
            };
            let shutdown = front.config.shutdown.clone();
            Ok(watch::watch_response(events, renderer, timeout, shutdown))
        }
    }
}
