//! The string formats that a schema may require.

use std::net::{Ipv4Addr, Ipv6Addr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::kinds::metadata::is_subdomain;

/// True if a text has a format. Unknown formats accept everything.
pub(crate) fn fits(format: &str, text: &str) -> bool {
    match format.replace('-', "").as_str() {
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uuid" => is_uuid(text, None),
        "uuid3" => is_uuid(text, Some(b'3')),
        "uuid4" => is_uuid(text, Some(b'4')),
        "uuid5" => is_uuid(text, Some(b'5')),
        "hostname" => is_hostname(text),
        "email" => is_email(text),
        "uri" => is_uri(text),
        "byte" => STANDARD.decode(text).is_ok() && !text.is_empty(),
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "datetime" => text.contains(['T', 't']) && text.parse::<jiff::Timestamp>().is_ok(),
        "duration" => is_duration(text),
        "hexcolor" => is_hex_colour(text),
        "k8sshortname" => text.len() <= 63 && !text.contains('.') && is_subdomain(text),
        "k8slongname" => is_subdomain(text),
        _ => true,
    }
}

/// The formats that are checked here, or by the real server.
const KNOWN: &[&str] = &[
    "bsonobjectid",
    "byte",
    "cidr",
    "creditcard",
    "date",
    "datetime",
    "duration",
    "email",
    "hexcolor",
    "hostname",
    "ipv4",
    "ipv6",
    "isbn",
    "isbn10",
    "isbn13",
    "k8slongname",
    "k8sshortname",
    "mac",
    "password",
    "rgbcolor",
    "ssn",
    "uri",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
];

/// The formats in a schema that are unknown and therefore not checked.
pub(crate) fn unknown(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(format) = schema.get("format").and_then(Value::as_str) {
        let is_known = match schema.get("type").and_then(Value::as_str).unwrap_or("") {
            "" | "string" => KNOWN.contains(&format.replace('-', "").as_str()),
            "integer" => ["int32", "int64"].contains(&format),
            "number" => ["float", "double"].contains(&format),
            _ => false,
        };
        if !is_known {
            found.push(format.to_owned());
        }
    }
    let fields = schema.get("properties").and_then(Value::as_object);
    let below = ["items", "additionalProperties"].iter().filter_map(|key| schema.get(*key));
    found.extend(fields.into_iter().flat_map(|fields| fields.values()).chain(below).flat_map(unknown));
    found
}

fn is_cidr(text: &str) -> bool {
    text.split_once('/').is_some_and(|(address, bits)| {
        let most = if address.parse::<Ipv4Addr>().is_ok() {
            32
        } else if address.parse::<Ipv6Addr>().is_ok() {
            128
        } else {
            return false;
        };
        bits.parse::<u8>().is_ok_and(|bits| bits <= most)
    })
}

fn is_mac(text: &str) -> bool {
    [':', '-'].iter().any(|separator| {
        let parts: Vec<&str> = text.split(*separator).collect();
        [6, 8, 20].contains(&parts.len())
            && parts.iter().all(|part| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
    })
}

/// Dashes may be left out.
fn is_uuid(text: &str, version: Option<u8>) -> bool {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    let dashes = text.len() - digits.len();
    let at = |index: usize| digits.get(index).copied();
    digits.len() == 32
        && dashes <= 4
        && digits.iter().all(u8::is_ascii_hexdigit)
        && version.is_none_or(|version| at(12) == Some(version))
        && (matches!(version, None | Some(b'3')) || at(16).is_some_and(|digit| b"89abAB".contains(&digit)))
}

fn is_hostname(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    text.len() <= 255 && text.trim_end_matches('.').split('.').all(is_label)
}

fn is_email(text: &str) -> bool {
    text.rsplit_once('@').is_some_and(|(user, host)| {
        !user.is_empty() && !host.is_empty() && !text.contains(char::is_whitespace)
    })
}

fn is_uri(text: &str) -> bool {
    let has_scheme = text.split_once(':').is_some_and(|(scheme, rest)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
            && !rest.is_empty()
    });
    (has_scheme || text.starts_with('/')) && !text.contains(char::is_whitespace)
}

/// A Go duration: numbers with units, one after the other.
fn is_duration(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let mut rest = text;
    if text == "0" {
        return true;
    }
    while !rest.is_empty() {
        let digits = rest.trim_start_matches(|next: char| next.is_ascii_digit() || next == '.');
        if digits.len() == rest.len() {
            return false;
        }
        let after = digits.trim_start_matches(' ');
        let unit = after.find(|next: char| !next.is_alphabetic()).unwrap_or(after.len());
        let (unit, left) = after.split_at(unit);
        if !["ns", "us", "µs", "ms", "s", "m", "h", "d", "w"].contains(&unit) {
            return false;
        }
        rest = left;
    }
    !text.is_empty()
}

fn is_hex_colour(text: &str) -> bool {
    let digits = text.strip_prefix('#').unwrap_or(text);
    [3, 6].contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_tell_right_from_wrong() {
        for (format, right, wrong) in [
            ("ipv4", "10.0.0.1", "10.0.0"),
            ("ipv6", "::1", "10.0.0.1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("mac", "00:00:5e:00:53:01", "00:00:5e"),
            ("uuid", "11111111-2222-3333-4444-555555555555", "1111"),
            ("uuid4", "11111111-2222-4333-8444-555555555555", "11111111-2222-3333-8444-555555555555"),
            ("hostname", "a.example.com", "a_b"),
            ("email", "a@example.com", "a"),
            ("uri", "https://example.com/x", "no uri"),
            ("byte", "AAEC", "?"),
            ("date", "2019-01-31", "2019-02-31"),
            ("date-time", "2019-01-31T00:00:00Z", "2019-01-31"),
            ("duration", "1h30m", "1 year"),
            ("hexcolor", "#fff", "#ff"),
            ("k8s-short-name", "a-b", "A.b"),
        ] {
            assert!(fits(format, right), "{right} is no {format}");
            assert!(!fits(format, wrong), "{wrong} is a {format}");
        }
        assert!(fits("colour", "anything"));
    }
}
