//! Reads the validity of a certificate: the only field needed from certificates that others made.
//!
//! A certificate is nested DER values, each a tag, a length and a content. The validity is the fifth value of its first
//! one.

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

const SEQUENCE: u8 = 0x30;
/// The version, which version 1 omits.
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// `None` if it is no certificate.
pub(super) fn validity(certificate: &[u8]) -> Option<Validity> {
    let (content, _) = value(certificate, SEQUENCE)?;
    let (mut rest, _) = value(content, SEQUENCE)?;
    if rest.first() == Some(&VERSION) {
        (_, _, rest) = any(rest)?;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        (_, _, rest) = any(rest)?;
    }
    let (times, _) = value(rest, SEQUENCE)?;
    let (tag, from, rest) = any(times)?;
    let from = time(tag, from)?;
    let (tag, until, _) = any(rest)?;
    Some(Validity { from, until: time(tag, until)? })
}

/// The tag and content of the first value, and the rest.
fn any(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first & 0x80 != 0 {
        // The number of length bytes; no certificate needs more than four.
        let digits = usize::from(first & 0x7f);
        if !(1..=4).contains(&digits) {
            return None;
        }
        let (head, tail) = rest.split_at_checked(digits)?;
        length = head.iter().fold(0, |length, &byte| length << 8 | usize::from(byte));
        rest = tail;
    }
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// The content of the first value, which must have this tag, and the rest.
fn value(bytes: &[u8], wanted: u8) -> Option<(&[u8], &[u8])> {
    any(bytes).filter(|(tag, ..)| *tag == wanted).map(|(_, content, rest)| (content, rest))
}

/// For example `261116084500Z`, or with four digits for the year.
fn time(tag: u8, content: &[u8]) -> Option<Timestamp> {
    let digits = content.strip_suffix(b"Z")?;
    let number = |digits: &[u8]| {
        digits.iter().try_fold(0i16, |number, byte| {
            byte.is_ascii_digit().then(|| number * 10 + i16::from(byte - b'0'))
        })
    };
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = digits.split_at_checked(2)?;
            let year = number(year)?;
            // RFC 5280: two-digit years are 1950 to 2049.
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = digits.split_at_checked(4)?;
            (number(year)?, rest)
        }
        _ => return None,
    };
    if rest.len() != 10 {
        return None;
    }
    let mut parts = rest.chunks(2).map(|digits| number(digits).and_then(|number| i8::try_from(number).ok()));
    let mut part = || parts.next().flatten();
    let time = DateTime::new(year, part()?, part()?, part()?, part()?, part()?, 0).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(from: (i32, u8, u8), until: (i32, u8, u8)) -> Vec<u8> {
        let mut params = CertificateParams::new(["a".to_owned()]).unwrap();
        params.not_before = date_time_ymd(from.0, from.1, from.2);
        params.not_after = date_time_ymd(until.0, until.1, until.2);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn both_forms_of_a_time_are_read() {
        let read = validity(&certificate((1999, 12, 31), (2049, 2, 28))).unwrap();
        assert_eq!(read.from, "1999-12-31T00:00:00Z".parse().unwrap());
        assert_eq!(read.until, "2049-02-28T00:00:00Z".parse().unwrap());
        let read = validity(&certificate((2050, 1, 1), (4096, 1, 1))).unwrap();
        assert_eq!(read.from, "2050-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(read.until, "4096-01-01T00:00:00Z".parse().unwrap());
    }

    #[test]
    fn garbage_is_no_certificate_wherever_it_begins() {
        let good = certificate((2020, 1, 1), (2030, 1, 1));
        for length in 0..good.len() {
            // Truncated or damaged input must not panic.
            assert_eq!(validity(&good[..length]), None, "{length}");
            for byte in [0x00, 0x80, 0x84, 0xff] {
                let mut damaged = good.clone();
                damaged[length] = byte;
                let _ = validity(&damaged);
            }
        }
        assert_eq!(validity(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
