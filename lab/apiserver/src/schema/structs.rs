//! The structures behind the built-in kinds: the protobuf number of each field, and whether its zero value differs from
//! an unset field.
//!
//! `data/structs.txt` lists them: the name of a structure, then its fields, each with its number, its name in JSON (`+`
//! for one whose fields are inlined into the enclosing structure), its type, and `!` if it is printed even when it is
//! empty. A type with `*` is a pointer.

use std::collections::BTreeMap;
use std::sync::LazyLock;

static STRUCTURES: LazyLock<BTreeMap<&'static str, Vec<Field>>> =
    LazyLock::new(|| parse(include_str!("../../data/structs.txt")));

#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) number: u64,
    /// Its name in JSON.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Printed even when it is empty.
    always: bool,
    pointer: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Integer,
    Boolean,
    Double,
    Bytes,
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    /// JSON within the message.
    Raw,
    List(Box<Kind>),
    Map(Box<Kind>),
    Structure(&'static str),
}

impl Kind {
    fn parse(text: &'static str) -> Self {
        if let Some(element) = text.strip_prefix("[]") {
            return Self::List(Box::new(Self::parse(element)));
        }
        if let Some(values) = text.strip_prefix("map ") {
            return Self::Map(Box::new(Self::parse(values)));
        }
        match text {
            "string" => Self::Text,
            "int" => Self::Integer,
            "bool" => Self::Boolean,
            "double" => Self::Double,
            "bytes" => Self::Bytes,
            "time" => Self::Time,
            "microtime" => Self::MicroTime,
            "quantity" => Self::Quantity,
            "intorstring" => Self::IntOrString,
            "raw" => Self::Raw,
            name => Self::Structure(name),
        }
    }
}

impl Field {
    /// True if zero, `false` or "" is the same as unset.
    pub(crate) fn vanishes_when_zero(&self) -> bool {
        !self.pointer
            && !self.always
            && matches!(self.kind, Kind::Text | Kind::Integer | Kind::Boolean | Kind::Double)
    }

    /// True if it is printed as `null` while it is unset. All times within a structure are, apart from one.
    pub(crate) fn is_printed_when_unset(&self) -> bool {
        match self.kind {
            Kind::Time | Kind::MicroTime => !self.pointer && self.name != "creationTimestamp",
            Kind::List(_) => self.always,
            _ => false,
        }
    }

    /// True if its fields are inlined into the enclosing structure.
    pub(crate) fn is_inline(&self) -> bool {
        self.name == "+"
    }
}

fn parse(text: &'static str) -> BTreeMap<&'static str, Vec<Field>> {
    let mut structures: BTreeMap<&'static str, Vec<Field>> = BTreeMap::new();
    let mut current = "";
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some(field) = line.strip_prefix(' ') else {
            current = line;
            structures.entry(current).or_default();
            continue;
        };
        let (field, always) = field.strip_suffix(" !").map_or((field, false), |field| (field, true));
        let mut parts = field.splitn(3, ' ');
        if let (Some(number), Some(name), Some(kind)) = (parts.next(), parts.next(), parts.next())
            && let Ok(number) = number.parse()
        {
            let (kind, pointer) = kind.strip_prefix('*').map_or((kind, false), |kind| (kind, true));
            let field = Field { number, name, kind: Kind::parse(kind), always, pointer };
            structures.entry(current).or_default().push(field);
        }
    }
    structures
}

pub(crate) fn fields(structure: &str) -> &'static [Field] {
    STRUCTURES.get(structure).map_or(&[], Vec::as_slice)
}

/// The field of a definition, or of a structure that is inlined into it.
pub(crate) fn field(definition: &str, name: &str) -> Option<&'static Field> {
    let dots = definition.rmatch_indices('.').nth(2);
    let structure = dots.map_or(definition, |(index, _)| &definition[index + 1..]);
    in_structure(structure, name)
}

fn in_structure(structure: &str, name: &str) -> Option<&'static Field> {
    let fields = fields(structure);
    fields.iter().find(|field| field.name == name).or_else(|| {
        fields.iter().filter(|field| field.is_inline()).find_map(|field| match field.kind {
            Kind::Structure(inner) => in_structure(inner, name),
            _ => None,
        })
    })
}
