//! The store on disk: one file of 64 KiB chunks for each replica, all with the same content, and an index of their checksums.
//!
//! Reads must cost what a disk costs, not what a copy from memory costs. A replica's file is therefore opened with `O_DIRECT`;
//! where the file system refuses that, each chunk is dropped from the page cache after it was read, and [`Access`] says so.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustix::fs::{Advice, OFlags, fadvise};

/// Bytes of a chunk.
pub(crate) const CHUNK: usize = 64 * 1024;
/// What `O_DIRECT` wants buffers and offsets to be multiples of, on every device in use.
const ALIGNMENT: usize = 4096;

const MAGIC: &[u8; 8] = b"chunks1\n";

/// What went wrong with a file, in a sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("there is no chunk store in {0}: make one with `chunkstore make --dir {0}`")]
    Missing(PathBuf),
    #[error("{path} is not what `chunkstore make` writes ({why}): make the store again, with --force")]
    Damaged { path: PathBuf, why: String },
    #[error("the disk under {0} is full: free some space, or make a smaller store with --size")]
    DiskFull(PathBuf),
    #[error("{action} {path} failed: {source}")]
    System { action: &'static str, path: PathBuf, source: io::Error },
}

impl FileError {
    fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull => FileError::DiskFull(path.to_owned()),
            _ => FileError::System { action, path: path.to_owned(), source },
        }
    }
}

/// The file of replica `number` in the store `dir`.
pub(crate) fn replica_path(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("replica-{number}")).join("chunks")
}

fn index_path(dir: &Path) -> PathBuf {
    dir.join("index")
}

/// Whether a finished store is in `dir`.
pub(crate) fn exists(dir: &Path) -> bool {
    index_path(dir).exists()
}

/// Makes the store in `dir` an unfinished one, which [`make`] may write anew.
pub(crate) fn discard(dir: &Path) -> Result<(), FileError> {
    let path = index_path(dir);
    fs::remove_file(&path).map_err(FileError::of("removing", &path))
}

/// Writes a store of `chunks` chunks for each of `replicas` replicas, telling `progress` how many chunks are done. What it wrote is
/// removed if it fails.
pub(crate) fn make(dir: &Path, replicas: usize, chunks: u32, seed: u64, mut progress: impl FnMut(u32)) -> Result<(), FileError> {
    let mut draft = Draft(Vec::new());
    let mut files = Vec::with_capacity(replicas);
    for number in 0..replicas {
        let path = replica_path(dir, number);
        if let Some(parent) = path.parent() {
            draft.dir(parent)?;
        }
        files.push((draft.file(&path)?, path));
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut chunk = vec![0; CHUNK];
    let mut sums = Vec::with_capacity(chunks as usize);
    for number in 0..chunks {
        random.fill(&mut chunk);
        sums.push(crc32c::crc32c(&chunk));
        for (file, path) in &mut files {
            file.write_all(&chunk).map_err(FileError::of("writing", path))?;
        }
        progress(number + 1);
    }
    for (file, path) in &files {
        file.sync_all().map_err(FileError::of("writing", path))?;
    }
    // The index comes last: a store that was not finished has none.
    let path = index_path(dir);
    let mut file = draft.file(&path)?;
    file.write_all(&Index { sums }.to_bytes()).map_err(FileError::of("writing", &path))?;
    draft.keep();
    Ok(())
}

/// Files and directories that were made here, in order. They go again when this is dropped, unless it is kept.
struct Draft(Vec<PathBuf>);

impl Draft {
    /// Makes a directory, and those above it.
    fn dir(&mut self, path: &Path) -> Result<(), FileError> {
        if path.as_os_str().is_empty() || path.is_dir() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.dir(parent)?;
        }
        fs::create_dir(path).map_err(FileError::of("creating", path))?;
        self.0.push(path.to_owned());
        Ok(())
    }

    /// Makes a file, or empties the one that is there.
    fn file(&mut self, path: &Path) -> Result<File, FileError> {
        let file = File::create(path).map_err(FileError::of("creating", path))?;
        self.0.push(path.to_owned());
        Ok(file)
    }

    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // The error that led here is the one to tell. A directory that holds something else stays.
            let _ = if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
        }
    }
}

