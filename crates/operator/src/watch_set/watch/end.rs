//! Why a list or a watch ended.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::client::{incoming::ReadError, live};

/// Timeout that a watch requests. When the server ends the watch in time, that also proves that the server is alive.
pub(super) const WATCH_SECONDS: u64 = 60;
/// A connection that is silent for this long, past the requested timeout, is given up as half open.
pub(super) const SILENCE_ALLOWED: Duration = Duration::from_secs(WATCH_SECONDS + 15);

#[derive(Debug, thiserror::Error)]
pub(super) enum WatchEnd {
    #[error("the revision is too old")]
    Expired,
    #[error("the server has not reached the revision yet")]
    Ahead,
    #[error("a revision is lower than one that was seen before")]
    Rewound,
    #[error("{}", live::brief(.0))]
    Api(kube::Error),
    #[error("the server says {code}: {message}")]
    Refused { code: u16, message: String },
    #[error("{0}")]
    Read(#[from] ReadError),
    #[error("nothing was heard for {} seconds", SILENCE_ALLOWED.as_secs())]
    Silent,
    #[error("the watch told nothing at all")]
    Mute,
    #[error("the server closed the watch at once")]
    ClosedAtOnce,
    #[error("everything is to be read anew")]
    Asked,
    #[error("nobody listens any more")]
    Unheard,
}

pub(super) fn expired_or_api(error: kube::Error) -> WatchEnd {
    match error {
        kube::Error::Api(status) => match end_of(status.code, &status.message) {
            Some(end) => end,
            None => WatchEnd::Api(kube::Error::Api(status)),
        },
        other => WatchEnd::Api(other),
    }
}

pub(super) fn refused(status: &RawValue) -> WatchEnd {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Status {
        code: u16,
        message: String,
    }
    let Status { code, message } = serde_json::from_str(status.get()).unwrap_or_default();
    end_of(code, &message).unwrap_or(WatchEnd::Refused { code, message })
}

/// Recognizes that the server cannot start a watch from the requested revision.
fn end_of(code: u16, message: &str) -> Option<WatchEnd> {
    match code {
        410 => Some(WatchEnd::Expired),
        // The first message comes from a server that asks its watch cache, the second from one that asks etcd.
        _ if message.contains("Too large resource version") || message.contains("future revision") => {
            Some(WatchEnd::Ahead)
        }
        _ => None,
    }
}
