//! Kubernetes' protobuf form of requests, which newer clients send for built-in kinds. Answers are JSON, which every
//! client reads.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::schema::structs::{self, Field, Kind};

pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

const MAGIC: &[u8] = b"k8s\0";

/// No message is nested deeper than this.
const DEEPEST: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("provided data does not appear to be a protobuf message, expected prefix {MAGIC:?}")]
    Magic,
    #[error("unexpected EOF")]
    Short,
    #[error("proto: illegal wireType {0}")]
    WireType(u64),
    #[error("no kind {kind:?} is known in version {api_version:?}")]
    UnknownKind { api_version: String, kind: String },
    #[error("the message is nested too deeply")]
    Deep,
    #[error("the text or JSON within the message cannot be read: {0}")]
    Content(String),
}

/// Decodes an object.
///
/// # Errors
/// If the bytes are no message, or are of an unknown kind.
pub(crate) fn decode(bytes: &[u8]) -> Result<Value, Unreadable> {
    let message = bytes.strip_prefix(MAGIC).ok_or(Unreadable::Magic)?;
    let (mut api_version, mut kind, mut raw): (String, String, &[u8]) = (String::new(), String::new(), &[]);
    for field in Fields(message) {
        match field? {
            (1, Content::Bytes(types)) => {
                for field in Fields(types) {
                    match field? {
                        (1, Content::Bytes(bytes)) => api_version = text(bytes)?,
                        (2, Content::Bytes(bytes)) => kind = text(bytes)?,
                        _ => {}
                    }
                }
            }
            (2, Content::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let structure = structure(&api_version, &kind);
    let fields = structs::fields(&structure);
    if fields.is_empty() {
        return Err(Unreadable::UnknownKind { api_version, kind });
    }
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), json!(api_version));
    object.insert("kind".to_owned(), json!(kind));
    read(fields, raw, &mut object, DEEPEST)?;
    Ok(Value::Object(object))
}

/// `apps/v1` and `Deployment` become `apps.v1.Deployment`. Options have the group of their resource.
fn structure(api_version: &str, kind: &str) -> String {
    if kind == "DeleteOptions" {
        return format!("meta.v1.{kind}");
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
    let package = group.split('.').next().unwrap_or(group);
    format!("{package}.{version}.{kind}")
}

fn text(bytes: &[u8]) -> Result<String, Unreadable> {
    String::from_utf8(bytes.to_vec()).map_err(|error| Unreadable::Content(error.to_string()))
}

/// The wire type of a field.
#[derive(Debug, Clone, Copy)]
enum Content<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

/// The fields of a message, in order.
struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    fn varint(&mut self) -> Result<u64, Unreadable> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Unreadable::Short)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Unreadable::Short)
    }

    fn take(&mut self, count: usize) -> Result<&'b [u8], Unreadable> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Unreadable::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn fixed(&mut self, count: usize) -> Result<u64, Unreadable> {
        let bytes = self.take(count)?;
        Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn field(&mut self) -> Result<(u64, Content<'b>), Unreadable> {
        let tag = self.varint()?;
        let content = match tag & 7 {
            0 => Content::Number(self.varint()?),
            1 => Content::Number(self.fixed(8)?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Unreadable::Short)?;
                Content::Bytes(self.take(length)?)
            }
            5 => Content::Number(self.fixed(4)?),
            other => return Err(Unreadable::WireType(other)),
        };
        Ok((tag >> 3, content))
    }
}

