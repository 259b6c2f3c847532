//! Quantities: fixed-point numbers with a suffix, such as `100m`, `1.5Gi` or `12e6`.
//!
//! A quantity is kept in billionths in an `i128`: the smallest step the API knows, and room for
//! 10^29 units. Values beyond are clamped. Upstream counterpart: `apimachinery/pkg/api/resource`.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, Neg, Sub};
use std::str::FromStr;

const NANO: i128 = 1_000_000_000;
/// The largest amount that a quantity with a binary suffix can have.
const MAX_BINARY: i128 = (i64::MAX as i128) * NANO;

/// How a quantity is written; it keeps the family of suffixes it was read with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    #[default]
    DecimalSi,
    BinarySi,
    DecimalExponent,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

impl Quantity {
    pub const ZERO: Self = Self {
        nanos: 0,
        format: Format::DecimalSi,
    };

    pub const fn from_units(units: i64, format: Format) -> Self {
        Self {
            nanos: units as i128 * NANO,
            format,
        }
    }

    pub const fn from_milli(milli: i64, format: Format) -> Self {
        Self {
            nanos: milli as i128 * (NANO / 1000),
            format,
        }
    }

    pub fn format(self) -> Format {
        self.format
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Whole units, rounded away from zero.
    pub fn value(self) -> i64 {
        clamp(div_away(self.nanos, NANO))
    }

    /// Thousandths, rounded away from zero.
    pub fn milli_value(self) -> i64 {
        clamp(div_away(self.nanos, NANO / 1000))
    }

    /// Billionths, exact.
    pub fn nano_value(self) -> i128 {
        self.nanos
    }

    pub fn as_f64(self) -> f64 {
        self.nanos as f64 / NANO as f64
    }

    /// True if the amount is a whole number of units.
    pub fn is_integer(self) -> bool {
        self.nanos % NANO == 0
    }

    /// True if the amount is a whole number of thousandths.
    pub fn is_milli_integer(self) -> bool {
        self.nanos % (NANO / 1000) == 0
    }

    /// Multiplies by a whole number, clamping.
    pub fn times(self, factor: i64) -> Self {
        Self {
            nanos: self.nanos.saturating_mul(factor.into()),
            format: self.format,
        }
    }
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// Division that rounds away from zero.
fn div_away(value: i128, by: i128) -> i128 {
    let quotient = value / by;
    match value % by {
        0 => quotient,
        rest if rest > 0 => quotient + 1,
        _ => quotient - 1,
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// The result is written like the left side, unless that is zero.
impl Add for Quantity {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            nanos: self.nanos.saturating_add(other.nanos),
            format: if self.is_zero() {
                other.format
            } else {
                self.format
            },
        }
    }
}

impl Sub for Quantity {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Neg for Quantity {
    type Output = Self;
    fn neg(self) -> Self {
        Self {
            nanos: self.nanos.saturating_neg(),
            format: self.format,
        }
    }
}

/// The parts of a quantity's text.
struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

fn split(text: &str) -> Result<Parts<'_>, ParseQuantityError> {
    let (negative, rest) = match text.as_bytes().first() {
        None => return Err(ParseQuantityError::Format),
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        Some(_) => (false, text),
    };
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, rest) = rest.split_at(digits(rest));
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits(rest)),
        None => ("", rest),
    };
    let letters = suffix
        .bytes()
        .take_while(|byte| b"eEinumkKMGTP".contains(byte))
        .count();
    let exponent = suffix[letters..]
        .strip_prefix(['-', '+'])
        .unwrap_or(&suffix[letters..]);
    if digits(exponent) != exponent.len() {
        return Err(ParseQuantityError::Format);
    }
    Ok(Parts {
        negative,
        whole,
        fraction,
        suffix,
    })
}

/// What a suffix multiplies with.
enum Scale {
    Ten(i32),
    Two(u32),
}

fn interpret(suffix: &str) -> Option<(Scale, Format)> {
    let decimal = |exponent| Some((Scale::Ten(exponent), Format::DecimalSi));
    let binary = |exponent| Some((Scale::Two(exponent), Format::BinarySi));
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            Some((Scale::Ten(exponent), Format::DecimalExponent))
        }
    }
}

