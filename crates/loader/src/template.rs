//! Key templates: `user:{id}`, with column names in braces that stand for a row's values.

use crate::rows::Row;

/// A text with columns in it. `{{` and `}}` stand for the braces themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Column(String),
}

impl std::str::FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Template, String> {
        let mut parts = Vec::new();
        let (mut plain, mut chars) = (String::new(), text.chars().peekable());
        while let Some(c) = chars.next() {
            match c {
                '{' | '}' if chars.peek() == Some(&c) => plain.extend(chars.next()),
                '{' => {
                    let name: String = chars.by_ref().take_while(|c| *c != '}').collect();
                    if name.is_empty() || !text.contains(&format!("{{{name}}}")) {
                        return Err(format!("'{{' without a column name and '}}' in '{text}'"));
                    }
                    parts.extend((!plain.is_empty()).then(|| Part::Text(std::mem::take(&mut plain))));
                    parts.push(Part::Column(name));
                }
                '}' => {
                    return Err(format!("'}}' without '{{' in '{text}'; write '}}}}' for the brace itself"));
                }
                c => plain.push(c),
            }
        }
        parts.extend((!plain.is_empty()).then_some(Part::Text(plain)));
        if parts.is_empty() {
            Err("a key needs at least one character".to_owned())
        } else {
            Ok(Template { parts })
        }
    }
}

impl Template {
    /// The names of its columns.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Column(name) => Some(&**name),
            Part::Text(_) => None,
        })
    }

    /// The key for a row. Errors: a column that is missing there, or empty. O(length).
    pub fn fill(&self, row: &Row) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Column(name) => match row.field(name) {
                    Some(value) if !value.is_empty() => out.extend_from_slice(value),
                    _ if !row.columns().contains(name) => return Err(no_column(name, row.columns())),
                    _ => return Err(format!("no value for '{name}', which the key needs")),
                },
            }
        }
        Ok(out)
    }
}

/// The error that there is no such column, with the existing ones.
pub fn no_column(name: &str, columns: &[String]) -> String {
    if columns.is_empty() {
        return format!("no column '{name}': there are no columns");
    }
    let like = columns.iter().find(|column| column.trim().eq_ignore_ascii_case(name.trim()));
    let meant = like.map_or_else(String::new, |column| format!("; did you mean '{column}'?"));
    let (shown, more) = columns.split_at(columns.len().min(COLUMNS_SHOWN));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    format!("no column '{name}'; there are {}{more}{meant}", shown.join(", "))
}

/// Most columns that an error names.
const COLUMNS_SHOWN: usize = 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_take_the_place_of_their_names() {
        let row = Row::of(&[("id", "42"), ("group", "a")]);
        let fill = |text: &str| {
            text.parse::<Template>().map(|t| t.fill(&row).map(|key| String::from_utf8(key).unwrap()))
        };
        assert_eq!(fill("user:{id}"), Ok(Ok("user:42".to_owned())));
        assert_eq!(fill("{group}:{{{id}}}"), Ok(Ok("a:{42}".to_owned())));
        assert_eq!(fill("all"), Ok(Ok("all".to_owned())));
        let missing = "no column 'name'; there are id, group";
        assert_eq!(fill("x:{name}"), Ok(Err(missing.to_owned())));
        let meant = "no column 'ID'; there are id, group; did you mean 'id'?";
        assert_eq!(fill("x:{ID}"), Ok(Err(meant.to_owned())));
        let empty = Row::of(&[("id", "")]);
        let filled = "x:{id}".parse::<Template>().unwrap().fill(&empty);
        assert_eq!(filled, Err("no value for 'id', which the key needs".to_owned()));
        for wrong in ["", "a{", "a{}", "a}", "a{id"] {
            assert!(wrong.parse::<Template>().is_err(), "{wrong}");
        }
    }
}
