//! Content negotiation: media types, representations, encodings.

use hyper::header::{self, HeaderMap};

use podwright_api::request::PatchType;
use podwright_api::{Status, protobuf};

/// The encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Json,
    Yaml,
    Protobuf,
}

/// The encoding of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Json,
    Yaml,
}

/// The representation of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Whole,
    /// `meta.k8s.io/v1` Table.
    Table,
    /// `meta.k8s.io/v1` PartialObjectMetadata, or a list of them.
    Metadata,
}

/// The requested form of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub form: Form,
    pub shape: Shape,
    pub gzip: bool,
    pub pretty: bool,
}

impl Wanted {
    /// Plain JSON; for responses before negotiation.
    pub const PLAIN: Wanted = Wanted { form: Form::Json, shape: Shape::Whole, gzip: false, pretty: false };
}

/// One media type of an Accept header.
#[derive(Debug, Default, PartialEq)]
pub struct Clause {
    /// In lower case, without parameters.
    pub media: String,
    pub parameters: Vec<(String, String)>,
}

impl Clause {
    fn parse(text: &str) -> Option<(Clause, f32)> {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().filter(|media| !media.is_empty())?.to_ascii_lowercase();
        let mut quality = 1.0;
        let mut parameters = Vec::new();
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
            match key.as_str() {
                "q" => quality = value.parse().unwrap_or(0.0),
                _ => parameters.push((key, value.to_owned())),
            }
        }
        Some((Clause { media, parameters }, quality))
    }
    pub fn parameter(&self, key: &str) -> &str {
        self.parameters.iter().find(|(k, _)| k == key).map_or("", |(_, value)| value)
    }
    /// The encoding that it allows.
    pub fn form(&self) -> Option<Form> {
        match self.media.as_str() {
            "application/json" | "*/*" | "application/*" => Some(Form::Json),
            "application/yaml" | "text/yaml" | "application/x-yaml" => Some(Form::Yaml),
            _ => None,
        }
    }
    /// The kind that it converts objects to: its name, group and version.
    pub fn turned_into(&self) -> Option<(&str, &str, &str)> {
        let kind = self.parameter("as");
        (!kind.is_empty()).then(|| (kind, self.parameter("g"), self.parameter("v")))
    }
    fn shape(&self, has_table: bool) -> Option<Shape> {
        match self.turned_into() {
            None => Some(Shape::Whole),
            Some(("Table", "meta.k8s.io", "v1")) => has_table.then_some(Shape::Table),
            Some(("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1")) => Some(Shape::Metadata),
            Some(_) => None,
        }
    }
}

/// The clauses of the Accept headers, by preference.
pub fn clauses(headers: &HeaderMap) -> Vec<Clause> {
    let texts = headers.get_all(header::ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    let mut all: Vec<(Clause, f32)> = texts.flat_map(|text| text.split(',')).filter_map(Clause::parse).collect();
    all.retain(|(_, quality)| *quality > 0.0);
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.into_iter().map(|(clause, _)| clause).collect()
}

/// The form of a response with objects; 406 if nothing acceptable is available. Not everything can be a table.
pub fn wanted(headers: &HeaderMap, pretty: Option<bool>, has_table: bool) -> Result<Wanted, Status> {
    let all = clauses(headers);
    let gzip = accepts_gzip(headers);
    // A browser or curl: read by a human.
    let person = || {
        let agent = headers.get(header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("");
        ["curl", "Wget", "Mozilla/"].iter().any(|name| agent.starts_with(name))
    };
    let pretty = pretty.unwrap_or_else(person);
    if all.is_empty() {
        return Ok(Wanted { gzip, pretty, ..Wanted::PLAIN });
    }
    let found = all.iter().find_map(|clause| Some((clause.form()?, clause.shape(has_table)?)));
    let (form, shape) = found.ok_or_else(not_acceptable)?;
    Ok(Wanted { form, shape, gzip, pretty })
}

fn not_acceptable() -> Status {
    let why = "only the following media types are accepted: application/json, application/yaml";
    Status::failure(406, "NotAcceptable", why)
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let texts = headers.get_all(header::ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).filter_map(Clause::parse).any(|(c, q)| c.media == "gzip" && q > 0.0)
}

/// The media type of the request's body, in lower case and without parameters; "" if there is none.
pub fn media_type(headers: &HeaderMap) -> String {
    let text = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    text.split(';').next().unwrap_or("").trim().to_ascii_lowercase()
}

/// The encoding of the body of a create, update or delete.
pub fn body_form(headers: &HeaderMap) -> Result<Written, Status> {
    match media_type(headers).as_str() {
        "" | "application/json" | "*/*" => Ok(Written::Json),
        "application/yaml" | "text/yaml" | "application/x-yaml" => Ok(Written::Yaml),
        protobuf::MEDIA_TYPE => Ok(Written::Protobuf),
        _ => Err(unsupported("application/json, application/yaml, application/vnd.kubernetes.protobuf")),
    }
}

/// The type and encoding of a patch.
pub fn patch_form(headers: &HeaderMap) -> Result<(PatchType, Written), Status> {
    match media_type(headers).as_str() {
        "application/json-patch+json" => Ok((PatchType::Json, Written::Json)),
        "application/merge-patch+json" => Ok((PatchType::Merge, Written::Json)),
        "application/strategic-merge-patch+json" => Ok((PatchType::Strategic, Written::Json)),
        "application/apply-patch+yaml" => Ok((PatchType::Apply, Written::Yaml)),
        _ => Err(unsupported(
            "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, \
             application/apply-patch+yaml",
        )),
    }
}

fn unsupported(accepted: &str) -> Status {
    let why = format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
    Status::failure(415, "UnsupportedMediaType", why)
}
