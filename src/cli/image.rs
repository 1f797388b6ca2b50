//! `image`: manages the images of a node: import, load, pull, list, rm.

use std::{io::IsTerminal, path::PathBuf, process::ExitCode};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncRead;
use tokio_util::io::InspectReader;

use super::{
    Outcome, Session,
    error::Failure,
    out,
    pods::kind_of,
    print::{self, Format, Table},
    progress::{Progress, size},
    stream::{self, Input},
    target::{Selection, Target},
};
use podwright_api::{Object, Verb, rpc::ImageOptions, stream::STDOUT};

#[derive(clap::Args)]
pub struct Args {
    /// The node; required if there are several
    #[arg(long, global = true, value_name = "NAME")]
    node: Option<String>,
    #[command(subcommand)]
    operation: Operation,
}

#[derive(clap::Subcommand)]
enum Operation {
    /// Create an image of one layer from a root file system
    Import {
        /// A tar archive, which may be compressed; - for stdin
        rootfs: PathBuf,
        /// The name of the image, as localhost/busybox:1
        name: String,
    },
    /// Load images from an OCI or docker-save archive
    Load {
        /// The archive; - for stdin
        archive: PathBuf,
    },
    /// Pull an image from its registry
    Pull {
        /// The image to pull
        name: String,
        /// User name for registry authentication
        #[arg(long)]
        username: Option<String>,
        /// Password for registry authentication
        #[arg(long, env = "PODWRIGHT_REGISTRY_PASSWORD", hide_env_values = true)]
        password: Option<String>,
    },
    /// List images
    #[command(visible_alias = "ls")]
    List {
        /// Output format: json, yaml, name
        #[arg(long, short = 'o', value_name = "FORMAT")]
        output: Option<Format>,
        /// Do not print headers in the default output format
        #[arg(long)]
        no_headers: bool,
    },
    /// Remove images
    #[command(alias = "remove")]
    Rm {
        /// The images to remove, by name or ID
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// An image as reported by a node.
#[derive(Deserialize)]
struct Image {
    id: String,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    size: u64,
    created: Option<String>,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let node = node(session, args.node).await?;
    match args.operation {
        Operation::Import { rootfs, name } => {
            let input = archive(&rootfs).await?;
            made(session, &node, ImageOptions::Import { name }, input).await?;
        }
        Operation::Load { archive: path } => {
            let input = archive(&path).await?;
            made(session, &node, ImageOptions::Load, input).await?;
        }
        Operation::Pull { name, username, password } => {
            let options = ImageOptions::Pull { name, username, password };
            made(session, &node, options, stream::no_input()).await?;
        }
        Operation::List { output, no_headers } => {
            let images = call(session, &node, ImageOptions::List, stream::no_input(), |_| {}).await?;
            list(images, output, no_headers)?;
        }
        Operation::Rm { names } => return remove(session, &node, names).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// The node to use: the named one, or the only one.
pub async fn node(session: &Session, named: Option<String>) -> Result<String, Failure> {
    if let Some(name) = named {
        return Ok(name);
    }
    let target = Target { kind: kind_of("nodes"), namespace: None, name: None };
    let (nodes, _) = Selection::default().list(&target, session).await?;
    match nodes.as_slice() {
        [] => Err(Failure::usage("there is no node yet")),
        [one] => Ok(one.name().to_owned()),
        several => {
            let names: Vec<&str> = several.iter().map(Object::name).collect();
            Err(Failure::usage(format!("there are several nodes, choose with --node: {}", names.join(", "))))
        }
    }
}

async fn archive(path: &PathBuf) -> Result<Input, Failure> {
    if path.as_os_str() == "-" {
        return Ok(watched(tokio::io::stdin(), None));
    }
    let opened = tokio::fs::File::open(path).await;
    let file = opened.map_err(|e| Failure::usage(format!("opening {}: {e}", path.display())))?;
    // Named pipes have no length.
    let length = Some(file.metadata().await?.len()).filter(|length| *length > 0);
    Ok(watched(file, length))
}

/// Reads an archive, showing the progress on a terminal.
fn watched(archive: impl AsyncRead + Unpin + Send + 'static, length: Option<u64>) -> Input {
    let (mut progress, mut sent) = (Progress::begin(), 0);
    stream::reader(InspectReader::new(archive, move |bytes| {
        sent += bytes.len() as u64;
        progress.tell("sent", sent, length);
    }))
}

/// Runs one operation; returns its results, without progress.
async fn call(
    session: &Session,
    node: &str,
    options: ImageOptions,
    input: Input,
    mut progress: impl FnMut(&Value),
) -> Result<Vec<Value>, Failure> {
    let mut request = session.request(Verb::Connect, kind_of("nodes"), None, Some(node));
    request.subresource = Some("image".to_owned());
    let ends_soon = matches!(options, ImageOptions::List | ImageOptions::Remove { .. });
    request.body = Some(serde_json::to_value(&options).map_err(anyhow::Error::from)?);
    let frames = stream::open(session, request).await?;
    let (mut pending, mut answers, mut room) = (Vec::new(), Vec::new(), stream::Room::default());
    let each = |channel: u8, bytes: &[u8]| -> Result<(), Failure> {
        if channel != STDOUT {
            return Ok(());
        }
        room.take(bytes.len())?;
        pending.extend_from_slice(bytes);
        while let Some(end) = pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let length = line.len();
            match serde_json::from_slice::<Value>(&line) {
                Ok(line) if line.get("resolved").or(line.get("downloading")).or(line.get("unpacked")).is_some() => {
                    // It is not kept.
                    room.give_back(length);
                    progress(&line)
                }
                Ok(answer) => answers.push(answer),
                Err(_) => room.give_back(length),
            }
        }
        Ok(())
    };
    let exchanged = stream::exchange_until(frames, input, each);
    let status = match ends_soon {
        true => stream::in_time(exchanged).await?,
        // A registry, or the sender of an archive, may take any time.
        false => exchanged.await?,
    };
    stream::succeeded(status)?;
    Ok(answers)
}

/// Runs an operation that creates images, and prints their names.
async fn made(session: &Session, node: &str, options: ImageOptions, input: Input) -> Result<(), Failure> {
    // An archive may contain any number of names; otherwise the last name is the new one.
    let all = matches!(options, ImageOptions::Load);
    let shown = std::io::stderr().is_terminal();
    let progress = |line: &Value| {
        if shown && let Some(text) = progress(line) {
            out::progress(&text);
        }
    };
    let answers = call(session, node, options, input, progress).await;
    if shown {
        out::progress("");
    }
    for answer in answers? {
        let image = Image::deserialize(&answer["image"]).map_err(anyhow::Error::from)?;
        let unnamed = std::slice::from_ref(&image.id);
        let names = if image.names.is_empty() { unnamed } else { &image.names };
        let new = if all { names } else { &names[names.len() - 1..] };
        for name in new {
            outln!("{name} ({}, {})", short(&image.id), size(image.size));
        }
    }
    Ok(())
}

/// One line of a pull's progress.
fn progress(line: &Value) -> Option<String> {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    if let Some(resolved) = line.get("resolved") {
        return Some(format!("{} layers, {}", count(&resolved["layers"]), size(number(&resolved["bytes"]))));
    }
    let loading = line.get("downloading")?;
    let digest = short(loading["digest"].as_str().unwrap_or("")).to_owned();
    Some(format!("{digest}: {} of {}", size(number(&loading["done"])), size(number(&loading["total"]))))
}

fn count(layers: &Value) -> u64 {
    layers.as_array().map_or_else(|| layers.as_u64().unwrap_or(0), |list| list.len() as u64)
}

fn list(images: Vec<Value>, output: Option<Format>, no_headers: bool) -> Result<(), Failure> {
    let parsed = || images.iter().map(|i| Image::deserialize(i).map_err(anyhow::Error::from));
    match output {
        Some(Format::Name) => {
            for image in parsed() {
                image?.names.iter().for_each(|name| outln!("{name}"));
            }
        }
        None | Some(Format::Table | Format::Wide) => {
            let mut rows: Vec<Vec<String>> = Vec::new();
            if !no_headers {
                rows.push(["NAME", "IMAGE ID", "SIZE", "CREATED"].map(str::to_owned).to_vec());
            }
            for image in parsed() {
                let image = image?;
                let unnamed = vec!["<none>".to_owned()];
                let created = image.created.unwrap_or_else(|| "<none>".to_owned());
                for name in if image.names.is_empty() { &unnamed } else { &image.names } {
                    let id = short(&image.id).to_owned();
                    rows.push(vec![name.clone(), id, size(image.size), created.clone()]);
                }
            }
            out!("{}", Table::default().render(&rows));
        }
        Some(format) => raw!("{}", print::object(&format, &Object(json!({ "images": images })))?),
    }
    Ok(())
}

async fn remove(session: &Session, node: &str, names: Vec<String>) -> Outcome {
    let mut code = ExitCode::SUCCESS;
    for name in names {
        let options = ImageOptions::Remove { name: name.clone() };
        match call(session, node, options, stream::no_input(), |_| {}).await {
            Ok(_) => outln!("image \"{name}\" removed"),
            Err(failure) => code = failure.report(),
        }
    }
    Ok(code)
}

/// The first twelve digits of a digest.
fn short(digest: &str) -> &str {
    let bare = digest.strip_prefix("sha256:").unwrap_or(digest);
    bare.get(..12).unwrap_or(bare)
}
