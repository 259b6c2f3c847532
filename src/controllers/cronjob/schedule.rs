//! Cron expressions: five fields, the usual shorthands, and `@every`.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, Timestamp, ToSpan, Unit};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParseError {
    #[error("expected exactly 5 fields, found {0}: {1:?}")]
    Fields(usize, String),
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
    #[error("failed to parse {0:?}")]
    Field(String),
    #[error("value {1} in {0:?} is out of range")]
    Range(String, i64),
}

/// Years searched before a schedule counts as one that never comes (the 30th of February).
const HORIZON_YEARS: i16 = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Schedule {
    Fields(Fields),
    Every(SignedDuration),
}

/// Bit sets of the values that match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// With a star in one of the day fields the other decides alone.
    any_day: bool,
    any_weekday: bool,
}

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Schedule {
    pub(crate) fn parse(text: &str) -> Result<Self, ParseError> {
        let text = text.trim();
        let fields = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => match other.strip_prefix("@every ") {
                Some(duration) => return every(duration),
                None if other.starts_with('@') => {
                    return Err(ParseError::Descriptor(other.to_owned()));
                }
                None => other,
            },
        };
        Fields::parse(fields).map(Self::Fields)
    }

    /// The first time after `after`.
    pub(crate) fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Self::Every(interval) => {
                let next = after.checked_add(*interval).ok()?;
                Timestamp::from_second(next.as_second()).ok()
            }
            Self::Fields(fields) => fields.next(after, zone),
        }
    }

    /// The last time at or before `now`, found by looking ahead from ever earlier.
    pub(crate) fn last_before(&self, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        for hours in [
            1,
            24,
            24 * 7,
            24 * 31,
            24 * 366,
            24 * 366 * i64::from(HORIZON_YEARS),
        ] {
            let mut at = now.checked_sub(SignedDuration::from_hours(hours)).ok()?;
            let mut last = None;
            while let Some(next) = self.next(at, zone).filter(|next| *next <= now) {
                last = Some(next);
                at = next;
            }
            if last.is_some() {
                return last;
            }
        }
        None
    }
}

/// A duration such as `1h30m`.
fn every(text: &str) -> Result<Schedule, ParseError> {
    let wrong = || ParseError::Field(text.to_owned());
    let span: Span = text.trim().parse().map_err(|_| wrong())?;
    let seconds = span.total(Unit::Second).map_err(|_| wrong())?;
    if seconds < 1.0 {
        return Err(wrong());
    }
    SignedDuration::try_from_secs_f64(seconds.floor())
        .map(Schedule::Every)
        .map_err(|_| wrong())
}

impl Fields {
    fn parse(text: &str) -> Result<Self, ParseError> {
        let parts: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = parts[..] else {
            return Err(ParseError::Fields(parts.len(), text.to_owned()));
        };
        let (weekday_set, any_weekday) = field(weekdays, 0, 7, &WEEKDAYS, 0)?;
        // Both 0 and 7 are Sunday.
        let sunday = (weekday_set >> 7) & 1;
        let (day_set, any_day) = field(days, 1, 31, &[], 0)?;
        Ok(Self {
            minutes: field(minutes, 0, 59, &[], 0)?.0,
            hours: field(hours, 0, 23, &[], 0)?.0,
            days: day_set,
            months: field(months, 1, 12, &MONTHS, 1)?.0,
            weekdays: (weekday_set & 0x7f) | sunday,
            any_day,
            any_weekday,
        })
    }

    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let start = after.to_zoned(zone.clone()).datetime();
        let start = start.checked_add(1.minute()).ok()?;
        let start = start.with().second(0).subsec_nanosecond(0).build().ok()?;
        let last = start.year().checked_add(HORIZON_YEARS)?;
        let mut date = start.date();
        let mut from = (start.hour(), start.minute());
        while date.year() <= last {
            if self.has_date(date) {
                for (hour, minute) in self.times(from) {
                    let at = date.at(hour, minute, 0, 0);
                    if let Some(at) = instant(at, zone).filter(|at| *at > after) {
                        return Some(at);
                    }
                }
            }
            date = date.tomorrow().ok()?;
            from = (0, 0);
        }
        None
    }

    fn has_date(&self, date: Date) -> bool {
        let weekday = date.weekday().to_sunday_zero_offset();
        let day = self.days & (1 << date.day()) != 0;
        let weekday = self.weekdays & (1 << weekday) != 0;
        let days = if self.any_day || self.any_weekday {
            day && weekday
        } else {
            day || weekday
        };
        days && self.months & (1 << date.month()) != 0
    }

    /// Times of a day from `(hour, minute)` on.
    fn times(&self, from: (i8, i8)) -> impl Iterator<Item = (i8, i8)> {
        let (minutes, hours) = (self.minutes, self.hours);
        (from.0..24)
            .filter(move |hour| hours & (1 << hour) != 0)
            .flat_map(move |hour| {
                let first = if hour == from.0 { from.1 } else { 0 };
                let minutes = (first..60).filter(move |minute| minutes & (1 << minute) != 0);
                minutes.map(move |minute| (hour, minute))
            })
    }
}

