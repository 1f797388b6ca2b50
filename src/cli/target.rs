//! The objects that arguments name: `pods`, `pod x y`, `pod/x deploy/y`, `all`, each with `-l`, `--all` and `-A`.

use super::{Session, error::Failure, known, manifest::Files};
use podwright_api::{Kind, Object, Options, Status, Verb, kinds, request::Body};

/// The arguments by which commands name objects.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Selection {
    /// TYPE [NAME...] or TYPE/NAME...
    #[arg(value_name = "TYPE[/NAME] [NAME]")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub files: Files,
    /// Selector (label query) to filter on, supports '=', '==', '!=', 'in', 'notin', as a=b,c!=d,e in (f,g)
    #[arg(long, short = 'l', value_name = "LABELS")]
    pub selector: Option<String>,
    /// Selector (field query) to filter on, as status.phase=Running
    #[arg(long, value_name = "FIELDS")]
    pub field_selector: Option<String>,
    /// List the requested objects across all namespaces
    #[arg(long, short = 'A')]
    pub all_namespaces: bool,
}

const NOTHING: &str = "You must provide one or more resources by argument or filename.
Example resource specifications include:
   '-f rsrc.yaml'
   '--filename=rsrc.json'
   '<resource> <name>'
   '<resource>'";

/// One target: a kind's objects, or one of them.
#[derive(Clone)]
pub struct Target {
    pub kind: &'static Kind,
    /// The namespace in a manifest; otherwise the session's.
    pub namespace: Option<String>,
    /// `None`: all that match the selectors.
    pub name: Option<String>,
}

/// `deployment.apps/hello`, `pod/hello`: an object's name in kubectl's output.
pub fn display(kind: &Kind, name: &str) -> String {
    format!("{}/{name}", singular(kind))
}

/// `deployment.apps`, `pod`.
pub fn singular(kind: &Kind) -> String {
    podwright_api::status::qualified(kind.singular, kind.group)
}

/// The kind that an argument names, among those that [`known`] has.
pub fn kind(word: &str) -> Result<&'static Kind, Failure> {
    known::kinds()
        .lookup(word)
        .ok_or_else(|| Failure::usage(format!("the server doesn't have a resource type \"{word}\"")))
}

impl Selection {
    /// The targets, in order. Categories (`all`) and comma-separated lists become several.
    pub async fn targets(&self, session: &Session) -> Result<Vec<Target>, Failure> {
        if !self.files.is_empty() {
            if !self.names.is_empty() {
                return Err(Failure::usage(
                    "when paths are provided as input, you may not specify resource by arguments as well",
                ));
            }
            let named = |d: super::manifest::Document| Target {
                kind: d.kind,
                namespace: d.object.namespace().map(str::to_owned),
                name: Some(d.object.name().to_owned()),
            };
            return Ok(self.files.documents(session).await?.into_iter().map(named).collect());
        }
        let Some(first) = self.names.first() else {
            return Err(Failure::usage(NOTHING));
        };
        if self.names.iter().any(|n| n.contains('/')) {
            known::learn_of(session, self.names.iter().map(|n| n.split('/').next().unwrap_or(n))).await;
            return self.names.iter().map(|n| slashed(n)).collect();
        }
        known::learn_of(session, first.split(',')).await;
        let kinds = first.split(',').map(of_type).collect::<Result<Vec<_>, _>>()?.concat();
        let target = |kind: &'static Kind, name: Option<&String>| Target { kind, namespace: None, name: name.cloned() };
        Ok(match &self.names[1..] {
            [] => kinds.into_iter().map(|kind| target(kind, None)).collect(),
            names => kinds.iter().flat_map(|kind| names.iter().map(|n| target(kind, Some(n)))).collect(),
        })
    }

    /// Like `targets`, for a command that changes objects: without names it requires a selector or `--all`.
    pub async fn several(&self, all: bool, session: &Session) -> Result<Vec<Target>, Failure> {
        let targets = self.targets(session).await?;
        let broad = all || self.selector.is_some() || self.field_selector.is_some();
        if !broad && targets.iter().any(|t| t.name.is_none()) {
            return Err(Failure::usage("resource(s) were provided, but no name was specified"));
        }
        Ok(targets)
    }

    /// The objects of a target.
    pub async fn fetch(&self, target: &Target, session: &Session) -> Result<Vec<Object>, Status> {
        match &target.name {
            Some(name) => Ok(vec![session.get(target.kind, target.namespace.as_deref(), name).await?]),
            None => Ok(self.list(target, session).await?.0),
        }
    }

    /// All objects of a target's kind that match the selectors, and the list's revision.
    pub async fn list(&self, target: &Target, session: &Session) -> Result<(Vec<Object>, String), Status> {
        let mut request = session.request(Verb::List, target.kind, target.namespace.as_deref(), None);
        request.options = self.options();
        if self.all_namespaces {
            request.namespace = None;
        }
        match session.call(request).await.map_err(|status| self.refused(target.kind, status))?.body {
            Body::List(list) => {
                let objects = list
                    .items
                    .iter()
                    .map(|bytes| typed(target.kind, Object::from_slice(bytes)?))
                    .collect::<Result<_, _>>()?;
                Ok((objects, list.resource_version))
            }
            _ => Err(Status::internal("the server did not answer with a list")),
        }
    }

    /// A selector that the server refuses, in kubectl's words.
    fn refused(&self, kind: &Kind, mut status: Status) -> Status {
        let [labels, fields] = [&self.selector, &self.field_selector].map(|s| s.clone().unwrap_or_default());
        if status.code == 400 && !(labels.is_empty() && fields.is_empty()) {
            let (group, version) = (kind.group, kind.api_version());
            let version = version.rsplit('/').next().unwrap_or_default();
            status.message = format!(
                "Unable to find \"{group}/{version}, Resource={}\" that match label selector \"{labels}\", field selector \
                 \"{fields}\": {}",
                kind.plural, status.message
            );
        }
        status
    }

    pub fn options(&self) -> Options {
        Options {
            label_selector: self.selector.clone(),
            field_selector: self.field_selector.clone(),
            ..Options::default()
        }
    }
}

/// List items may lack their type, which tables and files need.
pub fn typed(kind: &Kind, mut object: Object) -> Result<Object, Status> {
    if object.kind().is_empty() {
        object.0["apiVersion"] = kind.api_version().into();
        object.0["kind"] = kind.kind.into();
    }
    Ok(object)
}

fn slashed(word: &str) -> Result<Target, Failure> {
    match word.split_once('/') {
        Some((kind_name, name)) if !name.is_empty() && !name.contains('/') => {
            Ok(Target { kind: kind(kind_name)?, namespace: None, name: Some(name.to_owned()) })
        }
        _ => Err(Failure::usage(
            "there is no need to specify a resource type as a separate argument when passing arguments in resource/name form",
        )),
    }
}

/// The kinds for an argument: a category's, or the one of that name. CRDs cannot turn a built-in kind's name into a category.
fn of_type(word: &str) -> Result<Vec<&'static Kind>, Failure> {
    if let Some(built_in) = kinds::lookup(word) {
        return Ok(vec![built_in]);
    }
    let members: Vec<&Kind> = known::kinds().all().filter(|k| k.categories().iter().any(|own| own == word)).collect();
    if members.is_empty() { Ok(vec![kind(word)?]) } else { Ok(members) }
}
