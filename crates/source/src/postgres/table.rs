//! The database's description of a source's table, and the statement that loads from it.

use super::{failure, literal, quoted, value};
use crate::{Failure, Form, IdType, Spec};
use tokio_postgres::Client;

/// Oldest version whose publications can name schemas.
const SCHEMA_PUBLICATIONS: i32 = 150_000;
/// Oldest version whose snapshots have 64-bit numbers under the newer name.
const NEWER_SNAPSHOTS: i32 = 130_000;

/// A table as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Table {
    pub oid: u32,
    pub schema: String,
    pub name: String,
    pub is_partitioned: bool,
    /// The partitions of all levels.
    pub partitions: Vec<u32>,
    pub id_type: IdType,
    version: i32,
    id_sql_type: &'static str,
    modified: Option<Time>,
    /// Replica identity: d: primary key, i: an index, f: whole rows, n: nothing.
    identity: i8,
    /// Whether the ids are part of the primary key; the next field: of the index of the replica identity.
    in_primary_key: bool,
    in_identity: bool,
    is_logged: bool,
    /// A partition whose changes cannot be followed: it is not logged, or belongs to another server.
    unfit_partition: Option<String>,
    /// A partition whose updates and deletes do not name the id.
    unnamed_partition: Option<String>,
    pub wal_level: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Time {
    Stamp,
    Number,
}

fn refused<T>(why: String) -> Result<T, Failure> {
    Err(Failure::Refused(why))
}

const FIND: &str = "\
    SELECT c.oid, n.nspname::text, c.relname::text, c.relkind, c.relreplident, c.relpersistence = 'p', \
        current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('wal_level') \
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
    WHERE c.oid = coalesce(to_regclass($1::text), to_regclass(quote_ident($1::text)))";

const COLUMNS: &str = "\
    SELECT a.attname::text, a.attnum, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END, \
        format_type(a.atttypid, a.atttypmod) \
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid \
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";

/// Properties of the indexes with a column: whether one is unique for it alone, whether it is in the primary
/// key, and whether it is in the replica identity.
const INDEXES: &str = "\
    SELECT coalesce(bool_or(indisunique AND indisvalid AND indpred IS NULL AND indnatts = 1), false), \
        coalesce(bool_or(indisprimary AND indimmediate), false), coalesce(bool_or(indisreplident), false) \
    FROM pg_index WHERE indrelid = $1 AND $2::int2 = ANY(indkey)";

/// Finds the first partition whose changes are in no log of this server.
const UNFIT: &str = "\
    SELECT min(t.relid::regclass::text) FROM pg_partition_tree($1::oid) t JOIN pg_class c ON c.oid = t.relid \
    WHERE c.relpersistence <> 'p' OR c.relkind NOT IN ('r', 'p')";

/// Finds the first partition whose replica identity does not name a column.
const UNNAMED: &str = "\
    SELECT min(t.relid::regclass::text) FROM pg_partition_tree($1::oid) t JOIN pg_class c ON c.oid = t.relid \
    WHERE t.isleaf AND c.relkind = 'r' AND c.relreplident <> 'f' AND NOT EXISTS (\
        SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey) \
        WHERE i.indrelid = c.oid AND a.attname = $2::text \
        AND CASE c.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate WHEN 'i' THEN i.indisreplident END)";

const PARTITIONS: &str = "SELECT coalesce(array_agg(relid::oid), '{}') FROM pg_partition_tree($1::oid)";

/// The first column that the source wants and the table does not have.
fn missing_column<'a>(spec: &'a Spec, id: &'a str, names: &[String]) -> Option<&'a str> {
    let more = spec.columns.iter().flatten().map(String::as_str).chain(spec.modified.as_deref());
    std::iter::once(id).chain(more).find(|wanted| !names.iter().any(|name| name == wanted))
}

/// A partition that cannot be followed, one whose changes do not name the id, and all partitions.
type Partitions = (Option<String>, Option<String>, Vec<u32>);

async fn partitions_of(client: &Client, oid: u32, id: &str) -> Result<Partitions, Failure> {
    let unfit = value(&client.query_one(UNFIT, &[&oid]).await.map_err(failure)?, 0)?;
    let unnamed = value(&client.query_one(UNNAMED, &[&oid, &id]).await.map_err(failure)?, 0)?;
    let all = value(&client.query_one(PARTITIONS, &[&oid]).await.map_err(failure)?, 0)?;
    Ok((unfit, unnamed, all))
}

