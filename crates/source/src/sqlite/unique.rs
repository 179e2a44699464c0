//! The unique indexes of a table, and the SQL that finds the rows which a new row would replace.
//!
//! - U1: a row conflicts if it is in the index and its key equals that of `NEW`. The condition may find more
//!   rows, since a needless entry in the changelog is harmless. It never finds fewer.
//! - U2: a partial index adds its own condition on the rows that are there, so SQLite can use the index. `NEW`
//!   may not fulfil it, which finds more.
//! - U3: an expression is copied from the index. For `NEW` it is evaluated over a row made of NEW's columns,
//!   which has the table's name. So names of columns mean the same, whether qualified or not.

use rusqlite::Connection;

/// The reason why the indexes of a table are not known.
pub(super) enum Unknown {
    Sqlite(rusqlite::Error),
    /// The text of this index is not understood.
    Text(String),
}

impl From<rusqlite::Error> for Unknown {
    fn from(error: rusqlite::Error) -> Unknown {
        Unknown::Sqlite(error)
    }
}

/// A unique index, or the primary key.
#[derive(Default)]
pub(super) struct UniqueIndex {
    columns: Vec<IndexColumn>,
    /// The condition of a partial index.
    condition: Option<String>,
}

/// A column of a unique index, and the collation by which the index compares it; empty: the column's own.
struct IndexColumn {
    key: IndexKey,
    collation: String,
}

enum IndexKey {
    Column(String),
    Expression(String),
}

impl UniqueIndex {
    /// Whether it is an index of all rows and of this column alone.
    pub fn is_of(&self, name: &str) -> bool {
        self.condition.is_none()
            && matches!(&*self.columns, [IndexColumn { key: IndexKey::Column(column), .. }] if column.eq_ignore_ascii_case(name))
    }

    /// Whether it compares bytewise, as far as its collations say.
    pub fn is_plain(&self) -> bool {
        self.columns.iter().all(|column| matches!(&*column.collation, "" | "BINARY"))
    }

    /// Returns the SQL that tells whether a row of the table conflicts with `NEW` (U1). `columns` are those
    /// of the table.
    pub fn conflicts(&self, table: &str, columns: &[String]) -> String {
        let table = quoted(table);
        let same = self.columns.iter().map(|column| {
            let (there, new) = match &column.key {
                IndexKey::Column(name) => {
                    (format!("{table}.{}", quoted(name)), format!("NEW.{}", quoted(name)))
                }
                IndexKey::Expression(sql) => (format!("({sql})"), of_new(sql, &table, columns)),
            };
            match &*column.collation {
                "" => format!("{there} = {new}"),
                collation => format!("{there} = {new} COLLATE {}", quoted(collation)),
            }
        });
        let condition = self.condition.iter().map(|sql| format!("({sql})"));
        same.chain(condition).collect::<Vec<_>>().join(" AND ")
    }
}

/// A name as SQL writes it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The SQL of an expression's value for `NEW` (U3).
fn of_new(expression: &str, table: &str, columns: &[String]) -> String {
    let columns = columns.iter().map(|name| format!("NEW.{0} AS {0}", quoted(name)));
    let columns = columns.collect::<Vec<_>>().join(", ");
    format!("(SELECT ({expression}) FROM (SELECT {columns}) AS {table})")
}

/// Reads the unique indexes of a table and its primary key. Errors: an index whose text is not understood.
pub(super) fn unique(connection: &Connection, table: &str) -> Result<Vec<UniqueIndex>, Unknown> {
    let sql = "SELECT l.name, i.seqno, i.name, i.coll, l.partial, m.sql FROM pragma_index_list(?1) AS l, \
               pragma_index_xinfo(l.name) AS i LEFT JOIN sqlite_master AS m ON m.type = 'index' AND m.name = l.name \
               WHERE l.\"unique\" AND i.key \
               UNION ALL SELECT '', pk, name, '', 0, NULL FROM pragma_table_xinfo(?1) WHERE pk > 0 ORDER BY 1, 2";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([table])?;
    let mut found: Vec<(String, UniqueIndex)> = Vec::new();
    while let Some(row) = rows.next()? {
        let index: String = row.get(0)?;
        let (column, partial): (Option<String>, bool) = (row.get(2)?, row.get(4)?);
        let text: Option<String> = row.get(5)?;
        let not_understood = || Unknown::Text(index.clone());
        if found.last().is_none_or(|(name, _)| *name != index) {
            let definition = text.as_deref().and_then(definition);
            let condition = match partial {
                true => Some(definition.and_then(|(_, condition)| condition).ok_or_else(not_understood)?),
                false => None,
            };
            found.push((index.clone(), UniqueIndex { columns: Vec::new(), condition }));
        }
        let Some((_, of)) = found.last_mut() else { continue };
        let key = match column {
            Some(name) => IndexKey::Column(name),
            None => {
                let keys = text.as_deref().and_then(definition).map(|(keys, _)| keys);
                let key = keys.and_then(|keys| keys.into_iter().nth(of.columns.len()));
                IndexKey::Expression(key.ok_or_else(not_understood)?)
            }
        };
        of.columns.push(IndexColumn { key, collation: row.get(3)? });
    }
    Ok(found.into_iter().map(|(_, index)| index).collect())
}

