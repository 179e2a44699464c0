//! Files that urls of sources name: only those in the folders of `source-dirs`, if there are any.

use std::path::{Path, PathBuf};

/// The answer for a file that is elsewhere, and for a missing one: it tells nothing about other folders.
const REFUSED: &str = "there is no such file in the folders of source-dirs";

/// The path by which a file may be opened, and whether it must not be a link by then. Links and `..` are
/// followed first. Cost: O(parts of the path and of the folders) system calls. Errors: the file is in none of
/// the folders.
pub(crate) fn admitted(path: &Path) -> Result<(PathBuf, bool), String> {
    match mapping::folders::list() {
        None => Ok((path.into(), false)),
        Some(folders) => found(path, &folders).map(|found| (found, true)).ok_or_else(|| REFUSED.into()),
    }
}

fn found(path: &Path, folders: &[PathBuf]) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let is_within = |folder: &PathBuf| folder.canonicalize().is_ok_and(|folder| path.starts_with(folder));
    folders.iter().any(is_within).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn links_and_dots_lead_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for folder in ["in", "in/deep", "inner", "out"] {
            fs::create_dir(at(folder)).unwrap();
            fs::write(at(folder).join("file"), "x").unwrap();
        }
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(at(to), at(name)).unwrap();
        link("out/file", "in/file-out");
        link("out", "in/dir-out");
        link("in/file", "out/file-in");
        link("nowhere", "in/dangling");
        link("in", "link-to-in");
        for folder in ["in", "link-to-in", "out/../in"] {
            let found = |name: &str| found(&at(name), &[at("none"), at(folder)]);
            let real = |name: &str| Some(at(name).canonicalize().unwrap());
            for name in ["in/file", "in/deep/file", "in/../in/file", "out/file-in", "link-to-in/file"] {
                assert_eq!(found(name), real(name), "{name}");
            }
            for name in [
                "out/file",
                "inner/file",
                "in/file-out",
                "in/dir-out/file",
                "in/deep/../../out/file",
                "in/dangling",
                "in/none",
                "out/none",
            ] {
                assert_eq!(found(name), None, "{name}");
            }
        }
    }
}
