//! Reads a configuration file, with all problems of it together.

use super::problem::ConfigError;
use super::{Configuration, document, schema};

/// Parses the text of a configuration file.
///
/// # Errors
/// All problems that were found. A YAML syntax error stops the parser, so it is reported alone. A malformed field may
/// hide contradictions between fields.
pub fn parse(text: &str) -> Result<Configuration, ConfigError> {
    let document = document::read(text)?;
    let (value, mut problems) = schema::check(&document);
    let typed = serde_json::from_value::<Configuration>(value);
    if let Ok(configuration) = &typed {
        let mut contradictions = configuration.problems();
        // A refused value is missing in the typed configuration, so contradictions around it may be wrong.
        contradictions.retain(|found| !problems.iter().any(|refused| found.path.leads_to(&refused.path)));
        problems.extend(contradictions);
    }
    for problem in &mut problems {
        problem.line = document.line_of(&problem.path);
    }
    match typed {
        Ok(configuration) if problems.is_empty() => Ok(configuration),
        // The schema is stricter than the types, so this is a gap in the schema. Refuse the file instead of panicking.
        Err(error) if problems.is_empty() => Err(ConfigError::whole_file(error.to_string())),
        _ => Err(ConfigError { problems }),
    }
}
