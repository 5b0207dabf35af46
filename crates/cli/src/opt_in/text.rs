//! Changes the text of a YAML or JSON document in place, so that comments and the order of fields stay.
//!
//! It may fail, or make a wrong text of an unusual document. Its caller reads the result and compares it with the value
//! that is wanted, so only simple cases need to be handled here.

use std::ops::Range;

use salvor_recovery::opt_in::{Edit, Segment};
use serde_json::{Value, json};
use serde_saphyr::granit_parser::{Event, Parser, Span, StructureStyle};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    Yaml,
}

/// Fields of a Job that read best right before its pod template, instead of behind its containers.
const BEFORE_THE_TEMPLATE: [&str; 3] = ["backoffLimitPerIndex", "podFailurePolicy", "podReplacementPolicy"];

/// The text of a document after a change; none if it cannot be made in place.
pub(super) fn edit(text: &str, form: Form, edit: &Edit) -> Option<String> {
    let root = tree(text)?;
    let (last, parents) = edit.at().segments().split_last()?;
    let parent = parents.iter().try_fold(&root, |node, segment| node.inner(segment))?;
    let editor = Editor { text, form, newline: if text.contains("\r\n") { "\r\n" } else { "\n" } };
    match (parent, last, edit) {
        (Node::Map(map), Segment::Field(field), Edit::Put { value, .. }) => {
            editor.put_field(map, field, value)
        }
        (Node::Map(map), Segment::Field(field), Edit::Remove { .. }) => {
            let place = map.entries.iter().position(|entry| entry.key == *field)?;
            let parts: Vec<_> = map.entries.iter().map(Entry::range).collect();
            editor.remove(map.is_flow, &parts, place, Some)
        }
        (Node::List(list), Segment::Index(index), Edit::Put { value, .. }) => {
            editor.put_item(list, *index, value)
        }
        (Node::List(list), Segment::Index(index), Edit::Remove { .. }) => {
            let parts: Vec<_> = list.items.iter().map(Node::range).collect();
            editor.remove(list.is_flow, &parts, *index, |start| editor.dash_before(start))
        }
        (Node::Map(_) | Node::List(_) | Node::Scalar(_) | Node::Alias(_), _, _) => None,
    }
}

/// A value, with its place in the text as bytes.
#[derive(Debug)]
enum Node {
    /// Empty if nothing is written.
    Scalar(Range<usize>),
    Alias(Range<usize>),
    Map(MapNode),
    List(ListNode),
}

#[derive(Debug)]
struct MapNode {
    is_flow: bool,
    range: Range<usize>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    key: String,
    key_range: Range<usize>,
    value: Node,
}

#[derive(Debug)]
struct ListNode {
    is_flow: bool,
    range: Range<usize>,
    items: Vec<Node>,
}

impl Node {
    /// From its first character to the end of its last line, without comments behind it.
    fn range(&self) -> Range<usize> {
        match self {
            Self::Scalar(range) | Self::Alias(range) => range.clone(),
            Self::Map(map) => map.range.clone(),
            Self::List(list) => list.range.clone(),
        }
    }

    fn inner(&self, segment: &Segment) -> Option<&Self> {
        match (self, segment) {
            (Self::Map(map), Segment::Field(field)) => {
                map.entries.iter().find(|entry| entry.key == *field).map(|entry| &entry.value)
            }
            (Self::List(list), Segment::Index(index)) => list.items.get(*index),
            (Self::Map(_) | Self::List(_) | Self::Scalar(_) | Self::Alias(_), _) => None,
        }
    }
}

impl Entry {
    fn range(&self) -> Range<usize> {
        self.key_range.start..self.value.range().end.max(self.key_range.end)
    }
}

type Events<'t> = std::vec::IntoIter<(Event<'t>, Span)>;

/// The value of a text with one document.
fn tree(text: &str) -> Option<Node> {
    let mut events = Parser::new_from_str(text).collect::<Result<Vec<_>, _>>().ok()?;
    // Comments are events too.
    events.retain(|(event, _)| is_of_value(event));
    let mut events = events.into_iter();
    let (event, span) = events.next()?;
    node(text, &event, &span, &mut events)
}

fn is_of_value(event: &Event<'_>) -> bool {
    matches!(
        event,
        Event::Alias(_)
            | Event::Scalar(..)
            | Event::SequenceStart(..)
            | Event::SequenceEnd
            | Event::MappingStart(..)
            | Event::MappingEnd
    )
}

