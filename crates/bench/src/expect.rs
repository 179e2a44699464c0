//! Sentences that must hold: `blacklist.p999_ms<1`.

use crate::outcome::Outcome;
use crate::stories;
use std::fs;

/// A figure, how it is compared, and with what.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    text: String,
    path: String,
    relation: Relation,
    limit: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Relation {
    Less,
    AtMost,
    More,
    AtLeast,
}

/// The longer ones first, as they begin with the shorter.
const RELATIONS: [(&str, Relation); 4] =
    [("<=", Relation::AtMost), (">=", Relation::AtLeast), ("<", Relation::Less), (">", Relation::More)];

impl Relation {
    fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Relation::Less => value < limit,
            Relation::AtMost => value <= limit,
            Relation::More => value > limit,
            Relation::AtLeast => value >= limit,
        }
    }
}

impl Expectation {
    /// The story whose figure it is about.
    pub fn story(&self) -> &str {
        self.path.rsplit('.').nth(1).unwrap_or_default()
    }
}

/// Reads the words of `--expect`: each an expression, or a file with one on each line, where `#` begins a
/// remark. Errors: a word is neither.
pub fn read(words: &[String]) -> Result<Vec<Expectation>, String> {
    let mut all = Vec::new();
    for word in words {
        match parse(word) {
            Ok(expectation) => all.push(expectation),
            Err(why) => {
                let text =
                    fs::read_to_string(word).map_err(|e| format!("--expect: {why}, and as a file: {e}"))?;
                let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
                for line in lines.filter(|line| !line.is_empty()) {
                    all.push(parse(line).map_err(|why| format!("{word}: {why}"))?);
                }
            }
        }
    }
    Ok(all)
}

fn parse(text: &str) -> Result<Expectation, String> {
    let wrong = || format!("'{text}' is no expression such as blacklist.p999_ms<1");
    let (at, sign, relation) = RELATIONS
        .iter()
        .filter_map(|(sign, relation)| Some((text.find(sign)?, *sign, *relation)))
        .min_by_key(|(at, ..)| *at)
        .ok_or_else(wrong)?;
    let (path, limit) = (text[..at].trim(), text[at + sign.len()..].trim());
    let is_name = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let limit: f64 = limit.parse().map_err(|_| wrong())?;
    let parts = path.split('.').count();
    let story = path.rsplit('.').nth(1).unwrap_or_default();
    if path.split('.').all(is_name) && (2..=3).contains(&parts) && !stories::is_known(story) {
        return Err(format!("'{text}': no story is called '{story}'"));
    }
    if !path.split('.').all(is_name) || !(2..=3).contains(&parts) || !limit.is_finite() {
        return Err(wrong());
    }
    Ok(Expectation { text: text.to_owned(), path: path.to_owned(), relation, limit })
}

impl Expectation {
    /// Whether it holds, and a sentence. A figure that was not measured does not.
    pub fn check(&self, outcome: &Outcome) -> (bool, String) {
        match outcome.value(&self.path) {
            None => (false, format!("{} does not hold: {} was not measured", self.text, self.path)),
            Some(value) => match self.relation.holds(value, self.limit) {
                true => (true, format!("{} holds: it is {value:.4}", self.text)),
                false => (false, format!("{} does not hold: it is {value:.4}", self.text)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_with_and_without_blanks() {
        let read = parse("ratio.copy.p999_ms <= 0.5").unwrap();
        assert_eq!(
            (read.path.as_str(), read.relation, read.limit),
            ("ratio.copy.p999_ms", Relation::AtMost, 0.5)
        );
        assert_eq!(parse("throughput.get_per_s>1e4").unwrap().limit, 1e4);
        for wrong in [
            "",
            "copy",
            "copy<1",
            "copy.x",
            "copy.x<",
            "copy.x<y",
            "ratio.copy.b.c<1",
            "copy.x<inf",
            "a b.c<1",
            "copy.x=1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(super::read(&["no-such-file".to_owned()]).is_err());
    }

    #[test]
    fn relations_are_as_they_are_written() {
        let holds = |text: &str, value| {
            let expectation = parse(text).unwrap();
            expectation.relation.holds(value, expectation.limit)
        };
        assert!(holds("copy.b<1", 0.9) && !holds("copy.b<1", 1.0) && holds("copy.b<=1", 1.0));
        assert!(holds("copy.b>1", 1.1) && !holds("copy.b>1", 1.0) && holds("copy.b>=1", 1.0));
    }
}