/// The checksum of every chunk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Index {
    sums: Vec<u32>,
}

impl Index {
    /// Reads the index of the store `dir`.
    pub(crate) fn read(dir: &Path) -> Result<Index, FileError> {
        let path = index_path(dir);
        let mut bytes = Vec::new();
        match File::open(&path) {
            Ok(mut file) => file.read_to_end(&mut bytes).map_err(FileError::of("reading", &path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(FileError::Missing(dir.to_owned())),
            Err(error) => return Err(FileError::of("opening", &path)(error)),
        };
        let damaged = |why: &str| FileError::Damaged { path: path.clone(), why: why.to_owned() };
        let sums = bytes.strip_prefix(MAGIC).ok_or_else(|| damaged("it does not begin like an index"))?;
        if sums.is_empty() || sums.len() % 4 != 0 {
            return Err(damaged("its length fits no number of chunks"));
        }
        let (words, _) = sums.as_chunks::<4>();
        Ok(Index { sums: words.iter().map(|word| u32::from_le_bytes(*word)).collect() })
    }

    /// How many chunks the store has.
    pub(crate) fn chunks(&self) -> u32 {
        self.sums.len() as u32
    }

    /// Whether `content` is chunk `number`, whole and undamaged.
    pub(crate) fn verify(&self, number: u32, content: &[u8]) -> bool {
        content.len() == CHUNK && self.sums.get(number as usize) == Some(&crc32c::crc32c(content))
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.sums.iter().flat_map(|sum| sum.to_le_bytes()));
        bytes
    }
}

/// How a replica reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Past the page cache.
    Direct,
    /// Through it, dropping each chunk afterwards.
    DropAfterRead,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Direct => "O_DIRECT",
            Access::DropAfterRead => "the page cache, dropping each chunk after its read (this file system refuses O_DIRECT)",
        })
    }
}

/// One replica's chunks, open for reading from any thread.
#[derive(Debug)]
pub(crate) struct Chunks {
    file: File,
    count: u32,
    access: Access,
}