impl Table {
    pub async fn inspect(client: &Client, spec: &Spec) -> Result<Table, Failure> {
        let asked = &spec.table;
        let Some(row) = client.query_opt(FIND, &[asked]).await.map_err(failure)? else {
            return refused(format!("there is no table '{asked}'"));
        };
        let (oid, schema, name): (u32, String, String) = (value(&row, 0)?, value(&row, 1)?, value(&row, 2)?);
        let kind: i8 = value(&row, 3)?;
        if !matches!(kind as u8, b'r' | b'p') {
            return refused(format!("'{asked}' is no table: its changes cannot be followed"));
        }
        if value(&row, 7)? {
            return refused("the database is a standby: name the primary".into());
        }
        let columns = client.query(COLUMNS, &[&oid]).await.map_err(failure)?;
        let names: Vec<String> = columns.iter().map(|column| value(column, 0)).collect::<Result<_, _>>()?;
        let id = spec.id.as_deref().unwrap_or("id");
        if let Some(missing) = missing_column(spec, id, &names) {
            let names = names.join(", ");
            return refused(format!("table '{asked}' has no column '{missing}' (it has {names})"));
        }
        let column = |name: &str| names.iter().position(|other| other == name).and_then(|at| columns.get(at));
        let Some(ids) = column(id) else { return refused(format!("table '{asked}' has no column '{id}'")) };
        let (id_type, id_sql_type) = id_type(spec, id, value(ids, 2)?, value(ids, 3)?)?;
        let modified = match spec.modified.as_deref().and_then(column) {
            Some(column) => Some(time(value(column, 2)?, value(column, 3)?)?),
            None => None,
        };
        let number: i16 = value(ids, 1)?;
        let indexes = client.query_one(INDEXES, &[&oid, &number]).await.map_err(failure)?;
        let is_partitioned = kind as u8 == b'p';
        let (unfit_partition, unnamed_partition, partitions) = match is_partitioned {
            true => partitions_of(client, oid, id).await?,
            false => (None, None, Vec::new()),
        };
        let table = Table {
            oid,
            schema,
            name,
            is_partitioned,
            partitions,
            unfit_partition,
            unnamed_partition,
            id_type,
            id_sql_type,
            modified,
            identity: value(&row, 4)?,
            is_logged: value(&row, 5)?,
            version: value(&row, 6)?,
            wal_level: value(&row, 8)?,
            in_primary_key: value(&indexes, 1)?,
            in_identity: value(&indexes, 2)?,
        };
        if !value(&indexes, 0)? {
            let (on, id_name) = (table.sql_name(), quoted(id));
            return refused(format!(
                "column '{id}' has no unique index: CREATE UNIQUE INDEX ON {on} ({id_name})"
            ));
        }
        Ok(table)
    }

