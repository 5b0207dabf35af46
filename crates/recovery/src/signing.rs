//! Signatures by which Salvor recognizes what it wrote itself.

use std::fmt;

use ring::hmac;

/// In bytes.
pub const KEY_LENGTH: usize = 32;

/// The keys, which all replicas share.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// Signs.
    pub current: [u8; KEY_LENGTH],
    /// Signed before a rotation; its signatures stay valid.
    pub previous: Option<[u8; KEY_LENGTH]>,
}

/// Keeps keys out of logs.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

impl Keys {
    /// The signature of these bytes, in hexadecimal digits.
    pub fn sign(&self, bytes: &[u8]) -> String {
        let tag = hmac::sign(&key(&self.current), bytes);
        tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether one of the keys signed these bytes. The comparison takes constant time, so its duration reveals nothing.
    pub fn have_signed(&self, bytes: &[u8], signature: &str) -> bool {
        let Some(tag) = unhex(signature) else { return false };
        let keys = [Some(&self.current), self.previous.as_ref()];
        keys.into_iter().flatten().any(|it| hmac::verify(&key(it), bytes, &tag).is_ok())
    }
}

fn key(bytes: &[u8; KEY_LENGTH]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, bytes)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |&[high, low]: &[u8; 2]| Some(digit(high)? << 4 | digit(low)?);
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEYS: Keys = Keys { current: [1; KEY_LENGTH], previous: Some([2; KEY_LENGTH]) };

    #[test]
    fn both_keys_count_and_the_current_one_signs() {
        let signed = KEYS.sign(b"text");
        let before = Keys { current: [2; KEY_LENGTH], previous: None };
        assert!(KEYS.have_signed(b"text", &signed) && KEYS.have_signed(b"text", &before.sign(b"text")));
        assert!(!before.have_signed(b"text", &signed) && !KEYS.have_signed(b"other", &signed));
        assert!(!KEYS.have_signed(b"text", &signed[2..]) && !KEYS.have_signed(b"text", ""));
        assert!(!format!("{KEYS:?}").contains('1'));
    }

    proptest! {
        #![proptest_config(crate::fuzz::cases(512))]

        #[test]
        fn any_text_is_a_signature_or_is_refused(text in "\\PC{0,70}|[0-9a-fA-F]{60,66}", bytes in any::<Vec<u8>>()) {
            prop_assert!(!KEYS.have_signed(&bytes, &text));
            prop_assert!(KEYS.have_signed(&bytes, &KEYS.sign(&bytes)));
        }
    }
}
