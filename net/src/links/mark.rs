//! Whose a network namespace is: a node marks the one that it takes, on its `lo`.

use std::os::fd::BorrowedFd;

use rtnetlink::LinkUnspec;

use super::names::LOOPBACK;
use super::read::get_link;
use crate::netlink::Route;
use crate::{Error, Result};

/// The alias of `lo` in a namespace that a node has taken: `podwright-node/<mark>`.
const NODE_ALIAS: &str = "podwright-node/";

/// Marks a namespace as a node's, on its `lo`. `mark`: another one's is refused while `is_there` says that the other one is there.
///
/// # Errors
///
/// It is another node's, whose mark is given; or the kernel refuses it.
pub fn take_netns(netns: BorrowedFd<'_>, mark: &str, is_there: impl Fn(&str) -> bool) -> Result<()> {
    let mut route = Route::open_in(netns)?;
    let has = mark_of(&mut route)?;
    if let Some(other) = has.as_deref().filter(|has| *has != mark && is_there(has)) {
        return Err(Error::NetnsInUse(other.to_owned()));
    }
    if has.as_deref() == Some(mark) { Ok(()) } else { set_mark(&mut route, &format!("{NODE_ALIAS}{mark}")) }
}

/// Takes a node's mark away; another one's stays.
///
/// # Errors
///
/// The kernel refuses it.
pub fn give_up_netns(netns: BorrowedFd<'_>, mark: &str) -> Result<()> {
    let mut route = Route::open_in(netns)?;
    if mark_of(&mut route)?.as_deref() == Some(mark) { set_mark(&mut route, "") } else { Ok(()) }
}

fn mark_of(route: &mut Route) -> Result<Option<String>> {
    let lo = get_link(route, "lo")?;
    Ok(lo.and_then(|lo| Some(lo.alias.strip_prefix(NODE_ALIAS)?.to_owned())))
}

fn set_mark(route: &mut Route, alias: &str) -> Result<()> {
    let link = LinkUnspec::new_with_index(LOOPBACK).alias(alias).build();
    route.call(format_args!("set link lo alias {alias}"), |to| to.link().change(link).execute())
}
