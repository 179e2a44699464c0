//! Rules that were refused, and the words of rules put together.

/// Why a rule was refused; the texts are Redis's, that about databases is Valkey's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    Unknown,
    Syntax,
    AfterAllKeys,
    AfterAllChannels,
    NoSuchPassword,
    BadHash,
    FirstArgOfSub,
    Database,
}

impl RuleError {
    pub fn text(self) -> &'static str {
        match self {
            RuleError::Unknown => "Unknown command or category name in ACL",
            RuleError::Syntax => "Syntax error",
            RuleError::AfterAllKeys => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any \
                 effect. Try 'resetkeys' to start with an empty list of patterns"
            }
            RuleError::AfterAllChannels => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have \
                 any effect. Try 'resetchannels' to start with an empty list of channels"
            }
            RuleError::NoSuchPassword => "The password you are trying to remove from the user does not exist",
            RuleError::BadHash => {
                "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
            }
            RuleError::Database => "The provided database ID is out of range",
            RuleError::FirstArgOfSub => "Allowing first-arg of a subcommand is not supported",
        }
    }
}

/// Puts the words of each selector, from `(` to `)`, together. Errors: the word that opens one which is never
/// closed. O(bytes).
pub fn merged<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Vec<u8>>, &'a [u8]> {
    let mut rules: Vec<Vec<u8>> = Vec::new();
    let mut open: Option<(&[u8], Vec<u8>)> = None;
    for word in words {
        let rule = match open.take() {
            Some((first, mut rule)) => {
                rule.push(b' ');
                rule.extend_from_slice(word);
                (first, rule)
            }
            None if word.first() == Some(&b'(') => (word, word.to_vec()),
            None => {
                rules.push(word.to_vec());
                continue;
            }
        };
        match word.last() == Some(&b')') {
            true => rules.push(rule.1),
            false => open = Some(rule),
        }
    }
    match open {
        Some((first, _)) => Err(first),
        None => Ok(rules),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<String>, String> {
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match merged(text.split(' ').map(str::as_bytes)) {
            Ok(rules) => Ok(rules.iter().map(|rule| lossy(rule)).collect()),
            Err(word) => Err(lossy(word)),
        }
    }

    #[test]
    fn words_of_a_selector_become_one_rule() {
        assert_eq!(of("on (~a +get) ~b").unwrap(), ["on", "(~a +get)", "~b"]);
        assert_eq!(of("( ~a  +get ) x").unwrap(), ["( ~a  +get )", "x"]);
        assert_eq!(of("() b)").unwrap(), ["()", "b)"]);
        assert_eq!(of("on (~a +get"), Err("(~a".into()));
        assert_eq!(of("("), Err("(".into()));
    }
}
