//! Unique names.

use std::hash::{BuildHasher, RandomState};

/// A number from the operating system's randomness, by way of the standard library's hash seeds.
pub(crate) fn number() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// `length` characters (at most 13) that are valid in any Kubernetes name.
pub(crate) fn suffix(length: usize) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut bits = number();
    (0..length.min(13))
        .map(|_| {
            let character = ALPHABET[(bits % 32) as usize];
            bits /= 32;
            char::from(character)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn a_thousand_suffixes_are_all_different() {
        let seen: BTreeSet<String> = (0..1000).map(|_| super::suffix(10)).collect();
        assert_eq!(seen.len(), 1000);
        assert!(seen.iter().all(|suffix| suffix.len() == 10));
    }
}
