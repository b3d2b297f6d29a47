//! The file that a result goes to: made before the run, so that a path which can't be written costs no run.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::table::Outcome;

/// A file that can be written. It is removed again if it was made here and nothing was written; one that was there stays as it was.
#[derive(Debug)]
pub(crate) struct JsonFile {
    path: PathBuf,
    made: bool,
}

impl JsonFile {
    /// Makes the file, or makes sure that the one that is there can be written.
    pub(crate) fn claim(path: &Path) -> Result<JsonFile, Failure> {
        let made = match OpenOptions::new().write(true).create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => OpenOptions::new().write(true).open(path).map(|_| false),
            created => created.map(|_| true),
        };
        let made = made.map_err(|error| format!("--json {} can't be written: {error}", path.display()))?;
        Ok(JsonFile { path: path.to_owned(), made })
    }

    /// Replaces its content.
    pub(crate) fn write(mut self, outcome: &Outcome) -> Result<(), Failure> {
        let mut json = serde_json::to_vec_pretty(outcome)?;
        json.push(b'\n');
        let file = OpenOptions::new().write(true).truncate(true).open(&self.path);
        let written = file.and_then(|mut file| file.write_all(&json));
        written.map_err(|error| format!("writing {} failed: {error}", self.path.display()))?;
        self.made = false;
        Ok(())
    }
}

impl Drop for JsonFile {
    fn drop(&mut self) {
        if self.made {
            // The error that led here is the one to tell.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_fails_leaves_no_file_and_an_earlier_result_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        fs::write(&old, "earlier").unwrap();
        let claims = [&new, &old].map(|path| JsonFile::claim(path).unwrap());
        assert!(new.exists());
        drop(claims);
        assert!(!new.exists());
        assert_eq!(fs::read_to_string(&old).unwrap(), "earlier");
    }

    #[test]
    fn a_path_that_cannot_be_written_is_named() {
        let error = JsonFile::claim(Path::new("/nonexistent/x.json")).unwrap_err().to_string();
        assert!(error.contains("--json /nonexistent/x.json can't be written"), "{error}");
    }
}
