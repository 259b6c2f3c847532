//! `/containerLogs`: a container's log in the runtime's format, as the plain text it was.
//!
//! [`entry`] reads one line, [`select`] decides what of it is shown, [`reader`] walks the file and follows it.

pub mod entry;
pub mod reader;
pub mod select;

use super::query::Query;
use super::route::Target;
use super::{Answer, Failure, ServerState};
use crate::pod;
use http::{HeaderValue, Response, StatusCode, header};
use jiff::{SignedDuration, Timestamp};
use reader::LogSource;
use sampan_net::stream_body;
use select::Selection;
use tokio::sync::mpsc;

/// What a client may ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub follow: bool,
    pub previous: bool,
    pub timestamps: bool,
    pub since: Option<Timestamp>,
    pub tail_lines: Option<u64>,
    pub limit_bytes: Option<u64>,
    pub stream: Stream,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stream {
    #[default]
    All,
    Stdout,
    Stderr,
}

impl LogOptions {
    pub(crate) fn parse(query: &Query, now: Timestamp) -> Result<Self, Failure> {
        let tail = match query.first("tail") {
            Some("all") => None,
            Some(tail) => Some(tail),
            None => query.first("tailLines"),
        };
        let seconds = number(query.first("sinceSeconds"))?;
        let time = match query.first("sinceTime").filter(|text| !text.is_empty()) {
            Some(text) => Some(text.parse().map_err(|_| undecodable())?),
            None => None,
        };
        let stream = match query.first("stream") {
            None | Some("" | "All") => Stream::All,
            Some("Stdout") => Stream::Stdout,
            Some("Stderr") => Stream::Stderr,
            Some(_) => return Err(invalid()),
        };
        let tail_lines = unsigned(number(tail)?, 0)?;
        let limit_bytes = unsigned(number(query.first("limitBytes"))?, 1)?;
        let seconds = unsigned(seconds, 1)?;
        let both = seconds.is_some() && time.is_some();
        if both || (tail_lines.is_some() && stream != Stream::All) {
            return Err(invalid());
        }
        let ago = seconds.map(|seconds| {
            let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
            let since = now.checked_sub(SignedDuration::from_secs(seconds));
            since.unwrap_or(Timestamp::MIN)
        });
        Ok(Self {
            follow: query.is_true("follow"),
            previous: query.is_true("previous"),
            timestamps: query.is_true("timestamps"),
            since: time.or(ago),
            tail_lines,
            limit_bytes,
            stream,
        })
    }
}

fn number(text: Option<&str>) -> Result<Option<i64>, Failure> {
    match text.filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| undecodable()),
    }
}

fn unsigned(value: Option<i64>, least: u64) -> Result<Option<u64>, Failure> {
    match value.map(u64::try_from) {
        None => Ok(None),
        Some(Ok(value)) if value >= least => Ok(Some(value)),
        Some(_) => Err(invalid()),
    }
}

fn undecodable() -> Failure {
    Failure::new(
        StatusCode::BAD_REQUEST,
        r#"{"message": "Unable to decode query."}"#,
    )
}

fn invalid() -> Failure {
    Failure::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        r#"{"message": "Invalid request."}"#,
    )
}

/// Pieces of the log on their way to the client; a slow client slows the reader.
const BUFFERED: usize = 4;

pub(super) async fn answer(state: &ServerState, target: &Target, query: &Query) -> Answer {
    let options = LogOptions::parse(query, Timestamp::now())?;
    check_container(state, target)?;
    let container = state.lookup.log(
        &target.namespace,
        &target.pod,
        &target.container,
        options.previous,
    )?;
    let source = LogSource {
        path: container.log_path,
        follow: (options.follow && container.running).then(|| reader::Follow {
            container_id: container.container_id,
            runtime: state.runtime.clone(),
            watcher: state.watcher.clone(),
        }),
    };
    let file = source.open().await.map_err(|error| {
        let problem = format!("failed to open log file {}: {error}", source.path.display());
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, problem)
    })?;
    let (sender, receiver) = mpsc::channel(BUFFERED);
    let selection = Selection::new(&options);
    tokio::spawn(sampan_util::task::contain("log", async move {
        if let Err(error) = source
            .read(file, options.tail_lines, selection, &sender)
            .await
        {
            // Its loss would only mean that the client is gone.
            drop(sender.send(Err(error)).await);
        }
    }));
    let pieces = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    let mut response = Response::new(stream_body(pieces));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    Ok(response)
}

fn check_container(state: &ServerState, target: &Target) -> Result<(), Failure> {
    let pods = state.lookup.pods();
    let pod = pods
        .iter()
        .find(|known| pod::namespace(known) == target.namespace && pod::name(known) == target.pod);
    let problem = match pod {
        None => format!("pod {:?} does not exist", target.pod),
        Some(known) if pod::find_container(known, &target.container).is_none() => format!(
            "container {:?} not found in pod {:?}",
            target.container, target.pod
        ),
        Some(_) => return Ok(()),
    };
    Err(Failure::new(StatusCode::NOT_FOUND, problem))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Result<LogOptions, Failure> {
        LogOptions::parse(&Query::parse(text), "2026-01-01T00:01:00Z".parse().unwrap())
    }

    #[test]
    fn since_is_a_time_or_a_distance_but_not_both() {
        let expected: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(parse("sinceSeconds=60").unwrap().since, Some(expected));
        let time = parse("sinceTime=2026-01-01T00:00:00Z").unwrap().since;
        assert_eq!(time, Some(expected));
        assert!(parse("sinceSeconds=60&sinceTime=2026-01-01T00:00:00Z").is_err());
    }

    #[test]
    fn bad_options_are_refused_with_upstreams_codes() {
        assert_eq!(parse("tailLines=x").unwrap_err().code.as_u16(), 400);
        for bad in [
            "tailLines=-1",
            "limitBytes=0",
            "stream=Both",
            "stream=Stdout&tailLines=1",
        ] {
            assert_eq!(parse(bad).unwrap_err().code.as_u16(), 422, "{bad}");
        }
        assert_eq!(parse("tail=all").unwrap().tail_lines, None);
        assert_eq!(parse("tailLines=0").unwrap().tail_lines, Some(0));
    }
}
