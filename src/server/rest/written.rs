//! A response in the requested form and representation, and the cost of encoding it.

use crate::large::of_copies;
use podwright_api::request::Body;
use podwright_api::{Response, Status};

use super::lists;
use super::negotiate::{Form, Shape, Wanted};
use super::reply::{self, Reply};
use super::table::{self, Tabulator};

/// The approximate size of a response.
pub(crate) fn size_of(response: &Response) -> usize {
    match &response.body {
        Body::Object { bytes, .. } => bytes.len(),
        Body::List(list) => list.items.iter().map(|item| item.len()).sum(),
        Body::Status(_) | Body::Stream { .. } => 0,
    }
}

/// The approximate ratio of a value tree to its bytes.
pub(super) const TREE: usize = 8;

/// The cost of encoding a response: room in memory, in bytes, and work, in bytes of a request.
pub(super) struct Cost {
    pub room: usize,
    pub work: usize,
}

pub(super) fn cost_of(response: &Response, wanted: &Wanted) -> Cost {
    match &response.body {
        Body::Object { .. } | Body::List(_) => cost(size_of(response), matches!(response.body, Body::List(_)), wanted),
        Body::Status(status) => cost_of_status(status, wanted),
        Body::Stream { .. } => Cost { room: 0, work: 0 },
    }
}

pub(super) fn cost_of_status(status: &Status, wanted: &Wanted) -> Cost {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let of_causes: usize = causes.map(|cause| cause.message.len() + cause.field.len()).sum();
    cost(status.message.len() + of_causes, false, &Wanted { gzip: false, shape: Shape::Whole, ..*wanted })
}

/// The cost of a response with this much JSON: unchanged output is copied at most once.
fn cost(bytes: usize, is_list: bool, wanted: &Wanted) -> Cost {
    let as_tree = wanted.form == Form::Yaml || wanted.pretty || wanted.shape == Shape::Table;
    let rendered = as_tree || wanted.shape != Shape::Whole || reply::is_compressed(bytes, wanted);
    let work = match rendered {
        true => bytes,
        false if is_list => of_copies(bytes),
        false => 0,
    };
    Cost { room: if as_tree { bytes + TREE * bytes } else { bytes }, work }
}

/// The length of a complete response.
pub(super) fn length_of(reply: &Reply) -> usize {
    let length = hyper::body::Body::size_hint(reply.body()).lower();
    usize::try_from(length).unwrap_or(usize::MAX)
}

/// Encodes a response in the requested form and representation.
pub(super) async fn written(response: Response, wanted: &Wanted, tabulator: &Tabulator) -> Result<Reply, Status> {
    let mut reply = match response.body {
        Body::Object { bytes, created } => {
            let bytes = match wanted.shape {
                Shape::Whole => bytes,
                Shape::Table => tabulator.one(&bytes, true)?,
                Shape::Metadata => table::metadata_of(&bytes)?,
            };
            reply::json(if created { 201 } else { 200 }, bytes, wanted)
        }
        Body::List(mut list) => {
            let listed = match wanted.shape {
                Shape::Whole => {
                    let items = std::mem::take(&mut list.items);
                    lists::listed(&list, items)
                }
                Shape::Table => tabulator.list(&list).await?,
                Shape::Metadata => table::metadata_of_list(&list).await?,
            };
            drop(list);
            listed.reply(wanted).await?
        }
        Body::Status(status) => reply::status(&status, wanted),
        Body::Stream { .. } => return Err(Status::internal("a stream was opened where none is served")),
    };
    reply::warn(&mut reply, &response.warnings);
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_of_an_answer_counts_by_its_bytes() {
        let object = |bytes: usize| Response::from(Body::Object { bytes: vec![b' '; bytes].into(), created: false });
        let plain = Wanted::PLAIN;
        for (wanted, counts) in [
            (plain, false),
            (Wanted { gzip: true, ..plain }, true),
            (Wanted { pretty: true, ..plain }, true),
            (Wanted { form: Form::Yaml, ..plain }, true),
            (Wanted { shape: Shape::Table, ..plain }, true),
            (Wanted { shape: Shape::Metadata, ..plain }, true),
        ] {
            let cost = cost_of(&object(200 << 10), &wanted).work;
            assert_eq!(cost, if counts { 200 << 10 } else { 0 });
        }
        let small = cost_of(&object(1 << 10), &Wanted { gzip: true, ..plain });
        assert_eq!(small.work, 0, "small ones go out as they are");
    }
}
