//! Whether a text is a cron schedule.

/// Bounds and names of a field.
struct Field {
    low: u32,
    high: u32,
    names: &'static [&'static str],
}

const MONTHS: &[&str] = &[
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

const FIELDS: [Field; 5] = [
    Field {
        low: 0,
        high: 59,
        names: &[],
    },
    Field {
        low: 0,
        high: 23,
        names: &[],
    },
    Field {
        low: 1,
        high: 31,
        names: &[],
    },
    Field {
        low: 1,
        high: 12,
        names: MONTHS,
    },
    Field {
        low: 0,
        high: 6,
        names: DAYS,
    },
];

/// The fault of a schedule, if it has one.
pub(crate) fn check(schedule: &str) -> Result<(), String> {
    let mut text = schedule;
    if text.starts_with("TZ=") || text.starts_with("CRON_TZ=") {
        let (zone, rest) = text
            .split_once(' ')
            .ok_or_else(|| format!("provided bad location {text}: unknown time zone"))?;
        let zone = zone.split_once('=').map_or("", |(_, zone)| zone);
        if jiff::tz::TimeZone::get(zone).is_err() {
            return Err(format!(
                "provided bad location {zone}: unknown time zone {zone}"
            ));
        }
        text = rest.trim();
    }
    if text.starts_with('@') {
        return descriptor(text);
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!(
            "expected exactly 5 fields, found {}: [{}]",
            fields.len(),
            fields.join(" ")
        ));
    }
    for (text, field) in fields.iter().zip(&FIELDS) {
        for range in text.split(',') {
            check_range(range, field)?;
        }
    }
    Ok(())
}

fn descriptor(text: &str) -> Result<(), String> {
    match text {
        "@yearly" | "@annually" | "@monthly" | "@weekly" | "@daily" | "@midnight" | "@hourly" => {
            Ok(())
        }
        _ => match text.strip_prefix("@every ") {
            Some(duration) if is_duration(duration) => Ok(()),
            Some(duration) => Err(format!(
                "failed to parse duration {text}: time: invalid duration {duration:?}"
            )),
            None => Err(format!("unrecognized descriptor: {text}")),
        },
    }
}

/// A duration like `1h30m`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let number = rest
            .bytes()
            .take_while(|byte| byte.is_ascii_digit() || *byte == b'.')
            .count();
        let unit = rest[number..]
            .bytes()
            .take_while(|byte| !byte.is_ascii_digit() && *byte != b'.')
            .count();
        let known = ["ns", "us", "µs", "μs", "ms", "s", "m", "h"];
        if number == 0 || !known.contains(&&rest[number..number + unit]) {
            return false;
        }
        rest = &rest[number + unit..];
    }
    true
}

fn number(text: &str, field: &Field) -> Result<u32, String> {
    let lower = text.to_ascii_lowercase();
    if let Some(index) = field.names.iter().position(|name| *name == lower) {
        return Ok(index as u32 + field.low);
    }
    plain(text)
}

fn plain(text: &str) -> Result<u32, String> {
    match text.parse::<i64>() {
        Ok(number) if number < 0 => Err(format!("negative number ({number}) not allowed: {text}")),
        Ok(number) => u32::try_from(number)
            .map_err(|_| format!("failed to parse int from {text}: value out of range")),
        Err(_) => Err(format!(
            "failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"
        )),
    }
}

fn check_range(range: &str, field: &Field) -> Result<(), String> {
    let parts: Vec<&str> = range.split('/').collect();
    let bounds: Vec<&str> = parts[0].split('-').collect();
    let single = bounds.len() == 1;
    let (low, mut high) = if matches!(bounds[0], "*" | "?") {
        (field.low, field.high)
    } else {
        let low = number(bounds[0], field)?;
        match bounds.len() {
            1 => (low, low),
            2 => (low, number(bounds[1], field)?),
            _ => return Err(format!("too many hyphens: {range}")),
        }
    };
    let step = match parts.len() {
        1 => 1,
        2 => {
            let step = plain(parts[1])?;
            if single {
                high = field.high;
            }
            step
        }
        _ => return Err(format!("too many slashes: {range}")),
    };
    if low < field.low {
        return Err(format!(
            "beginning of range ({low}) below minimum ({}): {range}",
            field.low
        ));
    }
    if high > field.high {
        return Err(format!(
            "end of range ({high}) above maximum ({}): {range}",
            field.high
        ));
    }
    if low > high {
        return Err(format!(
            "beginning of range ({low}) beyond end of range ({high}): {range}"
        ));
    }
    if step == 0 {
        return Err(format!(
            "step of range should be a positive number: {range}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn schedules() {
        for good in [
            "*/5 * * * *",
            "@every 1h30m",
            "0 0 1-5/2 jan,feb mon-fri",
            "@daily",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        assert_eq!(
            check("61 * * * *"),
            Err("end of range (61) above maximum (59): 61".to_owned())
        );
        assert_eq!(
            check("* * *"),
            Err("expected exactly 5 fields, found 3: [* * *]".to_owned())
        );
        assert!(check("@fortnightly").is_err());
        assert!(check("@every soon").is_err());
    }
}