impl<'b> Iterator for Fields<'b> {
    type Item = Result<(u64, Content<'b>), Unreadable>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// Decodes the fields of a message into an object. Unknown fields are skipped, as on the real server.
fn read(
    known: &[Field],
    bytes: &[u8],
    object: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), Unreadable> {
    let depth = depth.checked_sub(1).ok_or(Unreadable::Deep)?;
    for field in Fields(bytes) {
        let (number, content) = field?;
        let Some(field) = known.iter().find(|field| field.number == number) else {
            continue;
        };
        match (&field.kind, content) {
            (Kind::Structure(inner), Content::Bytes(bytes)) if field.is_inline() => {
                read(structs::fields(inner), bytes, object, depth)?;
            }
            (Kind::List(element), content) => {
                let list = object.entry(field.name).or_insert_with(|| json!([]));
                let packed = matches!(**element, Kind::Integer | Kind::Boolean);
                if let Value::Array(list) = list {
                    match content {
                        Content::Bytes(bytes) if packed => {
                            let mut numbers = Fields(bytes);
                            while !numbers.0.is_empty() {
                                list.push(value(element, Content::Number(numbers.varint()?), depth)?);
                            }
                        }
                        content => list.push(value(element, content, depth)?),
                    }
                }
            }
            (Kind::Map(values), Content::Bytes(bytes)) => {
                let map = object.entry(field.name).or_insert_with(|| json!({}));
                let (key, value) = entry(values, bytes, depth)?;
                map[key] = value;
            }
            (kind, content) => {
                let value = value(kind, content, depth)?;
                let is_zero = value.is_null()
                    || (field.vanishes_when_zero() && [json!(""), json!(0), json!(false)].contains(&value));
                if !is_zero {
                    object.insert(field.name.to_owned(), value);
                }
            }
        }
    }
    Ok(())
}

/// A key of a map and its value.
fn entry(values: &Kind, bytes: &[u8], depth: usize) -> Result<(String, Value), Unreadable> {
    let mut key = String::new();
    let mut found = None;
    for field in Fields(bytes) {
        match field? {
            (1, Content::Bytes(bytes)) => key = text(bytes)?,
            (2, content) => found = Some(value(values, content, depth)?),
            _ => {}
        }
    }
    Ok((key, found.unwrap_or_else(|| json!(""))))
}

fn value(kind: &Kind, content: Content<'_>, depth: usize) -> Result<Value, Unreadable> {
    Ok(match (kind, content) {
        (Kind::Text, Content::Bytes(bytes)) => json!(text(bytes)?),
        (Kind::Bytes, Content::Bytes(bytes)) => json!(STANDARD.encode(bytes)),
        (Kind::Integer, Content::Number(number)) => json!(number.cast_signed()),
        (Kind::Boolean, Content::Number(number)) => json!(number != 0),
        (Kind::Double, Content::Number(bits)) => json!(f64::from_bits(bits)),
        (Kind::Time | Kind::MicroTime, Content::Bytes(bytes)) => time(kind, bytes)?,
        (Kind::Quantity, Content::Bytes(bytes)) => first(&Kind::Text, bytes, 1, depth)?,
        (Kind::IntOrString, Content::Bytes(bytes)) => {
            let is_text = first(&Kind::Integer, bytes, 1, depth)? == json!(1);
            let (kind, number) = if is_text { (Kind::Text, 3) } else { (Kind::Integer, 2) };
            first(&kind, bytes, number, depth)?
        }
        (Kind::Raw, Content::Bytes(bytes)) => {
            let raw = Fields(bytes).find_map(|field| match field {
                Ok((1, Content::Bytes(bytes))) => Some(bytes),
                _ => None,
            });
            match raw {
                None | Some([]) => Value::Null,
                Some(raw) => {
                    serde_json::from_slice(raw).map_err(|error| Unreadable::Content(error.to_string()))?
                }
            }
        }
        (Kind::Structure(name), Content::Bytes(bytes)) => {
            let mut object = Map::new();
            read(structs::fields(name), bytes, &mut object, depth)?;
            Value::Object(object)
        }
        _ => return Err(Unreadable::Content("a field has another type than its kind says".to_owned())),
    })
}

/// The field of a small message with this number.
fn first(kind: &Kind, bytes: &[u8], number: u64, depth: usize) -> Result<Value, Unreadable> {
    let found = Fields(bytes).find_map(|field| match field {
        Ok((known, content)) if known == number => Some(value(kind, content, depth)),
        Err(error) => Some(Err(error)),
        Ok(_) => None,
    });
    found.unwrap_or(Ok(match kind {
        Kind::Text => json!(""),
        _ => json!(0),
    }))
}

/// Seconds and nanoseconds; an empty message is no time.
fn time(kind: &Kind, bytes: &[u8]) -> Result<Value, Unreadable> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let part = |number| first(&Kind::Integer, bytes, number, 1).map(|part| part.as_i64().unwrap_or(0));
    let (seconds, nanoseconds) = (part(1)?, part(2)?);
    let nanoseconds = i32::try_from(nanoseconds).unwrap_or(0);
    let at = Timestamp::new(seconds, nanoseconds).map_err(|error| Unreadable::Content(error.to_string()))?;
    Ok(match kind {
        Kind::MicroTime => json!(format!("{at:.6}")),
        _ => json!(crate::object::time(at)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).unwrap();
        [&[number << 3 | 2, length], content].concat()
    }

    fn message(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let types = [bytes(1, api_version.as_bytes()), bytes(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), bytes(1, &types), bytes(2, raw)].concat()
    }

    #[test]
    fn an_eviction_is_read() {
        let metadata = [bytes(1, b"web"), bytes(3, b"work"), bytes(2, b"")].concat();
        let options = [vec![1 << 3, 30], bytes(2, &bytes(1, b"uid"))].concat();
        let raw = [bytes(1, &metadata), bytes(2, &options)].concat();
        assert_eq!(
            decode(&message("policy/v1", "Eviction", &raw)).unwrap(),
            json!({
                "apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": { "name": "web", "namespace": "work" },
                "deleteOptions": { "gracePeriodSeconds": 30, "preconditions": { "uid": "uid" } },
            })
        );
    }

    #[test]
    fn what_is_no_message_is_refused_and_never_a_panic() {
        assert_eq!(decode(b"{}"), Err(Unreadable::Magic));
        let whole = message("v1", "ConfigMap", &bytes(1, &bytes(1, b"a")));
        for end in 0..whole.len() {
            let _ = decode(&whole[..end]);
        }
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..2_000 {
            let noise: Vec<u8> = (0..rng.usize(..60)).map(|_| rng.u8(..)).collect();
            let _ = decode(&message("v1", "Pod", &noise));
        }
        let unknown = decode(&message("v1", "Nothing", b""));
        assert!(matches!(unknown, Err(Unreadable::UnknownKind { .. })), "{unknown:?}");
    }
}