/// `digits × 10^exponent`, rounded up, clamped.
fn scale_ten(digits: i128, exponent: i32) -> i128 {
    let power = |exponent: u32| 10_i128.checked_pow(exponent);
    if digits == 0 {
        return 0;
    }
    if exponent >= 0 {
        power(exponent.unsigned_abs())
            .and_then(|factor| digits.checked_mul(factor))
            .unwrap_or(i128::MAX)
    } else {
        power(exponent.unsigned_abs()).map_or(1, |divisor| div_away(digits, divisor))
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, ParseQuantityError> {
        let parts = split(text)?;
        let (scale, mut format) = interpret(parts.suffix).ok_or(ParseQuantityError::Suffix)?;
        if parts.whole.is_empty() && parts.fraction.is_empty() {
            return Err(ParseQuantityError::Numeric);
        }
        // More digits than fit cannot change the value in billionths, or are clamped anyway.
        let fraction: &str = &parts.fraction[..parts.fraction.len().min(20)];
        let digits = format!("{}{fraction}", parts.whole.trim_start_matches('0'));
        let digits: i128 = if digits.is_empty() {
            0
        } else {
            digits.parse().unwrap_or(i128::MAX)
        };
        let shift = 9 - i32::try_from(fraction.len()).unwrap_or(0);
        let mut nanos = match scale {
            Scale::Ten(exponent) => scale_ten(digits, exponent.saturating_add(shift)),
            Scale::Two(exponent) => {
                let scaled = digits.checked_mul(1_i128 << exponent).unwrap_or(i128::MAX);
                scale_ten(scaled, shift).min(MAX_BINARY)
            }
        };
        if format == Format::BinarySi && nanos > 0 && nanos < NANO {
            format = Format::DecimalSi;
        }
        if parts.negative {
            nanos = -nanos;
        }
        Ok(Self { nanos, format })
    }
}

const DECIMAL_SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The canonical form: no fraction, the largest suffix that keeps the value exact.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        match self.format {
            Format::BinarySi if self.nanos.abs() >= 1024 * NANO => {
                write_binary(f, div_away(self.nanos, NANO))
            }
            Format::DecimalExponent => write_decimal(f, self.nanos, true),
            _ => write_decimal(f, self.nanos, false),
        }
    }
}

fn write_binary(f: &mut fmt::Formatter<'_>, mut value: i128) -> fmt::Result {
    let mut step = 0;
    while value % 1024 == 0 && step + 1 < BINARY_SUFFIXES.len() {
        value /= 1024;
        step += 1;
    }
    write!(f, "{value}{}", BINARY_SUFFIXES[step])
}

fn write_decimal(f: &mut fmt::Formatter<'_>, mut value: i128, exponent_form: bool) -> fmt::Result {
    let mut step = 0;
    let last = if exponent_form {
        usize::MAX
    } else {
        DECIMAL_SUFFIXES.len() - 1
    };
    while value % 1000 == 0 && step < last {
        value /= 1000;
        step += 1;
    }
    if exponent_form {
        let exponent = 3 * i64::try_from(step).unwrap_or(0) - 9;
        if exponent == 0 {
            write!(f, "{value}")
        } else {
            write!(f, "{value}e{exponent}")
        }
    } else {
        write!(f, "{value}{}", DECIMAL_SUFFIXES[step])
    }
}

impl serde::Serialize for Quantity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn canonical(text: &str) -> String {
        text.parse::<Quantity>().unwrap().to_string()
    }

    #[test]
    fn canonical_forms() {
        for (text, expected) in [
            ("0", "0"),
            ("0Mi", "0"),
            ("100m", "100m"),
            ("1000m", "1"),
            ("0.1", "100m"),
            (".5", "500m"),
            ("1.5", "1500m"),
            ("1000", "1k"),
            ("1.5Gi", "1536Mi"),
            ("1024Ki", "1Mi"),
            ("1025Ki", "1025Ki"),
            ("1023", "1023"),
            ("512", "512"),
            ("12e6", "12e6"),
            ("1e3", "1e3"),
            ("1E", "1E"),
            ("0.5Ki", "512"),
            ("-1.5", "-1500m"),
            ("0.0000000001", "1n"),
            ("9999999999999999Gi", "9223372036854775807"),
        ] {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }

    #[test]
    fn bad_texts() {
        use ParseQuantityError::{Format, Numeric, Suffix};
        for (text, expected) in [
            ("", Format),
            ("1Mi!", Format),
            ("abc", Format),
            ("1Ml", Format),
            ("1mm", Suffix),
            ("Mi", Numeric),
            ("1.2.3", Format),
        ] {
            assert_eq!(text.parse::<Quantity>().unwrap_err(), expected, "{text}");
        }
    }

    #[test]
    fn arithmetic_and_rounding() {
        let cpu: Quantity = "100m".parse().unwrap();
        assert_eq!(cpu.value(), 1);
        assert_eq!((cpu + "1".parse().unwrap()).milli_value(), 1100);
        assert_eq!(
            ("1Gi".parse::<Quantity>().unwrap() - cpu).format(),
            super::Format::BinarySi
        );
        assert!("1Ki".parse::<Quantity>().unwrap() > "1k".parse().unwrap());
    }
}
