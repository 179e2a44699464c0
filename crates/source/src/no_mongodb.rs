//! MongoDB in a build without its driver: sources of it are refused, with the way to a build that has it.

use crate::{Database, Spec};
use std::sync::Arc;

/// Errors: always.
pub(crate) fn open(spec: &Spec) -> Result<Arc<dyn Database>, String> {
    Err(format!(
        "url '{}': this build leaves out the MongoDB driver, as 'make run' does; start it with 'make run FEATURES=mongodb' or \
         build it with 'cargo build --release -p evenkeel'",
        spec.shown_url()
    ))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_source_of_mongodb_is_refused_with_the_build_that_has_it() {
        for scheme in ["mongodb", "mongodb+srv"] {
            let words = ["items", "item:{id}", &format!("{scheme}://u:secret@host/shop")];
            let refused = crate::open(&crate::Spec::parse(words).unwrap()).err().unwrap();
            assert!(refused.starts_with(&format!("url '{scheme}://u:***@host/shop'")), "{refused}");
            assert!(refused.contains("make run FEATURES=mongodb"), "{refused}");
        }
    }
}
