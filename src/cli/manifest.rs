//! `-f`: files, directories, standard input, URLs, multiple documents, lists.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{Session, error::Failure, fetch, known};
use podwright_api::{Kind, Object, yaml};

/// `-f` and `-R`, as every command takes them.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Files {
    /// The file, directory or URL that contains the configuration; - for stdin
    #[arg(long = "filename", short = 'f', value_name = "FILE", value_delimiter = ',')]
    pub filename: Vec<PathBuf>,
    /// Process the directory used in -f recursively
    #[arg(long, short = 'R')]
    pub recursive: bool,
}

/// One object of a manifest, and its source.
pub struct Document {
    pub source: String,
    pub kind: &'static Kind,
    pub object: Object,
}

impl Document {
    /// `Error from server (...): error when creating "hello.yaml": ...`
    pub fn doing(&self, what: &str) -> String {
        format!("error when {what} \"{}\"", self.source)
    }
}

impl Files {
    pub fn is_empty(&self) -> bool {
        self.filename.is_empty()
    }

    /// All objects, in order. Stops at the first error.
    pub async fn documents(&self, session: &Session) -> Result<Vec<Document>, Failure> {
        let mut documents = Vec::new();
        for path in &self.filename {
            if path.as_os_str() == "-" {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text)?;
                parse("STDIN", &text, &mut documents)?;
                continue;
            }
            if let Some(url) = path.to_str().filter(|text| fetch::is_url(text)) {
                parse(url, &fetch::text(url)?, &mut documents)?;
                continue;
            }
            for file in files(path, self.recursive, true)? {
                let text = std::fs::read_to_string(&file)
                    .map_err(|e| Failure::usage(format!("reading {}: {e}", file.display())))?;
                parse(&file.display().to_string(), &text, &mut documents)?;
            }
        }
        if documents.is_empty() {
            return Err(Failure::usage("no objects passed to the command"));
        }
        known::learn_of_types(session, documents.iter().map(|(_, value)| type_of(value))).await;
        documents.into_iter().map(|(source, value)| document(source, value)).collect()
    }
}

/// The manifests at a path, sorted by name. The file extension matters only within directories.
fn files(path: &Path, recursive: bool, top: bool) -> Result<Vec<PathBuf>, Failure> {
    let missing = |_| Failure::usage(format!("the path \"{}\" does not exist", path.display()));
    if !std::fs::metadata(path).map_err(missing)?.is_dir() {
        let manifest = path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        return Ok(if manifest || top { vec![path.to_owned()] } else { Vec::new() });
    }
    if !top && !recursive {
        return Ok(Vec::new());
    }
    let mut entries: Vec<PathBuf> = std::fs::read_dir(path)?.map(|e| Ok(e?.path())).collect::<std::io::Result<_>>()?;
    entries.sort();
    let mut found = Vec::new();
    for entry in entries {
        found.extend(files(&entry, recursive, false)?);
    }
    Ok(found)
}

fn parse(source: &str, text: &str, into: &mut Vec<(String, Value)>) -> Result<(), Failure> {
    let values = yaml::documents(text).map_err(|e| Failure::usage(format!("error parsing {source}: {e}")))?;
    for value in values {
        flatten(source, value, into)?;
    }
    Ok(())
}

/// A document, or each item of a `List`.
fn flatten(source: &str, value: Value, into: &mut Vec<(String, Value)>) -> Result<(), Failure> {
    let (api_version, kind_name) = type_of(&value);
    if kind_name.is_empty() || api_version.is_empty() {
        let what = if kind_name.is_empty() { "kind" } else { "apiVersion" };
        return Err(Failure::usage(format!("error validating \"{source}\": error validating data: {what} not set")));
    }
    if let (true, Some(items)) = (kind_name.ends_with("List"), value["items"].as_array()) {
        return items.iter().try_for_each(|item| flatten(source, item.clone(), into));
    }
    into.push((source.to_owned(), value));
    Ok(())
}

/// `apiVersion` and `kind`.
fn type_of(value: &Value) -> (&str, &str) {
    let text = |field: &str| value[field].as_str().unwrap_or("");
    (text("apiVersion"), text("kind"))
}

fn document(source: String, value: Value) -> Result<Document, Failure> {
    let (api_version, kind_name) = type_of(&value);
    let kind = known::kinds().of(api_version, kind_name).ok_or_else(|| {
        let name = value["metadata"]["name"].as_str().unwrap_or("");
        Failure::usage(format!(
            "resource mapping not found for name: \"{name}\" namespace: \"\" from \"{source}\": \
             no matches for kind \"{kind_name}\" in version \"{api_version}\""
        ))
    })?;
    Ok(Document { source, kind, object: Object(value) })
}
