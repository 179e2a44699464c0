//! A database to try reading through with: products in a file of SQLite that goes with the server.

use exec::Server;
use source::{Spec, demo};
use std::path::PathBuf;
use std::sync::Arc;

/// The folder of the file, removed when the server ends.
pub struct Demo(PathBuf);

impl Demo {
    /// The folder of this process.
    pub fn folder() -> PathBuf {
        std::env::temp_dir().join(format!("evenkeel-demo-{}", std::process::id()))
    }

    /// Makes the database and serves it: keys `item:{id}`, over HTTP `/items`.
    pub fn start(server: &Arc<Server>) -> Result<Demo, String> {
        let folder = Demo::folder();
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let demo = Demo(folder);
        let file = demo.0.join("products.db");
        let rows = demo::create(&file)?;
        let url = format!("sqlite:{}", file.display());
        let table = demo::TABLE;
        let words = ["items", "item:{id}", &url, "table", table, "path", "/items", "modified", "updated_at"];
        server.sources.add_own(Spec::parse(words)?)?;
        log::info!(
            "demonstration: {rows} rows of table {table} in {} are keys item:1 to item:{rows}",
            file.display()
        );
        Ok(demo)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // What is left over lies in a folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
