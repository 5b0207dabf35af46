//! A section of the configuration file, and the rows of its fields.

/// One field of the configuration file.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The path of the field, with `[]` for every entry of a list.
    pub path: &'static str,
    /// The accepted values.
    pub kind: Kind,
    /// The default.
    pub presence: Presence,
    /// The description, in one paragraph.
    pub doc: &'static str,
}

/// The accepted values of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number in this range, inclusive.
    Integer(u32, u32),
    /// A string that is not empty.
    Text,
    /// A string, which may be empty.
    TextOrNothing,
    /// A Go duration.
    Duration,
    /// A Go duration, or a number of nanoseconds as in CodeFlare's configuration.
    DurationOrNanoseconds,
    /// An IP address and port.
    Address,
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// A list of strings.
    TextList,
    /// A map of strings.
    TextMap,
    /// A map from the names of feature gates to booleans.
    Gates,
    /// A Kubernetes label selector.
    Selector,
    /// A map from resources to lists of taints.
    TaintMap,
    /// An object whose fields are in the table.
    Object,
    /// An object with exactly one field.
    OneOf,
    /// A list whose entries are in the table.
    List,
}

/// The default of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// This value, as YAML.
    Default(&'static str),
    /// There is no default: the field must be set.
    Required,
    /// There is no default: the field may be omitted and then has no effect.
    Optional,
    /// The nested fields have defaults of their own.
    Parent,
}

pub(super) struct Section {
    /// Its rows in the table of fields. The first row is the section itself.
    pub(super) fields: &'static [Field],
    /// An example for each list of the section that is not inside another list.
    pub(super) examples: &'static [(&'static str, &'static str)],
}

pub(super) const fn field(path: &'static str, kind: Kind, presence: Presence, doc: &'static str) -> Field {
    Field { path, kind, presence, doc }
}

impl Kind {
    fn describe(self) -> String {
        match self {
            Self::Bool => "true or false".into(),
            Self::Integer(least, u32::MAX) => format!("whole number, at least {least}"),
            Self::Integer(least, most) => format!("whole number, {least} to {most}"),
            Self::Text | Self::TextOrNothing => "string".into(),
            Self::DurationOrNanoseconds => "duration, such as `1m30s`, or whole number of nanoseconds".into(),
            Self::Duration => "duration, such as `1m30s`".into(),
            Self::Address => "IP address and port".into(),
            Self::Choice(choices) => {
                choices.iter().map(|choice| format!("`{choice}`")).collect::<Vec<_>>().join(" or ")
            }
            Self::TextList => "list of strings".into(),
            Self::TextMap => "map of strings".into(),
            Self::Gates => "map from gate to true or false".into(),
            Self::Selector => "[label selector](#label-selectors)".into(),
            Self::TaintMap => "map from resource to list of taints".into(),
            Self::Object => "object".into(),
            Self::OneOf => "object with exactly one field".into(),
            Self::List => "list".into(),
        }
    }
}

impl Field {
    pub(super) fn name(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or(self.path)
    }

    pub(super) fn depth(&self) -> usize {
        self.path.matches('.').count()
    }

    pub(super) fn in_a_list(&self) -> bool {
        self.path.contains("[]")
    }

    pub(super) fn summary(&self) -> String {
        let kind = self.kind.describe();
        match self.presence {
            Presence::Default(value) => format!("{kind}; default `{value}`"),
            Presence::Required => format!("{kind}; required"),
            Presence::Optional => format!("{kind}; optional"),
            Presence::Parent => kind,
        }
    }
}
