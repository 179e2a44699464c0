//! The folders in which files of sources may be (`source-dirs`), as they were configured.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

static FOLDERS: RwLock<Option<Arc<[PathBuf]>>> = RwLock::new(None);

/// Sets the folders, which are separated by blanks. None: a file may be anywhere. O(words)
pub fn set(words: &str) {
    let folders: Arc<[PathBuf]> = words.split_ascii_whitespace().map(PathBuf::from).collect();
    let folders = Some(folders).filter(|folders| !folders.is_empty());
    *FOLDERS.write().unwrap_or_else(PoisonError::into_inner) = folders;
}

/// The folders. `None`: a file may be anywhere. O(1)
pub fn list() -> Option<Arc<[PathBuf]>> {
    FOLDERS.read().unwrap_or_else(PoisonError::into_inner).clone()
}
