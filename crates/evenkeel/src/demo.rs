//! The demonstration database: products in an SQLite file that is removed with the server.

use exec::Server;
use source::{Spec, demo};
use std::path::PathBuf;
use std::sync::Arc;

/// The folder of the file, removed when the server ends.
pub struct Demo(PathBuf);

impl Demo {
    /// The folder's path for this process.
    pub fn folder() -> PathBuf {
        std::env::temp_dir().join(format!("evenkeel-demo-{}", std::process::id()))
    }

    /// Makes the database and serves it as keys `item:{id}`, over HTTP as `/items`. Errors: the file cannot
    /// be made.
    pub fn start(server: &Arc<Server>) -> Result<Demo, String> {
        let folder = Demo::folder();
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let demo = Demo(folder);
        let file = demo.0.join("products.db");
        let rows = demo::create(&file)?;
        let url = format!("sqlite:{}", file.display());
        let table = demo::TABLE;
        let words = ["items", "item:{id}", &url, "table", table, "path", "/items", "modified", "updated_at"];
        server.rows.add_own(Spec::parse(words)?)?;
        log::info!(
            "demonstration: {rows} rows of table {table} in {} are keys item:1 to item:{rows}",
            file.display()
        );
        Ok(demo)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // If it fails, the rest lies in a folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
