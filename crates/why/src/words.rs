/// `1 pod`, `2 pods`.
pub(crate) fn counted(count: usize, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

pub(crate) fn verb(count: usize, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        let told = |count| format!("{} {}", counted(count, "pod"), verb(count, "waits", "wait"));
        assert_eq!([0, 1, 2].map(told), ["0 pods wait", "1 pod waits", "2 pods wait"]);
    }
}
