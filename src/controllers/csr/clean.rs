//! How long requests are kept.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use sampan_pki::CertificateInfo;

use super::{conditions, is_issued};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Remove,
    /// To be looked at again after this time.
    KeepFor(Duration),
    Keep,
}

/// Issued, denied and failed requests live an hour, undecided and unsigned ones a day.
pub(super) fn fate(request: &CertificateSigningRequest, now: Timestamp) -> Fate {
    let issued = is_issued(request);
    let created = request.metadata.creation_timestamp.as_ref();
    let undecided = conditions(request).next().is_none();
    let mut ends: Vec<Timestamp> = conditions(request)
        .filter_map(|condition| {
            let life = match condition.type_.as_str() {
                "Approved" if issued => HOUR,
                "Approved" => DAY,
                "Denied" | "Failed" => HOUR,
                _ => return None,
            };
            Some(condition.last_update_time.as_ref()?.0 + life)
        })
        .chain(created.filter(|_| undecided).map(|created| created.0 + DAY))
        .collect();
    ends.extend(expiry(request));
    match ends.into_iter().min() {
        None => Fate::Keep,
        Some(end) if end <= now => Fate::Remove,
        Some(end) => Fate::KeepFor(Duration::try_from(end.duration_since(now)).unwrap_or(HOUR)),
    }
}

/// When the issued certificate expires.
fn expiry(request: &CertificateSigningRequest) -> Option<Timestamp> {
    let certificate = request.status.as_ref()?.certificate.as_ref()?;
    let info = CertificateInfo::from_pem(&String::from_utf8_lossy(&certificate.0)).ok()?;
    let since = info.not_after.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Timestamp::from_second(i64::try_from(since.as_secs()).ok()?).ok()
}
