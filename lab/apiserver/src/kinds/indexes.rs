//! Indexes of an Indexed Job in the form of its status and its success policy: `1,3-5,7`.

/// The number of indexes that a text names.
///
/// # Errors
/// If it is malformed or names an index that the Job does not have, with the server's message.
pub(crate) fn count(text: &str, completions: i64) -> Result<i64, String> {
    let mut total = 0;
    let mut last = None;
    if text.is_empty() {
        return Ok(0);
    }
    for part in text.split(',') {
        let (first, end) = interval(part, completions)?;
        if let Some(last) = last
            && last >= first
        {
            return Err(format!("non-increasing order, previous: {last}, current: {first}"));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

/// The first index that is in both texts. Parts that cannot be parsed are for [`count`] to report.
pub(crate) fn overlap(one: &str, other: &str, completions: i64) -> Option<i64> {
    let read = |text: &str| -> Vec<(i64, i64)> {
        text.split(',').filter_map(|part| interval(part, completions).ok()).collect()
    };
    let (ones, others) = (read(one), read(other));
    let mut ones = ones.iter().peekable();
    let mut others = others.iter().peekable();
    while let (Some(&&(first, last)), Some(&&(from, to))) = (ones.peek(), others.peek()) {
        if first <= to && from <= last {
            return Some(first.max(from));
        }
        if first <= from {
            ones.next();
        } else {
            others.next();
        }
    }
    None
}

fn interval(text: &str, completions: i64) -> Result<(i64, i64), String> {
    let parts: Vec<&str> = text.split('-').collect();
    let number = |text: &str| -> Result<i64, String> {
        let number = text
            .parse::<i64>()
            .map_err(|_| format!("cannot convert string to integer for index: {text:?}"))?;
        if number >= completions {
            return Err(format!("too large index: {text:?}"));
        }
        Ok(number)
    };
    match parts.as_slice() {
        [only] => number(only).map(|index| (index, index)),
        [first, last] => {
            let (first, last) = (number(first)?, number(last)?);
            if first >= last {
                return Err(format!("non-increasing order, previous: {first}, current: {last}"));
            }
            Ok((first, last))
        }
        _ => Err(format!(
            "the fragment {text:?} violates the requirement that an index interval can have at most two parts separated by '-'"
        )),
    }
}
