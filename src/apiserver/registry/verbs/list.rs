//! LIST: chains cached bytes out of a snapshot; pages of one list show one state.

use std::sync::Arc;
use std::time::Duration;

use sampan_api::field::{ErrorList, Path};
use sampan_api::resource::api_version;
use sampan_api::status::{Cause, Details};
use sampan_api::{Reason, Status};
use sampan_client::List;
use sampan_store::{RangeQuery, Revision};

use super::super::cache::Snapshot;
use super::super::call::Call;
use super::super::codec;
use super::super::filter::Filter;
use super::super::map::Map;
use super::super::object::{Object, Selectable, splice};
use super::super::token::{self, Token};
use crate::request::Reply;

/// How long a read waits for a revision that is not there yet.
const PATIENCE: Duration = Duration::from_secs(3);

pub async fn run(call: Call) -> Result<Reply, Status> {
    validate(&call)?;
    let filter = Filter::of(&call)?;
    let page = select(&call, &filter).await?;
    let mut items = Vec::with_capacity(page.objects.len());
    for object in &page.objects {
        items.push(codec::serve(&call.def, &call.version, &object.bytes)?);
    }
    Ok(Reply::List {
        kind: call.def.list_kind.to_string(),
        api_version: api_version(&call.version.group, &call.version.version),
        list: List {
            resource_version: page.revision.to_string(),
            continue_token: page.next.map(|token| token.encode()),
            remaining_item_count: page.remaining,
            items,
        },
    })
}

/// The objects of one page.
pub struct Page {
    pub objects: Vec<Arc<Object>>,
    pub revision: Revision,
    pub next: Option<Token>,
    pub remaining: Option<i64>,
}

pub async fn select(call: &Call, filter: &Filter) -> Result<Page, Status> {
    let (snapshot, from) = state(call, filter).await?;
    let limit = match call.options.limit {
        Some(limit) if limit > 0 => usize::try_from(limit).unwrap_or(usize::MAX),
        _ => usize::MAX,
    };
    let mut page = Page {
        objects: Vec::new(),
        revision: snapshot.revision,
        next: None,
        remaining: None,
    };
    let start = from.as_deref().unwrap_or(&filter.prefix);
    let everything = filter.is_everything();
    let mut rest = snapshot
        .map
        .iter_from(start)
        .take_while(|object| object.key.starts_with(&filter.prefix));
    let mut more = 0_i64;
    for object in rest.by_ref() {
        if page.objects.len() == limit {
            more = 1;
            break;
        }
        if everything || filter.matches(object) {
            page.objects.push(object.clone());
        }
    }
    if more > 0 {
        let last = page.objects.last().map_or("", |object| &object.key);
        let after = last.strip_prefix(&*filter.prefix).unwrap_or_default();
        page.next = Some(Token {
            revision: snapshot.revision.cast_signed(),
            start: format!("{after}\0"),
        });
        if everything {
            page.remaining = Some(more + i64::try_from(rest.count()).unwrap_or(0));
        }
        if from.is_none() {
            call.bucket().hold(&snapshot);
        }
    } else if from.is_some() {
        call.bucket().release(snapshot.revision);
    }
    Ok(page)
}