/// Splits the text of an index into its keys, without their order, and its condition.
fn definition(sql: &str) -> Option<(Vec<String>, Option<String>)> {
    let (mut keys, mut part, mut depth, mut is_closed) = (Vec::new(), String::new(), 0, false);
    let mut rest = sql;
    while !rest.is_empty() {
        let (token, more) = rest.split_at(token(rest));
        rest = more;
        let is_comment = token.starts_with("--") || token.starts_with("/*");
        match token {
            _ if is_comment => part.push(' '),
            "(" if depth == 0 && !is_closed => {
                part.clear();
                depth = 1;
            }
            ")" | "," if depth == 1 && !is_closed => {
                keys.push(without_order(&part).to_owned());
                part.clear();
                (depth, is_closed) = if token == ")" { (0, true) } else { (1, false) };
            }
            _ => {
                depth += i32::from(token == "(") - i32::from(token == ")");
                part += token;
            }
        }
    }
    let tail = part.trim();
    let condition = tail.get(..5).filter(|word| word.eq_ignore_ascii_case("where"));
    let condition = condition.map(|_| tail[5..].trim().to_owned());
    is_closed.then_some((keys, condition))
}

/// Length of the first token: quoted text, a comment, or one character.
fn token(sql: &str) -> usize {
    let mut chars = sql.chars();
    let Some(first) = chars.next() else { return 0 };
    let until = |end: &str, from: usize| {
        let tail = sql.get(from..).unwrap_or("");
        tail.find(end).map_or(sql.len(), |at| from + at + end.len())
    };
    match first {
        // Two quotes in a row are two texts here, which end at the same place.
        '\'' => until("'", 1),
        '"' => until("\"", 1),
        '`' => until("`", 1),
        '[' => until("]", 1),
        '-' if sql.starts_with("--") => until("\n", 2),
        '/' if sql.starts_with("/*") => until("*/", 2),
        _ => first.len_utf8(),
    }
}

fn without_order(key: &str) -> &str {
    let key = key.trim();
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$' | '"' | '`' | ']');
    let word = key.rfind(|c: char| !is_word(c)).map_or(0, |at| at + 1);
    let (before, word) = key.split_at_checked(word).unwrap_or((key, ""));
    match word.eq_ignore_ascii_case("asc") || word.eq_ignore_ascii_case("desc") {
        true => before.trim_end(),
        false => key,
    }
}

#[cfg(test)]
mod tests {
    use super::definition;

    #[test]
    fn the_keys_and_the_condition_of_an_index_are_found() {
        let sql = "CREATE UNIQUE INDEX \"a (b\" ON [t,(] (lower(a) COLLATE NOCASE DESC, -- one, (two\n \
                   coalesce(\"b)\", 'x,'')') asc, c /* ) */) WHERE (c > 0) AND d <> ')'";
        let (keys, condition) = definition(sql).unwrap();
        assert_eq!(keys, ["lower(a) COLLATE NOCASE", "coalesce(\"b)\", 'x,'')')", "c"]);
        assert_eq!(condition.as_deref(), Some("(c > 0) AND d <> ')'"));
        assert_eq!(definition("CREATE UNIQUE INDEX i ON t (a)"), Some((vec!["a".into()], None)));
        assert_eq!(definition("CREATE UNIQUE INDEX i ON t (a"), None);
    }
}