fn node(text: &str, event: &Event<'_>, span: &Span, events: &mut Events<'_>) -> Option<Node> {
    let range = span.byte_range()?;
    match event {
        Event::Alias(_) => Some(Node::Alias(range)),
        Event::Scalar(..) => {
            // The place of a value that is not written is that of the next token.
            let written = text.get(range.clone())?.trim_end();
            Some(Node::Scalar(if written.is_empty() {
                0..0
            } else {
                range.start..range.start + written.len()
            }))
        }
        Event::SequenceStart(style, ..) => {
            let mut items = Vec::new();
            let end = loop {
                let (event, span) = events.next()?;
                if event == Event::SequenceEnd {
                    break span.byte_range()?.end;
                }
                items.push(node(text, &event, &span, events)?);
            };
            let is_flow = *style == StructureStyle::Flow;
            let inner =
                items.first().map_or(0, |it| it.range().start)..items.last().map_or(0, |it| it.range().end);
            Some(Node::List(ListNode {
                is_flow,
                range: if is_flow { range.start..end } else { inner },
                items,
            }))
        }
        Event::MappingStart(style, ..) => {
            let mut entries: Vec<Entry> = Vec::new();
            let end = loop {
                let (event, span) = events.next()?;
                let (key, key_range) = match event {
                    Event::MappingEnd => break span.byte_range()?.end,
                    Event::Scalar(key, ..) => (key.into_owned(), span.byte_range()?),
                    _ => return None,
                };
                let colon = key_range.end + text.get(key_range.end..)?.find(':')? + 1;
                let (event, span) = events.next()?;
                let value = node(text, &event, &span, events)?;
                entries.push(Entry { key, key_range: key_range.start..colon, value });
            };
            let is_flow = *style == StructureStyle::Flow;
            let inner = entries.first().map_or(0, |it| it.range().start)
                ..entries.last().map_or(0, |it| it.range().end);
            Some(Node::Map(MapNode {
                is_flow,
                range: if is_flow { range.start..end } else { inner },
                entries,
            }))
        }
        _ => None,
    }
}

struct Editor<'t> {
    text: &'t str,
    form: Form,
    newline: &'static str,
}

