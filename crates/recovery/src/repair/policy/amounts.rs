//! Amounts of nodes: a number, or a percentage of all nodes.

use std::fmt;

use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Number(u32),
    /// From 0 to 100.
    Percent(u8),
}

impl Amount {
    /// Accepts the forms of an IntOrString: a number, a number in a string, or a percentage.
    pub fn read(value: &Value) -> Result<Self, String> {
        let bad = || {
            format!("{value} is no amount of nodes: write a number such as 2, or a percentage such as 20%")
        };
        match value {
            Value::Number(number) => {
                let number = number.as_u64().and_then(|number| u32::try_from(number).ok());
                number.map(Self::Number).ok_or_else(bad)
            }
            Value::String(text) => match text.strip_suffix('%') {
                Some(percent) => {
                    let percent = digits(percent).and_then(|percent| u8::try_from(percent).ok());
                    percent.filter(|percent| *percent <= 100).map(Self::Percent).ok_or_else(bad)
                }
                None => digits(text).map(Self::Number).ok_or_else(bad),
            },
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => Err(bad()),
        }
    }

    /// A percentage is rounded up.
    pub fn of(self, total: usize) -> usize {
        match self {
            Self::Number(number) => number as usize,
            Self::Percent(percent) => total.saturating_mul(usize::from(percent)).div_ceil(100),
        }
    }

    /// True if the amount is zero for any number of nodes.
    pub fn is_nothing(self) -> bool {
        matches!(self, Self::Number(0) | Self::Percent(0))
    }
}

fn digits(text: &str) -> Option<u32> {
    let all_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| text.parse().ok())?
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The first rows are Karpenter's table for its 20%. The last rows are those of Cluster API, but rounded up.
    #[test]
    fn a_share_is_rounded_up() {
        let cases = [
            ("20%", 0, 0),
            ("20%", 1, 1),
            ("20%", 5, 1),
            ("20%", 6, 2),
            ("20%", 10, 2),
            ("20%", 11, 3),
            ("20%", 16, 4),
            ("20%", 50, 10),
            ("20%", 100, 20),
            ("40%", 5, 2),
            ("60%", 7, 5),
            ("100%", 7, 7),
            ("0%", 7, 0),
            ("3", 7, 3),
            ("3", 1, 3),
        ];
        for (amount, total, expected) in cases {
            let amount = Amount::read(&json!(amount)).unwrap();
            assert_eq!(amount.of(total), expected, "{amount} of {total}");
        }
        assert_eq!(Amount::read(&json!(2)).unwrap(), Amount::Number(2));
        for bad in [
            json!("101%"),
            json!("-1"),
            json!(-1),
            json!("+1%"),
            json!("abc"),
            json!(""),
            json!("%"),
            json!(1.5),
            json!(null),
        ] {
            let error = Amount::read(&bad).unwrap_err();
            assert!(error.contains("write a number such as 2, or a percentage such as 20%"), "{error}");
        }
    }
}
