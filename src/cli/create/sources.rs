//! Data sources of ConfigMaps and Secrets: literals, files, directories, env files.

use std::io;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Sources {
    /// A key and a literal value to insert
    #[arg(long, value_name = "KEY=VALUE")]
    from_literal: Vec<String>,
    /// A file, or a directory of files whose names become the keys; or KEY=FILE
    #[arg(long, value_name = "[KEY=]FILE")]
    from_file: Vec<String>,
    /// A file with lines of KEY=VALUE pairs
    #[arg(long, value_name = "FILE")]
    from_env_file: Vec<PathBuf>,
}

type Data = Vec<(String, Vec<u8>)>;

/// Why the data is invalid, in kubectl's words.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// Env files are combined with other sources.
    #[error("from-env-file cannot be combined with from-file or from-literal")]
    Combined,
    /// A literal without a key or a value.
    #[error("invalid literal source {0}, expected key=value")]
    Literal(String),
    /// A key occurs twice.
    #[error("cannot add key {0}, another key by that name already exists")]
    Twice(String),
    /// A directory's files determine the keys.
    #[error("cannot give a key name for a directory path")]
    KeyOfFolder,
    #[error("error reading {}: {why}", .path.display())]
    Read { path: PathBuf, why: io::Error },
    #[error("error listing files in {}: {why}", .path.display())]
    List { path: PathBuf, why: io::Error },
}

impl Sources {
    /// All keys with their bytes.
    ///
    /// # Errors
    ///
    /// A key occurs twice, a source is invalid, or a file cannot be read.
    pub fn read(&self) -> Result<Data, DataError> {
        if !self.from_env_file.is_empty() && !(self.from_literal.is_empty() && self.from_file.is_empty()) {
            return Err(DataError::Combined);
        }
        let mut data = Data::new();
        for text in &self.from_file {
            file(text, &mut data)?;
        }
        for text in &self.from_literal {
            let why = || DataError::Literal(text.clone());
            let (key, value) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(why)?;
            add(&mut data, key, unquoted(value).as_bytes().to_vec())?;
        }
        for path in &self.from_env_file {
            environment(&String::from_utf8_lossy(&bytes(path)?), &mut data)?;
        }
        Ok(data)
    }
}

fn add(data: &mut Data, key: &str, bytes: Vec<u8>) -> Result<(), DataError> {
    if data.iter().any(|(other, _)| other == key) {
        return Err(DataError::Twice(key.to_owned()));
    }
    data.push((key.to_owned(), bytes));
    Ok(())
}

fn bytes(path: &Path) -> Result<Vec<u8>, DataError> {
    std::fs::read(path).map_err(|why| DataError::Read { path: path.to_owned(), why })
}

/// Removes matching quotes around a value.
fn unquoted(value: &str) -> &str {
    let between = |quote| value.strip_prefix(quote).and_then(|v: &str| v.strip_suffix(quote));
    between('"').or_else(|| between('\'')).unwrap_or(value)
}

fn file(text: &str, data: &mut Data) -> Result<(), DataError> {
    let (key, path) = text.split_once('=').map_or((None, text), |(key, path)| (Some(key), path));
    let path = Path::new(path);
    let name = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    if !path.is_dir() {
        return add(data, &key.map_or_else(|| name(path), str::to_owned), bytes(path)?);
    }
    if key.is_some() {
        return Err(DataError::KeyOfFolder);
    }
    let entries = std::fs::read_dir(path).map_err(|why| DataError::List { path: path.to_owned(), why })?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| p.is_file()).collect();
    files.sort();
    files.iter().try_for_each(|file| add(data, &name(file), bytes(file)?))
}

/// Lines of KEY=VALUE; a KEY alone takes its value from the process' environment.
fn environment(text: &str, data: &mut Data) -> Result<(), DataError> {
    let lines = text.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        match line.split_once('=') {
            Some((key, value)) => add(data, key, value.as_bytes().to_vec())?,
            None => add(data, line, std::env::var(line).unwrap_or_default().into_bytes())?,
        }
    }
    Ok(())
}