impl Chunks {
    /// Opens replica `number` of the store `dir`.
    pub(crate) fn open(dir: &Path, number: usize) -> Result<Chunks, FileError> {
        let path = replica_path(dir, number);
        let size = match fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(FileError::Missing(dir.to_owned())),
            Err(error) => return Err(FileError::of("opening", &path)(error)),
        };
        let damaged = |why: &str| FileError::Damaged { path: path.clone(), why: why.to_owned() };
        if size == 0 || size % CHUNK as u64 != 0 {
            return Err(damaged("its size is not a number of chunks"));
        }
        let count = u32::try_from(size / CHUNK as u64).map_err(|_| damaged("it has too many chunks"))?;
        let direct = OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&path);
        // Some file systems refuse at the open, others only at the first read.
        if let Ok(file) = direct {
            let chunks = Chunks { file, count, access: Access::Direct };
            if chunks.read(0).is_ok() {
                return Ok(chunks);
            }
        }
        let file = File::open(&path).map_err(FileError::of("opening", &path))?;
        let chunks = Chunks { file, count, access: Access::DropAfterRead };
        chunks.read(0).map_err(FileError::of("reading", &path))?;
        Ok(chunks)
    }

    /// How it reads.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// How many chunks it has.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Reads one chunk from the disk. The bytes are those the device wrote: they are not copied again.
    pub(crate) fn read(&self, number: u32) -> io::Result<Bytes> {
        if number >= self.count {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no chunk {number} of {}", self.count)));
        }
        let mut buffer = vec![0; CHUNK + ALIGNMENT];
        let start = buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        let offset = u64::from(number) * CHUNK as u64;
        self.file.read_exact_at(&mut buffer[start..start + CHUNK], offset)?;
        if self.access == Access::DropAfterRead {
            fadvise(&self.file, offset, std::num::NonZero::new(CHUNK as u64), Advice::DontNeed)?;
        }
        Ok(Bytes::from(buffer).slice(start..start + CHUNK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_is_read_back_from_every_replica_and_verifies() {
        let dir = tempfile::tempdir().unwrap();
        let mut done = 0;
        make(dir.path(), 2, 5, 7, |chunks| done = chunks).unwrap();
        let index = Index::read(dir.path()).unwrap();
        assert_eq!((done, index.chunks()), (5, 5));
        for replica in 0..2 {
            let chunks = Chunks::open(dir.path(), replica).unwrap();
            assert_eq!(chunks.count(), 5);
            for number in 0..5 {
                assert!(index.verify(number, &chunks.read(number).unwrap()), "replica {replica}, chunk {number}");
            }
            assert!(chunks.read(5).is_err());
        }
    }

    #[test]
    fn a_flipped_bit_another_chunk_and_a_short_one_do_not_verify() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path(), 1, 2, 7, |_| ()).unwrap();
        let index = Index::read(dir.path()).unwrap();
        let chunk = Chunks::open(dir.path(), 0).unwrap().read(0).unwrap();
        let mut flipped = chunk.to_vec();
        flipped[CHUNK / 2] ^= 1;
        assert!(index.verify(0, &chunk));
        assert!(
            !index.verify(0, &flipped) && !index.verify(1, &chunk) && !index.verify(0, &chunk[1..]) && !index.verify(2, &chunk)
        );
    }

    #[test]
    fn a_full_disk_leaves_nothing_of_an_unfinished_store_and_all_else() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("store");
        fs::create_dir_all(dir.join("replica-1")).unwrap();
        fs::write(dir.join("replica-1/notes"), "mine").unwrap();
        // The second replica's disk is the one that is always full.
        std::os::unix::fs::symlink("/dev/full", replica_path(&dir, 1)).unwrap();
        assert!(matches!(make(&dir, 2, 5, 7, |_| ()), Err(FileError::DiskFull(_))));
        let left = |dir: &Path| -> Vec<_> { fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect() };
        assert_eq!((left(&dir), left(&dir.join("replica-1"))), (vec!["replica-1".into()], vec!["notes".into()]));
        // Directories that were not there go as well.
        fs::write(parent.path().join("file"), "").unwrap();
        let deep = parent.path().join("a/b");
        let mut draft = Draft(Vec::new());
        draft.dir(&deep).unwrap();
        assert!(draft.dir(&parent.path().join("file/c")).is_err());
        drop(draft);
        assert!(!parent.path().join("a").exists() && parent.path().join("file").exists());
    }

    #[test]
    fn a_missing_store_says_how_to_make_one() {
        let dir = tempfile::tempdir().unwrap();
        for error in [Index::read(dir.path()).unwrap_err(), Chunks::open(dir.path(), 0).unwrap_err()] {
            assert!(error.to_string().contains("chunkstore make"), "{error}");
        }
    }

    #[test]
    fn damaged_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path(), 1, 2, 7, |_| ()).unwrap();
        fs::write(index_path(dir.path()), b"not an index").unwrap();
        assert!(matches!(Index::read(dir.path()), Err(FileError::Damaged { .. })));
        fs::write(replica_path(dir.path(), 0), b"half a chunk").unwrap();
        assert!(matches!(Chunks::open(dir.path(), 0), Err(FileError::Damaged { .. })));
    }

    #[test]
    fn a_full_disk_is_called_full() {
        let error = FileError::of("writing", Path::new("/data"))(io::Error::from(io::ErrorKind::StorageFull));
        assert!(error.to_string().contains("is full"), "{error}");
    }
}