impl Editor<'_> {
    fn replace(&self, range: Range<usize>, with: &str) -> Option<String> {
        let (before, after) = (self.text.get(..range.start)?, self.text.get(range.end..)?);
        Some(format!("{before}{with}{after}"))
    }

    fn line_start(&self, at: usize) -> usize {
        self.text[..at].rfind('\n').map_or(0, |end| end + 1)
    }

    /// Where the line ends, before its line break.
    fn line_end(&self, at: usize) -> usize {
        let end = self.text[at..].find('\n').map_or(self.text.len(), |length| at + length);
        end - usize::from(self.text[..end].ends_with('\r'))
    }

    /// The first character behind the line.
    fn next_line(&self, at: usize) -> usize {
        self.text[at..].find('\n').map_or(self.text.len(), |length| at + length + 1)
    }

    fn indent(&self, at: usize) -> String {
        " ".repeat(at - self.line_start(at))
    }

    fn is_first_on_its_line(&self, at: usize) -> bool {
        self.text[self.line_start(at)..at].trim().is_empty()
    }

    fn joined(&self, lines: &[String], indent: &str) -> String {
        lines.join(&format!("{}{indent}", self.newline))
    }

    /// Inserts lines before something in block style, and before the comments above it.
    fn insert_before(&self, at: usize, lines: &[String]) -> Option<String> {
        let indent = self.indent(at);
        let lines = self.joined(lines, &indent);
        if !self.is_first_on_its_line(at) {
            return self.replace(at..at, &format!("{lines}{}{indent}", self.newline));
        }
        let mut place = self.line_start(at);
        while place > 0 {
            let above = self.line_start(place - 1);
            if !self.text[above..place].starts_with(&format!("{indent}#")) {
                break;
            }
            place = above;
        }
        self.replace(place..place, &format!("{indent}{lines}{}", self.newline))
    }

    fn insert_after(&self, end: usize, indent: &str, lines: &[String]) -> Option<String> {
        let place = self.line_end(end);
        self.replace(place..place, &format!("{}{indent}{}", self.newline, self.joined(lines, indent)))
    }

    fn put_field(&self, map: &MapNode, field: &str, value: &Value) -> Option<String> {
        let here = map.entries.iter().find(|entry| entry.key == field);
        if map.is_flow {
            return match here {
                Some(entry) => self.replace(entry.range(), &self.flow_entry(field, value, "")),
                None => {
                    let first = map.entries.first().map(|entry| entry.key_range.start);
                    self.insert_into_flow(&map.range, first, |pad| self.flow_entry(field, value, pad))
                }
            };
        }
        let first = map.entries.first()?.key_range.start;
        let lines = block(&json!({field: value}))?;
        if let Some(entry) = here {
            return self.replace(entry.range(), &self.joined(&lines, &self.indent(first)));
        }
        let template = map.entries.iter().find(|entry| entry.key == "template");
        match template.filter(|_| BEFORE_THE_TEMPLATE.contains(&field)) {
            Some(template) => self.insert_before(template.key_range.start, &lines),
            None if field == "metadata" => self.insert_before(first, &lines),
            None => self.insert_after(map.range.end, &self.indent(first), &lines),
        }
    }

    fn put_item(&self, list: &ListNode, index: usize, value: &Value) -> Option<String> {
        let at = list.items.get(index).map(|item| item.range().start);
        if list.is_flow {
            return match (at, list.items.last()) {
                (None, Some(last)) => {
                    let end = last.range().end;
                    self.replace(end..end, &format!(", {}", self.flow(value)))
                }
                (at, _) => self.insert_into_flow(&list.range, at, |pad| self.pretty(value, pad)),
            };
        }
        let lines = block(value)?.into_iter().enumerate();
        let lines: Vec<_> = lines
            .map(|(place, line)| if place == 0 { format!("- {line}") } else { format!("  {line}") })
            .collect();
        match at {
            Some(at) => self.insert_before(self.dash_before(at)?, &lines),
            None => {
                let first = self.dash_before(list.items.first()?.range().start)?;
                self.insert_after(list.range.end, &self.indent(first), &lines)
            }
        }
    }

    /// The `-` of an entry of a list that begins here.
    fn dash_before(&self, at: usize) -> Option<usize> {
        let line = self.line_start(at);
        let before = self.text[line..at].trim_end();
        before.ends_with('-').then(|| line + before.len() - 1)
    }

    /// Inserts before the first part of a flow collection, on a line of its own if that one is.
    fn insert_into_flow(
        &self,
        range: &Range<usize>,
        first: Option<usize>,
        entry: impl Fn(&str) -> String,
    ) -> Option<String> {
        let Some(first) = first else {
            return self.replace(range.start + 1..range.start + 1, &entry(""));
        };
        let line = self.line_start(first);
        if line > range.start && self.is_first_on_its_line(first) {
            let pad = &self.text[line..first];
            return self.replace(first..first, &format!("{},{}{pad}", entry(pad), self.newline));
        }
        self.replace(first..first, &format!("{}, ", entry("")))
    }

    fn flow_entry(&self, field: &str, value: &Value, pad: &str) -> String {
        format!("{}: {}", self.flow_key(field), self.pretty(value, pad))
    }

    fn flow_key(&self, field: &str) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '-' | '_');
        match self.form {
            Form::Yaml
                if field.starts_with(|c: char| c.is_ascii_alphabetic()) && field.chars().all(is_plain) =>
            {
                field.to_owned()
            }
            Form::Yaml | Form::Json => Value::from(field).to_string(),
        }
    }

    /// On several lines in JSON that is on several lines.
    fn pretty(&self, value: &Value, pad: &str) -> String {
        match (self.form, pad, serde_json::to_string_pretty(value)) {
            (Form::Json, "", _) | (Form::Yaml, _, _) | (Form::Json, _, Err(_)) => self.flow(value),
            (Form::Json, pad, Ok(text)) => text.replace('\n', &format!("{}{pad}", self.newline)),
        }
    }

    fn flow(&self, value: &Value) -> String {
        match (self.form, value) {
            (Form::Yaml, Value::Object(fields)) => {
                let fields =
                    fields.iter().map(|(key, value)| format!("{}: {}", self.flow_key(key), self.flow(value)));
                format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
            }
            (Form::Yaml, Value::Array(items)) => {
                let items: Vec<_> = items.iter().map(|item| self.flow(item)).collect();
                format!("[{}]", items.join(", "))
            }
            (Form::Yaml | Form::Json, other) => other.to_string(),
        }
    }

    /// Removes a part of a collection. `start` finds where a part in block style really begins.
    fn remove(
        &self,
        is_flow: bool,
        parts: &[Range<usize>],
        place: usize,
        start: impl Fn(usize) -> Option<usize>,
    ) -> Option<String> {
        let part = parts.get(place)?;
        let next = parts.get(place + 1);
        if is_flow {
            let before = place.checked_sub(1).and_then(|before| parts.get(before));
            return match (next, before) {
                (Some(next), _) => self.replace(part.start..next.start, ""),
                (None, Some(before)) => self.replace(before.end..part.end, ""),
                (None, None) => self.replace(part.clone(), ""),
            };
        }
        let first = start(part.start)?;
        if self.is_first_on_its_line(first) {
            return self.replace(self.line_start(first)..self.next_line(part.end), "");
        }
        self.replace(first..start(next?.start)?, "")
    }
}

/// A value as lines of YAML in block style.
fn block(value: &Value) -> Option<Vec<String>> {
    let text = serde_saphyr::to_string(value).ok()?;
    Some(text.trim_end().lines().map(str::to_owned).collect())
}
