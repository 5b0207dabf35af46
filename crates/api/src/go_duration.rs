//! Durations in the format of Go, which every Kubernetes configuration uses.

use std::fmt;
use std::str::FromStr;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const NANOSECOND: u64 = 1;
const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// One more than the largest `i64`: the magnitude of the most negative duration.
const MAGNITUDE_LIMIT: u64 = 1 << 63;

/// A duration in nanoseconds that parses and prints exactly like Go's `time.Duration`.
///
/// It accepts `"1m30s"`, `"500ms"`, `"-1.5h"` and `"0"`, but not `5` without a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

impl GoDuration {
    /// Zero; prints as `0s`.
    pub const ZERO: Self = Self(0);
    /// The longest duration, about 292 years.
    pub const MAX: Self = Self(i64::MAX);
    /// The most negative duration.
    pub const MIN: Self = Self(i64::MIN);

    /// A duration from nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// A duration from seconds. Every `u32` fits.
    pub const fn from_secs(seconds: u32) -> Self {
        Self(seconds as i64 * SECOND as i64)
    }

    /// The duration in nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Whether the duration is less than zero.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Whether the duration is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The duration as the standard library's type. A negative duration becomes zero.
    pub const fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_nanos(if self.0 < 0 { 0 } else { self.0 as u64 })
    }
}

impl From<GoDuration> for SignedDuration {
    fn from(duration: GoDuration) -> Self {
        SignedDuration::from_nanos(duration.0)
    }
}

/// Why a text is not a Go duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseGoDurationError {
    /// The text lacks a number.
    #[error("{text:?} is not a duration: write numbers with units, for example \"1m30s\" or \"500ms\"")]
    Invalid {
        /// The whole text.
        text: String,
    },
    /// A number lacks its unit.
    #[error("{text:?} lacks a unit after a number: use one of ns, us, ms, s, m, h, for example \"30s\"")]
    MissingUnit {
        /// The whole text.
        text: String,
    },
    /// A number has an unknown unit.
    #[error("{text:?} has the unknown unit {unit:?}: use one of ns, us, ms, s, m, h")]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// The unknown unit.
        unit: String,
    },
    /// The duration does not fit into 64 bits of nanoseconds.
    #[error("{text:?} is too long: a duration is at most about 292 years (2562047h47m16s)")]
    Overflow {
        /// The whole text.
        text: String,
    },
}

impl FromStr for GoDuration {
    type Err = ParseGoDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let overflow = || ParseGoDurationError::Overflow { text: text.into() };
        let invalid = || ParseGoDurationError::Invalid { text: text.into() };

        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if unsigned == "0" {
            return Ok(Self::ZERO);
        }
        if unsigned.is_empty() {
            return Err(invalid());
        }

        let mut magnitude: u64 = 0;
        let mut rest = unsigned;
        while !rest.is_empty() {
            let (whole, fraction, after) = split_number(rest).ok_or_else(invalid)?;
            let (name, after) = split_unit(after);
            if name.is_empty() {
                return Err(ParseGoDurationError::MissingUnit { text: text.into() });
            }
            let unit = unit_length(name)
                .ok_or_else(|| ParseGoDurationError::UnknownUnit { text: text.into(), unit: name.into() })?;
            let length = whole_units(whole, unit)
                .and_then(|nanos| nanos.checked_add(fraction_of(fraction, unit)))
                .ok_or_else(overflow)?;
            magnitude =
                magnitude.checked_add(length).filter(|sum| *sum <= MAGNITUDE_LIMIT).ok_or_else(overflow)?;
            rest = after;
        }

        if negative {
            Ok(Self(0i64.wrapping_sub_unsigned(magnitude)))
        } else {
            i64::try_from(magnitude).map(Self).map_err(|_| overflow())
        }
    }
}

