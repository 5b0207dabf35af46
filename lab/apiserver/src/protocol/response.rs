//! The server's answer.

use bytes::Bytes;
use http::StatusCode;

use super::status::Refusal;
use crate::store::watch::Watch;

#[derive(Debug)]
pub enum Response {
    Whole(Reply),
    Watch(Box<Watch>),
}

#[derive(Debug, Clone)]
pub struct Reply {
    pub code: StatusCode,
    pub content_type: &'static str,
    pub retry_after: Option<u32>,
    pub warnings: Vec<String>,
    pub body: Bytes,
}

impl Reply {
    pub(crate) fn new(code: StatusCode, body: Bytes) -> Self {
        Self { code, content_type: "application/json", retry_after: None, warnings: Vec::new(), body }
    }

    pub(crate) fn text(code: StatusCode, text: &'static str) -> Self {
        Self {
            content_type: "text/plain; charset=utf-8",
            ..Self::new(code, Bytes::from_static(text.as_bytes()))
        }
    }

    /// The answer that carries a refusal.
    pub fn refusal(refusal: &Refusal) -> Self {
        let code = StatusCode::from_u16(refusal.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self {
            retry_after: refusal.retry_after_seconds(),
            ..Self::new(code, crate::object::encode(&refusal.to_value()))
        }
    }
}
