//! The file of users (`aclfile`): a line per user, as ACL LIST shows it.
//!
//! - F1: a file is taken as a whole or not at all; every wrong line is told, up to [`ERRORS_MAX`].
//!
//! Cost: O(bytes · commands) for categories, else O(bytes).

use crate::rules::{RuleError, merged};
use crate::user::{User, is_name};
use std::collections::HashSet;

const ERRORS_MAX: usize = 20;

/// Reads a file. `path`: its name in errors. Errors: the text for the client, in Redis's words.
pub fn parse(text: &[u8], path: &str, all_channels: bool) -> Result<Vec<User>, String> {
    let (mut users, mut errors) = (Vec::new(), Vec::new());
    let mut names: HashSet<Vec<u8>> = HashSet::new();
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || errors.len() >= ERRORS_MAX {
            continue;
        }
        match user(line, all_channels) {
            Ok(user) if !names.insert(user.name().to_vec()) => {
                let name = String::from_utf8_lossy(user.name()).into_owned();
                errors.push(format!("WARNING: Duplicate user '{name}' found on line {}. ", at + 1));
            }
            Ok(user) => users.push(user),
            Err(wrong) => errors.push(format!("{path}:{}{wrong}", at + 1)),
        }
    }
    if errors.is_empty() {
        return Ok(users);
    }
    errors.push(
        "WARNING: ACL errors detected, no change to the previously active ACL rules was performed".into(),
    );
    Err(errors.concat())
}

/// Reads a line.
fn user(line: &[u8], all_channels: bool) -> Result<User, String> {
    let mut words = line.split(|byte| *byte == b' ');
    let name = match (words.next(), words.next()) {
        (Some(word), Some(name)) if word.eq_ignore_ascii_case(b"user") => name,
        _ => return Err(" should start with user keyword followed by the username. ".into()),
    };
    if !is_name(name) {
        let name = String::from_utf8_lossy(name);
        return Err(format!(": username '{name}' contains invalid characters. "));
    }
    let rules = merged(words).map_err(|_| ": Unmatched parenthesis in selector definition.".to_owned())?;
    let mut user = User::new(name, all_channels);
    for rule in rules {
        user.apply(&rule, all_channels).map_err(|error| match error {
            RuleError::Unknown => {
                let rule = String::from_utf8_lossy(&rule);
                format!(": Error in applying operation '{rule}': {}. ", error.text())
            }
            error => format!(": {}. ", error.text()),
        })?;
    }
    Ok(user)
}

/// The text of a file with these users.
pub fn written<'a>(users: impl IntoIterator<Item = &'a User>) -> Vec<u8> {
    let mut text = Vec::new();
    for user in users {
        text.extend_from_slice(&user.line());
        text.push(b'\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::{User, parse};

    /// First arguments are a set: one that is allowed again is written last, and its user reads the same.
    #[test]
    fn the_order_of_first_arguments_tells_no_users_apart() {
        let mut user = User::new(b"u", false);
        for rule in ["+get|a", "+get|ab", "+get|a"] {
            user.apply(rule.as_bytes(), false).unwrap();
        }
        let read = parse(&user.line(), "f", false).unwrap();
        assert_eq!(read, [user]);
    }
}