/// The state to list, and the key to go on from.
async fn state(call: &Call, filter: &Filter) -> Result<(Snapshot, Option<String>), Status> {
    let bucket = call.bucket();
    let cache = &call.server.core().cache;
    if let Some(text) = call.options.continue_token.as_deref()
        && !text.is_empty()
    {
        if !matches!(
            call.options.resource_version.as_deref(),
            None | Some("" | "0")
        ) {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let token = Token::decode(text)?;
        let from = format!("{}{}", filter.prefix, token.start);
        let Ok(revision) = Revision::try_from(token.revision) else {
            return Ok((cache.snapshot(&bucket), Some(from)));
        };
        let next = Token {
            revision: -1,
            start: token.start,
        };
        let snapshot = at(call, filter, revision)
            .await?
            .ok_or_else(|| token::expired(Some(&next)))?;
        return Ok((snapshot, Some(from)));
    }
    let revision = match call.options.resource_version.as_deref() {
        None | Some("" | "0") => return Ok((cache.snapshot(&bucket), None)),
        Some(text) => parse_revision(text)?,
    };
    wait_for(call, revision).await?;
    if call.options.resource_version_match.as_deref() != Some("Exact") {
        return Ok((cache.snapshot(&bucket), None));
    }
    let snapshot = at(call, filter, revision).await?.ok_or_else(|| {
        Status::new(
            Reason::Expired,
            "The resourceVersion for the provided list is too old.",
        )
    })?;
    Ok((snapshot, None))
}

/// The state at a revision, from memory or from the store's history; `None` where it is gone.
async fn at(call: &Call, filter: &Filter, revision: Revision) -> Result<Option<Snapshot>, Status> {
    let core = call.server.core();
    if revision > core.cache.revision() {
        return Ok(None);
    }
    if let Some(snapshot) = call.bucket().snapshot_at(revision) {
        return Ok(Some(snapshot));
    }
    let query = RangeQuery {
        prefix: filter.prefix.clone(),
        revision: Some(revision),
        ..RangeQuery::default()
    };
    let range = match core.store.range(query).await {
        Ok(range) => range,
        Err(sampan_store::Error::Compacted { .. } | sampan_store::Error::FutureRevision { .. }) => {
            return Ok(None);
        }
        Err(error) => return Err(Status::internal(error)),
    };
    let fields = call.bucket().fields();
    let mut map = Map::default();
    for record in range.records {
        let plain = core
            .codec
            .open(&record.key, &record.value)
            .map_err(Status::internal)?;
        let selectable = Selectable::of_bytes(&plain, &fields).map_err(Status::internal)?;
        map.insert(Arc::new(Object {
            bytes: splice(&plain, record.revision),
            key: record.key.clone(),
            revision: record.revision,
            selectable,
        }));
    }
    Ok(Some(Snapshot { map, revision }))
}

/// As upstream reads it; what is wrong is no API error there, so it is a 500 without a reason.
pub fn parse_revision(text: &str) -> Result<Revision, Status> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let why = match text.parse() {
        Ok(revision) if digits => return Ok(revision),
        Err(_) if digits => "value out of range",
        _ => "invalid syntax",
    };
    Err(Status {
        code: 500,
        ..Status::new(
            Reason::Unknown,
            format!(
                "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: {why}"
            ),
        )
    })
}

/// Waits a little for a revision from the future, then says that it is too large.
pub async fn wait_for(call: &Call, revision: Revision) -> Result<(), Status> {
    let cache = &call.server.core().cache;
    if revision <= cache.revision() {
        return Ok(());
    }
    let mut changes = cache.subscribe();
    let arrived = changes.wait_for(|current| *current >= revision);
    if tokio::time::timeout(PATIENCE, arrived).await.is_ok() {
        return Ok(());
    }
    let current = cache.revision();
    let message = format!("Too large resource version: {revision}, current: {current}");
    Err(
        Status::new(Reason::Timeout, format!("Timeout: {message}")).with_details(Details {
            causes: vec![Cause {
                reason: "ResourceVersionTooLarge".to_owned(),
                message: "Too large resource version".to_owned(),
                field: String::new(),
            }],
            retry_after_seconds: 1,
            ..Details::default()
        }),
    )
}

/// Options that do not go together.
pub fn validate(call: &Call) -> Result<(), Status> {
    let options = &call.options;
    let mut errors = ErrorList::new();
    let path = Path::new("resourceVersionMatch");
    let version = options.resource_version.as_deref().unwrap_or_default();
    let matching = options
        .resource_version_match
        .as_deref()
        .unwrap_or_default();
    let continued = !options
        .continue_token
        .as_deref()
        .unwrap_or_default()
        .is_empty();
    if !matching.is_empty() {
        if version.is_empty() {
            errors.forbidden(
                &path,
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            );
        }
        if continued {
            errors.forbidden(
                &path,
                "resourceVersionMatch is forbidden when continue is provided",
            );
        }
        if !matches!(matching, "Exact" | "NotOlderThan") {
            errors.not_supported(&path, matching, &["Exact", "NotOlderThan", ""]);
        }
        if matching == "Exact" && version == "0" {
            errors.forbidden(
                &path,
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            );
        }
    }
    if options.send_initial_events.is_some() {
        errors.forbidden(
            &Path::new("sendInitialEvents"),
            "sendInitialEvents is forbidden for list",
        );
    }
    errors.into_result("meta.k8s.io", "ListOptions", "")
}
