//! Scalars with a canonical form: resource quantities and times.

use jiff::Timestamp;

/// Billionths per unit, the finest resolution of Kubernetes. The largest quantity fits into 128 bits.
pub const SCALE: i128 = 1_000_000_000;

const BINARY: [(&str, i128); 6] =
    [("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30), ("Ti", 1 << 40), ("Pi", 1 << 50), ("Ei", 1 << 60)];

/// Decimal suffixes in units of [`SCALE`], smallest first.
const DECIMAL: [(&str, i128); 10] = [
    ("n", 1),
    ("u", 1_000),
    ("m", 1_000_000),
    ("", SCALE),
    ("k", SCALE * 1_000),
    ("M", SCALE * 1_000_000),
    ("G", SCALE * 1_000_000_000),
    ("T", SCALE * 1_000_000_000_000),
    ("P", SCALE * 1_000_000_000_000_000),
    ("E", SCALE * 1_000_000_000_000_000_000),
];

/// The real server's message for a text that is no quantity.
const NOT_A_QUANTITY: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

enum Format {
    Binary,
    Decimal,
    Exponent,
}

/// The canonical text of a quantity: `1000m` is `1`, `0.5` is `500m`, `1024Ki` is `1Mi`.
pub(crate) fn canonical(text: &str) -> Result<String, String> {
    let (amount, format) = parse(text).ok_or(NOT_A_QUANTITY)?;
    Ok(print(amount, &format))
}

/// The value in billionths.
pub fn amount(text: &str) -> Option<i128> {
    parse(text).map(|(amount, _)| amount)
}

fn parse(text: &str) -> Option<(i128, Format)> {
    let digits_end = text
        .find(|character: char| !(character.is_ascii_digit() || "+-.".contains(character)))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits_end);
    let (negative, number) = match number.as_bytes().first()? {
        b'-' => (true, &number[1..]),
        b'+' => (false, &number[1..]),
        _ => (false, number),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if !all_digits(whole) || !all_digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let (unit, format) = unit(suffix)?;
    let mut amount = whole.parse::<i128>().or(if whole.is_empty() { Ok(0) } else { Err(()) }).ok()?;
    amount = amount.checked_mul(unit)?;
    let mut place = unit;
    let mut lost = false;
    for digit in fraction.bytes() {
        let digit = i128::from(digit - b'0');
        let part = place.checked_mul(digit)?;
        lost |= part % 10 != 0;
        amount = amount.checked_add(part / 10)?;
        place /= 10;
    }
    // Anything finer than a billionth is rounded up, away from zero.
    if lost {
        amount = amount.checked_add(1)?;
    }
    Some((if negative { -amount } else { amount }, format))
}

fn unit(suffix: &str) -> Option<(i128, Format)> {
    if let Some(&(_, factor)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some((factor * SCALE, Format::Binary));
    }
    if let Some(&(_, unit)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((unit, Format::Decimal));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
    let unit = if exponent < 0 { SCALE / power } else { SCALE.checked_mul(power)? };
    Some((unit, Format::Exponent))
}

fn print(amount: i128, format: &Format) -> String {
    if amount == 0 {
        return "0".to_owned();
    }
    if matches!(format, Format::Binary) && amount % SCALE == 0 && (amount / SCALE).abs() >= 1024 {
        let whole = amount / SCALE;
        let best = BINARY.iter().rev().find(|(_, factor)| whole % factor == 0);
        return match best {
            Some((name, factor)) => format!("{}{name}", whole / factor),
            None => whole.to_string(),
        };
    }
    let best = DECIMAL.iter().rev().find(|(_, unit)| amount % unit == 0);
    let (name, unit) = best.copied().unwrap_or(("n", 1));
    let number = amount / unit;
    if matches!(format, Format::Exponent) {
        let position = DECIMAL.iter().position(|entry| entry.0 == name).unwrap_or(3);
        let exponent = 3 * (i64::try_from(position).unwrap_or(3) - 3);
        return if exponent == 0 { number.to_string() } else { format!("{number}e{exponent}") };
    }
    format!("{number}{name}")
}

/// True if a time certainly has the form in which the server prints it, so that it need not be parsed: only for days
/// that every month has.
pub(crate) fn is_canonical_time(text: &str, micro: bool) -> bool {
    let form: &[u8] = if micro { b"0000-00-00T00:00:00.000000Z" } else { b"0000-00-00T00:00:00Z" };
    let text = text.as_bytes();
    let fits = |(byte, form): (&u8, &u8)| if *form == b'0' { byte.is_ascii_digit() } else { byte == form };
    if text.len() != form.len() || !text.iter().zip(form).all(fits) {
        return false;
    }
    let at = |index: usize| (text[index] - b'0') * 10 + (text[index + 1] - b'0');
    let (month, day) = (at(5), at(8));
    (1..=12).contains(&month) && (1..=28).contains(&day) && at(11) < 24 && at(14) < 60 && at(17) < 60
}

/// A time as the server prints it: in UTC, with whole seconds or exactly six digits.
pub(crate) fn canonical_time(text: &str, micro: bool) -> Result<String, String> {
    let wrong =
        |layout: &str| format!("parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\"");
    if micro {
        let layout = "2006-01-02T15:04:05.000000Z07:00";
        let digits =
            text.split_once('.').map_or(0, |(_, rest)| rest.bytes().take_while(u8::is_ascii_digit).count());
        let at: Timestamp = text.parse().map_err(|_| wrong(layout))?;
        if digits != 6 {
            return Err(wrong(layout));
        }
        return Ok(micro_time(at));
    }
    let at: Timestamp = text.parse().map_err(|_| wrong("2006-01-02T15:04:05Z07:00"))?;
    Ok(crate::object::time(at))
}

/// `metav1.MicroTime`: exactly six digits.
pub(crate) fn micro_time(at: Timestamp) -> String {
    format!("{at:.6}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, proptest};
    use proptest::{prop_assert, prop_assert_eq};

    use super::{amount, canonical, canonical_time, is_canonical_time};

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2048) })]

        #[test]
        fn any_text_is_a_quantity_or_is_refused(
            text in "\\PC{0,12}|[+-]?[0-9.]{0,45}([EPTGMkmun]|[KMGTPE]i|[eE][+-]?[0-9]{1,12})?",
        ) {
            if let Ok(first) = canonical(&text) {
                prop_assert!(first.len() < 64, "{first}");
                let again = canonical(&first);
                prop_assert_eq!(again.as_ref(), Ok(&first), "{} is not its own canonical form", first);
                prop_assert_eq!(amount(&first), amount(&text));
            }
        }

        #[test]
        fn any_text_is_a_time_or_is_refused(text in "\\PC{0,40}|[0-9TZ:.+-]{0,40}", micro in proptest::bool::ANY) {
            let _ = canonical_time(&text, micro);
        }
    }

    #[test]
    fn quantities_beyond_all_bounds_are_refused() {
        for text in
            ["170141183460469231731687303715884105727.9n", "9e29.9", "99999999999999999999999.999999E"]
        {
            assert!(canonical(text).is_err(), "{text}");
        }
    }

    #[test]
    fn quantities_take_their_canonical_form() {
        for (given, expected) in [
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1024Ki", "1Mi"),
            ("1500m", "1500m"),
            ("1", "1"),
            ("1.5Gi", "1536Mi"),
            ("0", "0"),
            ("100Ki", "100Ki"),
            ("1000", "1k"),
            ("1e3", "1e3"),
            ("-5m", "-5m"),
            ("0.1Ki", "102400m"),
        ] {
            assert_eq!(canonical(given).as_deref(), Ok(expected), "{given}");
        }
        assert!(canonical("1 Gi").is_err());
        assert!(canonical("").is_err());
        assert!(canonical("ten").is_err());
    }

    #[test]
    fn times_lose_what_the_server_does_not_keep() {
        assert_eq!(
            canonical_time("2026-01-01T01:00:00.7+01:00", false).as_deref(),
            Ok("2026-01-01T00:00:00Z")
        );
        assert_eq!(
            canonical_time("2026-01-01T00:00:00.500000Z", true).as_deref(),
            Ok("2026-01-01T00:00:00.500000Z")
        );
        assert!(canonical_time("2026-01-01T00:00:00.5Z", true).is_err());
        assert!(canonical_time("yesterday", false).is_err());
    }

    #[test]
    fn a_time_that_need_not_be_read_is_one_and_stays_as_it_is() {
        for (text, micro, expected) in [
            ("2026-01-01T00:00:00Z", false, true),
            ("2026-12-28T23:59:59Z", false, true),
            ("2026-01-01T00:00:00.500000Z", true, true),
            ("2026-01-01T00:00:00.500000Z", false, false),
            ("2026-01-01T00:00:00Z", true, false),
            ("2026-02-29T00:00:00Z", false, false),
            ("2026-13-01T00:00:00Z", false, false),
            ("2026-00-01T00:00:00Z", false, false),
            ("2026-01-01T24:00:00Z", false, false),
            ("2026-01-01T00:60:00Z", false, false),
            ("2026-01-01T00:00:60Z", false, false),
            ("2026-01-01t00:00:00Z", false, false),
            ("2026-01-01T00:00:00+", false, false),
        ] {
            assert_eq!(is_canonical_time(text, micro), expected, "{text}");
            if expected {
                assert_eq!(canonical_time(text, micro).as_deref(), Ok(text));
            }
        }
    }
}
