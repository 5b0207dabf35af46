//! Time and randomness, passed in so that one seed gives one history.

use jiff::Timestamp;

use crate::admission::hearing::Hearing;

#[derive(Debug)]
pub struct Environment<'r> {
    pub now: Timestamp,
    /// The source of UIDs and generated names.
    pub rng: &'r mut fastrand::Rng,
    /// The answers of admission webhooks to the request.
    pub(crate) hearing: Hearing,
}

impl<'r> Environment<'r> {
    /// An environment without webhook answers.
    pub fn new(now: Timestamp, rng: &'r mut fastrand::Rng) -> Self {
        Self { now, rng, hearing: Hearing::default() }
    }
}

impl Environment<'_> {
    /// A version 4 UUID.
    pub(crate) fn uid(&mut self) -> String {
        let bits = self.rng.u128(..);
        let bits = (bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
        let hex = format!("{bits:032x}");
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }

    /// Five characters that form no words, for generated names.
    pub(crate) fn suffix(&mut self) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..5).map(|_| char::from(ALPHABET[self.rng.usize(..ALPHABET.len())])).collect()
    }
}