/// A time that a change of clocks leaves out is taken as the one after the gap.
fn instant(at: DateTime, zone: &TimeZone) -> Option<Timestamp> {
    zone.to_ambiguous_timestamp(at).compatible().ok()
}

/// The values of one field, and whether it is a plain star.
fn field(
    text: &str,
    min: i64,
    max: i64,
    names: &[&str],
    first_name: i64,
) -> Result<(u64, bool), ParseError> {
    let mut set = 0;
    let mut star = false;
    let number = |part: &str| -> Result<i64, ParseError> {
        let lower = part.to_ascii_lowercase();
        if let Some(at) = names.iter().position(|name| *name == lower) {
            return Ok(first_name + i64::try_from(at).unwrap_or(0));
        }
        part.parse().map_err(|_| ParseError::Field(text.to_owned()))
    };
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, Some(number(step)?)),
            None => (part, None),
        };
        let (first, last) = match range {
            "*" | "?" => (min, max),
            _ => match range.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                // `5/15` means from 5 on.
                None => (
                    number(range)?,
                    if step.is_some() { max } else { number(range)? },
                ),
            },
        };
        star |= matches!(range, "*" | "?") && step.is_none_or(|step| step == 1);
        let step = step.unwrap_or(1);
        if step < 1 || first > last {
            return Err(ParseError::Field(text.to_owned()));
        }
        for bound in [first, last] {
            if !(min..=max).contains(&bound) {
                return Err(ParseError::Range(text.to_owned(), bound));
            }
        }
        let mut value = first;
        while value <= last {
            set |= 1 << value;
            value += step;
        }
    }
    Ok((set, star))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn next(schedule: &str, after: &str, zone: &str) -> String {
        let zone = TimeZone::get(zone).unwrap();
        let after: Timestamp = after.parse().unwrap();
        let next = Schedule::parse(schedule).unwrap().next(after, &zone);
        next.map(|at| at.to_string()).unwrap_or_default()
    }

    #[test]
    fn the_next_time_is_found() {
        let after = "2026-03-31T23:59:30Z";
        assert_eq!(next("* * * * *", after, "UTC"), "2026-04-01T00:00:00Z");
        assert_eq!(next("*/15 3 * * *", after, "UTC"), "2026-04-01T03:00:00Z");
        assert_eq!(next("5/20 * * * *", after, "UTC"), "2026-04-01T00:05:00Z");
        assert_eq!(next("0 0 1 jan *", after, "UTC"), "2027-01-01T00:00:00Z");
        assert_eq!(next("0 12 * * sun", after, "UTC"), "2026-04-05T12:00:00Z");
        assert_eq!(next("0 12 * * 7", after, "UTC"), "2026-04-05T12:00:00Z");
        assert_eq!(next("0 0 29 2 *", after, "UTC"), "2028-02-29T00:00:00Z");
        assert_eq!(next("0 0 30 2 *", after, "UTC"), "");
        assert_eq!(
            next("@hourly", "2026-03-31T10:00:00Z", "UTC"),
            "2026-03-31T11:00:00Z"
        );
        assert_eq!(
            next("@every 90s", "2026-03-31T10:00:00Z", "UTC"),
            "2026-03-31T10:01:30Z"
        );
    }

    #[test]
    fn two_restricted_day_fields_are_alternatives() {
        // The 13th or a Friday.
        assert_eq!(
            next("0 0 13 * fri", "2026-03-31T00:00:00Z", "UTC"),
            "2026-04-03T00:00:00Z"
        );
        assert_eq!(
            next("0 0 13 * *", "2026-03-31T00:00:00Z", "UTC"),
            "2026-04-13T00:00:00Z"
        );
    }

    #[test]
    fn zones_and_their_changes_count() {
        let after = "2026-03-28T12:00:00Z";
        assert_eq!(
            next("30 2 * * *", after, "Europe/Berlin"),
            "2026-03-29T01:30:00Z"
        );
        assert_eq!(
            next("30 4 * * *", after, "Europe/Berlin"),
            "2026-03-29T02:30:00Z"
        );
    }

    #[test]
    fn wrong_texts_are_refused() {
        for text in [
            "",
            "* * * *",
            "60 * * * *",
            "* * 0 * *",
            "a * * * *",
            "@often",
            "5-3 * * * *",
            "*/0 * * * *",
        ] {
            assert!(Schedule::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_last_time_is_found_too() {
        let schedule = Schedule::parse("0 0 1 * *").unwrap();
        let now: Timestamp = "2026-03-31T10:00:00Z".parse().unwrap();
        let last = schedule.last_before(now, &TimeZone::UTC).unwrap();
        assert_eq!(last.to_string(), "2026-03-01T00:00:00Z");
    }
}