/// Splits `"12.5m3s"` into `("12", "5", "m3s")`. One part of the number may be empty, but not both.
fn split_number(text: &str) -> Option<(&str, &str, &str)> {
    let (whole, rest) = split_digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(after_point) => split_digits(after_point),
        None => ("", rest),
    };
    (!whole.is_empty() || !fraction.is_empty()).then_some((whole, fraction, rest))
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn split_unit(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

fn unit_length(name: &str) -> Option<u64> {
    Some(match name {
        "ns" => NANOSECOND,
        // Both the micro sign and the Greek letter mu are common.
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return None,
    })
}

fn whole_units(digits: &str, unit: u64) -> Option<u64> {
    let number = if digits.is_empty() { 0 } else { digits.parse::<u64>().ok()? };
    number.checked_mul(unit).filter(|nanos| *nanos <= MAGNITUDE_LIMIT)
}

/// The length of the fraction. Uses floating point and drops excess digits exactly as Go does, so that every text means
/// the same number of nanoseconds to both.
fn fraction_of(digits: &str, unit: u64) -> u64 {
    let mut value: u64 = 0;
    let mut scale: f64 = 1.0;
    for digit in digits.bytes().map(|byte| u64::from(byte - b'0')) {
        if value > (MAGNITUDE_LIMIT - 1) / 10 || value * 10 + digit > MAGNITUDE_LIMIT {
            break;
        }
        value = value * 10 + digit;
        scale *= 10.0;
    }
    (value as f64 * (unit as f64 / scale)) as u64
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.unsigned_abs();
        let sign = if self.0 < 0 { "-" } else { "" };
        if magnitude == 0 {
            return f.pad("0s");
        }
        let text = if magnitude < SECOND {
            let (unit, name) = if magnitude < MICROSECOND {
                (NANOSECOND, "ns")
            } else if magnitude < MILLISECOND {
                (MICROSECOND, "µs")
            } else {
                (MILLISECOND, "ms")
            };
            format!("{sign}{}{name}", decimal(magnitude, unit))
        } else {
            let seconds = decimal(magnitude % MINUTE, SECOND);
            let (hours, minutes) = (magnitude / HOUR, magnitude % HOUR / MINUTE);
            match (hours, minutes) {
                (0, 0) => format!("{sign}{seconds}s"),
                (0, _) => format!("{sign}{minutes}m{seconds}s"),
                _ => format!("{sign}{hours}h{minutes}m{seconds}s"),
            }
        };
        f.pad(&text)
    }
}