    pub fn sql_name(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&self.name))
    }

    /// The SQL for the snapshot of the statement it stands in.
    pub fn snapshot(&self) -> &'static str {
        if self.version >= NEWER_SNAPSHOTS {
            "pg_current_snapshot()::text"
        } else {
            "txid_current_snapshot()::text"
        }
    }

    /// The statement of a load. Its first row is the snapshot; the others are id, body and time of each row.
    /// `t.*` and not `t`, which could be a column.
    pub fn select(&self, spec: &Spec) -> String {
        let id = format!("t.{}", quoted(spec.id.as_deref().unwrap_or("id")));
        let row = match &spec.columns {
            None => "row_to_json(t.*)".into(),
            Some(names) => {
                let names: Vec<_> = names.iter().map(|name| format!("t.{}", quoted(name))).collect();
                format!("(SELECT row_to_json(c.*) FROM (SELECT {}) c)", names.join(", "))
            }
        };
        let body = match spec.form {
            Form::Json => format!("{row}::text"),
            Form::Hash => format!(
                "coalesce((SELECT json_agg(json_build_array(f.key, f.value))::text FROM json_each_text({row}) f), '[]')"
            ),
        };
        let modified = match (&spec.modified, self.modified) {
            (Some(name), Some(kind)) => kind.milliseconds(&format!("t.{}", quoted(name))),
            _ => "NULL::int8".into(),
        };
        // Rows of tables that inherit from this one change under other names.
        let only = if self.is_partitioned { "" } else { "ONLY " };
        let (table, snapshot, sql_type) = (self.sql_name(), self.snapshot(), self.id_sql_type);
        format!(
            "SELECT NULL::text, {snapshot}, NULL::int8 UNION ALL \
             SELECT {id}::text, {body}, {modified} FROM {only}{table} t WHERE {id} = ANY($1::text[]{sql_type})"
        )
    }

    /// Checks that updates and deletes can be followed. Errors: why not, and what to do.
    pub fn check_feed(&self, spec: &Spec) -> Result<(), Failure> {
        let (table, id) = (self.sql_name(), spec.id.as_deref().unwrap_or("id"));
        if self.wal_level != "logical" {
            return refused(format!(
                "changes are followed by logical replication, but wal_level is {}: ALTER SYSTEM SET wal_level = logical, \
                 then restart the database (or set feed off)",
                self.wal_level
            ));
        }
        if !self.is_logged {
            return refused(format!("table {table} is not logged, so its changes cannot be followed"));
        }
        if let Some(partition) = &self.unfit_partition {
            return refused(format!(
                "partition {partition} of {table} is not logged here, so its changes cannot be followed"
            ));
        }
        if let Some(partition) = &self.unnamed_partition {
            return refused(format!(
                "updates and deletes of partition {partition} of {table} do not name column '{id}': ALTER TABLE {partition} \
                 REPLICA IDENTITY DEFAULT (or FULL)"
            ));
        }
        let named = match self.identity as u8 {
            b'f' => true,
            b'd' => self.in_primary_key,
            b'i' => self.in_identity,
            _ => false,
        };
        match named {
            true => Ok(()),
            false => refused(format!(
                "updates and deletes of {table} do not name column '{id}': make it the primary key, or ALTER TABLE {table} \
                 REPLICA IDENTITY USING INDEX <its unique index> (or FULL)"
            )),
        }
    }

    /// The SQL for a text that differs after any change of rows that the stream does not report. It covers
    /// another table under the name, an unlogged table, other columns, indexes or policies. It also covers
    /// another schema, which a publication may be for, and another publication. Of a partitioned table it
    /// covers the partitions and their files, since the stream reports only a TRUNCATE of the whole. Cost:
    /// O(partitions) there.
    pub fn identity_sql(&self, spec: &Spec, publication: &str) -> String {
        let (asked, publication) = (literal(&spec.table), literal(publication));
        let partitions = match self.is_partitioned {
            true => format!(
                ", (SELECT md5(string_agg(concat(t.relid::oid, '.', pg_relation_filenode(t.relid), '.', k.relpersistence, k.relreplident, \
                 (SELECT min(i.indexrelid) FROM pg_index i WHERE i.indrelid = k.oid AND i.indisreplident)), ' ' \
                 ORDER BY t.relid::oid)) FROM pg_partition_tree({}) t JOIN pg_class k ON k.oid = t.relid)",
                self.oid
            ),
            false => String::new(),
        };
        let schemas = match self.version >= SCHEMA_PUBLICATIONS {
            true => format!(
                ", (SELECT string_agg(s.oid || '.' || s.xmin, ' ' ORDER BY s.oid) FROM pg_publication_namespace s \
                 JOIN pg_publication p ON p.oid = s.pnpubid WHERE p.pubname = {publication})"
            ),
            false => String::new(),
        };
        format!(
            "concat_ws(' ', coalesce(to_regclass({asked}), to_regclass(quote_ident({asked})))::oid::text, \
             (SELECT concat_ws('.', c.relreplident, c.relpersistence, c.relnamespace, c.relrowsecurity, c.relforcerowsecurity) \
              FROM pg_class c WHERE c.oid = {oid}), \
             (SELECT string_agg(concat_ws('.', i.indexrelid, i.indisunique, i.indisprimary, i.indimmediate, i.indisvalid, \
              i.indisreplident), ' ' ORDER BY i.indexrelid) FROM pg_index i WHERE i.indrelid = {oid}), \
             (SELECT string_agg(y.oid || '.' || y.xmin, ' ' ORDER BY y.oid) FROM pg_policy y WHERE y.polrelid = {oid}), \
             (SELECT string_agg(a.attnum || '.' || a.xmin, ' ' ORDER BY a.attnum) FROM pg_attribute a \
              WHERE a.attrelid = {oid} AND a.attnum > 0), \
             (SELECT p.oid || '.' || p.xmin FROM pg_publication p WHERE p.pubname = {publication}), \
             (SELECT string_agg(r.oid || '.' || r.xmin, ' ' ORDER BY r.oid) FROM pg_publication_rel r \
              JOIN pg_publication p ON p.oid = r.prpubid WHERE r.prrelid = {oid} AND p.pubname = {publication}){schemas}{partitions})",
            oid = self.oid
        )
    }
}

impl Time {
    /// The SQL for the time in milliseconds; small integers are seconds.
    fn milliseconds(self, column: &str) -> String {
        match self {
            Time::Stamp => {
                format!("CASE WHEN isfinite({column}) THEN (extract(epoch FROM {column}) * 1000)::int8 END")
            }
            Time::Number => format!(
                "CASE WHEN {column} > 100000000000 THEN {column}::int8 ELSE {column}::int8 * 1000 END"
            ),
        }
    }
}

fn time(type_id: u32, name: String) -> Result<Time, Failure> {
    match type_id {
        1082 | 1114 | 1184 => Ok(Time::Stamp),
        20 | 21 | 23 => Ok(Time::Number),
        _ => refused(format!("a column of type {name} tells no time")),
    }
}

/// The type of the ids, and the cast from an array of their texts to one of that type.
fn id_type(spec: &Spec, id: &str, type_id: u32, name: String) -> Result<(IdType, &'static str), Failure> {
    let found = match type_id {
        20 | 21 | 23 => (IdType::Integer, "::int8[]"),
        25 | 1043 => (IdType::Text, ""),
        2950 => (IdType::Uuid, "::uuid[]"),
        _ => {
            return refused(format!(
                "column '{id}' is of type {name}: ids are integers, text, varchar or uuid"
            ));
        }
    };
    match spec.id_type {
        IdType::Auto => Ok(found),
        asked if asked == found.0 => Ok(found),
        _ => refused(format!("column '{id}' is of type {name}, which contradicts id-type: leave that out")),
    }
}
