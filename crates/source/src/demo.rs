//! A table of made-up products in an SQLite file, to try a source with.

use rusqlite::{Connection, params};
use std::path::Path;

pub const TABLE: &str = "products";
/// Ids are 1 to ROWS.
pub const ROWS: u64 = 5000;

const COLUMNS: &str = "id INTEGER PRIMARY KEY, name TEXT NOT NULL, brand TEXT NOT NULL, category TEXT NOT NULL, \
                       price_cents INTEGER NOT NULL, weight_kg REAL, stock INTEGER NOT NULL, description TEXT, \
                       updated_at TEXT NOT NULL";

const ADJECTIVES: [&str; 12] = [
    "Amber", "Brisk", "Cedar", "Dusky", "Early", "Fluted", "Gentle", "Hollow", "Ivory", "Keen", "Lofty",
    "Mellow",
];
const THINGS: [(&str, &str); 10] = [
    ("Kettle", "kitchen"),
    ("Lamp", "lighting"),
    ("Bicycle bell", "outdoor"),
    ("Notebook", "office"),
    ("Teapot", "kitchen"),
    ("Lantern", "lighting"),
    ("Rucksack", "outdoor"),
    ("Fountain pen", "office"),
    ("Bread knife", "kitchen"),
    ("Hammock", "outdoor"),
];
const BRANDS: [&str; 7] = ["Anker & Sohn", "Bluebird", "Corvo", "Dalgety", "Evenwood", "Fjell", "Grove"];

/// Fills a table with [`ROWS`] products, always the same ones; an existing table is left as it is. Returns
/// how many rows there are. Errors: those of SQLite.
pub fn create(path: &Path) -> Result<u64, String> {
    fill(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn fill(path: &Path) -> rusqlite::Result<u64> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")?;
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    if !transaction.table_exists(None, TABLE)? {
        transaction.execute_batch(&format!("CREATE TABLE {TABLE} ({COLUMNS})"))?;
        let mut insert =
            transaction.prepare(&format!("INSERT INTO {TABLE} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"))?;
        (1..=ROWS).try_for_each(|id| product(&mut insert, id))?;
    }
    let rows =
        transaction.query_row(&format!("SELECT count(*) FROM {TABLE}"), [], |row| row.get::<_, i64>(0))?;
    transaction.commit()?;
    Ok(rows as u64)
}

fn product(insert: &mut rusqlite::Statement<'_>, id: u64) -> rusqlite::Result<()> {
    // Spreads the ids over all combinations.
    let mixed = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
    let pick = |n: usize, shift: u64| ((mixed >> shift) % n as u64) as usize;
    let (thing, category) = THINGS[pick(THINGS.len(), 0)];
    let (adjective, brand) = (ADJECTIVES[pick(ADJECTIVES.len(), 8)], BRANDS[pick(BRANDS.len(), 16)]);
    let name = format!("{adjective} {}", thing.to_lowercase());
    let weight = (!mixed.is_multiple_of(7)).then_some((5 + 5 * pick(120, 4)) as f64 / 100.0);
    let description = format!("{name} by {brand}, item {id} of our {category} range.");
    let updated = format!("2026-{:02}-{:02} {:02}:00:00", 1 + pick(9, 3), 1 + pick(28, 11), pick(24, 19));
    let (price, stock) = (199 + 50 * pick(400, 6) as i64, pick(250, 13) as i64);
    insert.execute(params![id as i64, name, brand, category, price, weight, stock, description, updated])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::load;

    #[tokio::test]
    async fn products_are_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("demo.db");
        assert_eq!(create(&path), Ok(ROWS));
        let url = format!("sqlite:{}", path.display());
        let options = ["products", "product:{id}", &url, "modified", "updated_at"];
        let database = crate::open(&crate::Spec::parse(options).unwrap()).unwrap();
        let row = &load(&database, &["42"]).await[0].1;
        assert!(row.starts_with("{\"id\":42,\"name\":\"") && row.contains("\"price_cents\":"), "{row}");
        let connection = Connection::open(&path).unwrap();
        connection.execute("DELETE FROM products WHERE id > 10", []).unwrap();
        assert_eq!(create(&path), Ok(10));
        assert!(create(folder.path()).is_err());
    }
}