/// `nanos` in units, with as many decimals as needed.
fn decimal(nanos: u64, unit: u64) -> String {
    let (whole, part) = (nanos / unit, nanos % unit);
    if part == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    let digits = format!("{part:0width$}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_go_reads() {
        let cases: &[(&str, i64)] = &[
            ("0", 0),
            ("+0", 0),
            ("-0", 0),
            ("5s", 5_000_000_000),
            ("30s", 30_000_000_000),
            ("1478s", 1_478_000_000_000),
            ("-5s", -5_000_000_000),
            ("+5s", 5_000_000_000),
            ("5.0s", 5_000_000_000),
            ("5.6s", 5_600_000_000),
            ("5.s", 5_000_000_000),
            (".5s", 500_000_000),
            ("1.0040s", 1_004_000_000),
            ("100.00100s", 100_001_000_000),
            ("10ns", 10),
            ("11us", 11_000),
            ("12µs", 12_000),
            ("12μs", 12_000),
            ("13ms", 13_000_000),
            ("15m", 900_000_000_000),
            ("16h", 57_600_000_000_000),
            ("3h30m", 12_600_000_000_000),
            ("10.5s4m", 250_500_000_000),
            ("-2m3.4s", -123_400_000_000),
            ("1h2m3s4ms5us6ns", 3_723_004_005_006),
            ("39h9m14.425s", 140_954_425_000_000),
            ("52763797000ns", 52_763_797_000),
            ("0.3333333333333333333h", 1_200_000_000_000),
            ("9007199254740993ns", 9_007_199_254_740_993),
            ("9223372036854775807ns", i64::MAX),
            ("9223372036854775.807us", i64::MAX),
            ("9223372036s854ms775us807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("-9223372036854775.808us", i64::MIN),
            ("-9223372036s854ms775us808ns", i64::MIN),
            ("-2562047h47m16.854775808s", i64::MIN),
            ("0.100000000000000000000h", 360_000_000_000),
            ("0.830103483285477580700h", 2_988_372_539_827),
        ];
        for (text, nanos) in cases {
            assert_eq!(text.parse::<GoDuration>().map(GoDuration::as_nanos), Ok(*nanos), "{text}");
        }
    }

    #[test]
    fn refuses_what_go_refuses_and_says_why() {
        use ParseGoDurationError as E;
        let invalid = |text: &str| E::Invalid { text: text.into() };
        let missing = |text: &str| E::MissingUnit { text: text.into() };
        let unknown = |text: &str, unit: &str| E::UnknownUnit { text: text.into(), unit: unit.into() };
        let overflow = |text: &str| E::Overflow { text: text.into() };
        let cases = [
            invalid(""),
            missing("3"),
            invalid("-"),
            invalid("+"),
            invalid("s"),
            invalid("."),
            invalid("-."),
            invalid(".s"),
            invalid("+.s"),
            invalid("+-5s"),
            invalid(" 5s"),
            invalid("m5s"),
            unknown("5s ", "s "),
            unknown("1h-30m", "h-"),
            unknown("1d", "d"),
            unknown("5S", "S"),
            unknown("5min", "min"),
            missing("1m30"),
            missing("00"),
            unknown("1x1x", "x"),
            overflow("9223372036854775810ns"),
            overflow("9223372036854775808ns"),
            overflow("-9223372036854775809ns"),
            overflow("9223372036854776us"),
            overflow("3000000h"),
            overflow("99999999999999999999h"),
            overflow("18446744073709551616s"),
            overflow("9223372036854775.808us"),
            overflow("9223372036854ms775us808ns"),
        ];
        for expected in cases {
            let (E::Invalid { text }
            | E::MissingUnit { text }
            | E::UnknownUnit { text, .. }
            | E::Overflow { text }) = &expected;
            let error = text.parse::<GoDuration>().unwrap_err();
            assert_eq!(error, expected);
            assert!(error.to_string().contains(&format!("{text:?}")), "{error} does not show its value");
        }
    }

    #[test]
    fn prints_as_go_prints() {
        let cases: &[(i64, &str)] = &[
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (500_000_000, "500ms"),
            (3_300_000_000, "3.3s"),
            (60_000_000_000, "1m0s"),
            (90_000_000_000, "1m30s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (3_600_000_000_000, "1h0m0s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (480_000_000_001, "8m0.000000001s"),
            (-90_000_000_000, "-1m30s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ];
        for (nanos, text) in cases {
            assert_eq!(GoDuration::from_nanos(*nanos).to_string(), *text);
        }
    }

    #[test]
    fn travels_as_a_string() {
        let json = serde_json::to_string(&GoDuration::from_secs(90)).unwrap();
        assert_eq!(json, "\"1m30s\"");
        assert_eq!(serde_json::from_str::<GoDuration>(&json).unwrap(), GoDuration::from_secs(90));
        let error = serde_json::from_str::<GoDuration>("\"90\"").unwrap_err().to_string();
        assert!(error.contains("lacks a unit"), "{error}");
    }

    proptest! {
        #![proptest_config(crate::fuzz::cases(4096))]

        #[test]
        fn printing_and_reading_is_the_identity(nanos in any::<i64>()) {
            let duration = GoDuration::from_nanos(nanos);
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }

        #[test]
        fn small_values_round_trip_too(nanos in -5_000_000_000i64..5_000_000_000) {
            let duration = GoDuration::from_nanos(nanos);
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }

        #[test]
        fn any_text_is_read_or_refused_without_panic(text in any::<String>()) {
            let _ = text.parse::<GoDuration>();
        }

        #[test]
        fn near_misses_are_read_or_refused_without_panic(text in "[-+]?([0-9]{0,22}\\.?[0-9]{0,22}(ns|us|µs|ms|s|m|h|x)?){0,4}") {
            if let Ok(duration) = text.parse::<GoDuration>() {
                prop_assert_eq!(duration.to_string().parse(), Ok(duration));
            }
        }
    }
}
